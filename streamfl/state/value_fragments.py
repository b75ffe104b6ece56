"""A long value that is remembered in changelog records of half a megabyte."""

from __future__ import annotations

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_number
from streamfl.state.changelog import ChangedParts
from streamfl.state.table import StateRow

__all__ = ["AS_MANY_FRAGMENTS", "VALUE_FRAGMENT_BYTES", "ValueFragments"]

VALUE_FRAGMENT_BYTES = 512 * 1024
AS_MANY_FRAGMENTS = "As many as hold the value, half a megabyte each."
"""The limit of a row of fragments."""


class ValueFragments:
    """A value in fragments: the keys end with the fragment's number. It is always written whole.

    parts: the state that the fragments belong to.
    row: of their keys.
    most: the largest size in bytes.
    name: what comes between the row's prefix and the number, for a row of several values.
    registered: whether the value is the owner of its keys. Otherwise its owner calls :meth:`restore`.
    """

    def __init__(
        self, parts: ChangedParts, row: StateRow, most: int, name: str = "", *, registered: bool = True
    ) -> None:
        self._parts = parts
        self._prefix = row.prefix + (name + "/" if name else "").encode()
        self._most = most
        self._fragments: dict[int, bytes] = {}
        if registered:
            parts.register(self._prefix, self.restore)

    def __bool__(self) -> bool:
        return bool(self._fragments)

    @property
    def content(self) -> bytes:
        """The whole value; empty if there is none."""
        return b"".join(self._fragments[number] for number in sorted(self._fragments))

    def write(self, content: bytes) -> None:
        """Replace the value."""
        begins = range(0, len(content), VALUE_FRAGMENT_BYTES)
        fragments = {number: content[at : at + VALUE_FRAGMENT_BYTES] for number, at in enumerate(begins)}
        for number in self._fragments.keys() - fragments.keys():
            self._parts.forget(self._key(number))
        for number, fragment in fragments.items():
            self._parts.remember(self._key(number), fragment)
        self._fragments = fragments

    def clear(self) -> None:
        """Delete the value."""
        self.write(b"")

    def restore(self, name: bytes, value: bytes) -> None:
        """Restore a fragment. name: its number, as in its key."""
        number = check_number(name)
        if number * VALUE_FRAGMENT_BYTES + len(value) > self._most:
            raise BadRecord("malformed", f"state {self._key(number)!r} is larger than possible")
        self._fragments[number] = value

    def _key(self, number: int) -> bytes:
        return self._prefix + b"%d" % number
