"""Headers of samples whose predictions come later, kept until then."""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamfl.contract.role import Headers, Record
from streamfl.encoding.changelog_checks import check_name
from streamfl.records.header_propagation import LONGEST_HEADERS, Carry
from streamfl.state.changelog import ChangedParts
from streamfl.state.table import StateRow

__all__ = ["HEADERS", "PendingHeaders"]

HEADERS = StateRow(
    "headers/NAME",
    "The headers that the prediction will have (`predictions.headers`).",
    "When the sample comes, if it has such headers. Deleted with the prediction.",
    "As many as entities that may wait. When it is full the oldest is forgotten.",
)
_decode = msgspec.msgpack.Decoder(Annotated[Headers, msgspec.Meta(max_length=LONGEST_HEADERS)]).decode


class PendingHeaders:
    """The headers that samples' predictions will have. A sample without headers takes no room.

    carry: from a sample's record to the headers to keep.
    limit: most names. When it is full the oldest is forgotten.

    >>> from streamfl.records.header_propagation import FollowedPredictions, carried
    >>> pending = PendingHeaders(ChangedParts(), carried(FollowedPredictions()), 10)
    >>> pending.came("a", Record("samples", 0, 0, b"a", b"{}", (("traceparent", b"00-1"), ("other", b"x"))))
    >>> pending.of("a"), pending.of("b")
    ((('traceparent', b'00-1'),), ())
    """

    def __init__(self, parts: ChangedParts, carry: Carry, limit: int) -> None:
        self._kept = parts.named(HEADERS, check_name, bytes, self._restore)
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
            self._kept.remember(name, msgspec.msgpack.encode(headers))
            if len(self._headers) > self._limit:
                self.forget(next(iter(self._headers)))

    def of(self, name: str) -> Headers:
        return self._headers.get(name, ())

    def forget(self, name: str) -> None:
        if self._headers.pop(name, None) is not None:
            self._kept.forget(name)

    def _restore(self, name: str, value: bytes) -> None:
        self._headers[name] = _decode(value)
