"""Headers of samples whose predictions come later, kept until then."""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamfl.contract.role import Headers, Record
from streamfl.encoding.changelog_checks import check_name
from streamfl.records.header_propagation import LONGEST_HEADERS, Carry
from streamfl.state.changelog import ChangedParts

__all__ = ["PendingHeaders"]

KEY = b"headers/"
_decode = msgspec.msgpack.Decoder(Annotated[Headers, msgspec.Meta(max_length=LONGEST_HEADERS)]).decode


class PendingHeaders:
    """The owner of ``headers/NAME``: the headers that a sample's prediction will have. A sample without headers takes no room.

    carry: from a sample's record to the headers to keep.
    limit: most names. When it is full the oldest is forgotten.

    >>> from streamfl.records.header_propagation import FollowedPredictions, carried
    >>> pending = PendingHeaders(ChangedParts(), carried(FollowedPredictions()), 10)
    >>> pending.came("a", Record("samples", 0, 0, b"a", b"{}", (("traceparent", b"00-1"), ("other", b"x"))))
    >>> pending.of("a"), pending.of("b")
    ((('traceparent', b'00-1'),), ())
    """

    def __init__(self, parts: ChangedParts, carry: Carry, limit: int) -> None:
        self._parts = parts
        self._carry = carry
        self._limit = limit
        self._headers: dict[str, Headers] = {}

    def came(self, name: str, record: Record) -> None:
        """A sample of this name came. Headers of an earlier one are dropped."""
        headers = self._carry(record)
        if self._headers.get(name, ()) == headers:
            return
        self.forget(name)
        if headers:
            self._headers[name] = headers
            self._parts.remember(KEY + name.encode(), headers)
            if len(self._headers) > self._limit:
                self.forget(next(iter(self._headers)))

    def of(self, name: str) -> Headers:
        return self._headers.get(name, ())

    def forget(self, name: str) -> None:
        if self._headers.pop(name, None) is not None:
            self._parts.forget(KEY + name.encode())

    def restore(self, key: bytes, value: bytes) -> bool:
        """Restore headers; False if the key is another owner's."""
        if not key.startswith(KEY):
            return False
        self._headers[check_name(key.removeprefix(KEY))] = _decode(value)
        return True
