"""A long value that is remembered in changelog records of half a megabyte."""

from __future__ import annotations

from streamfl.contract.role import PeerError
from streamfl.encoding.changelog_checks import check_number
from streamfl.state.changelog import ChangedParts
from streamfl.state.table import StateRow

__all__ = ["VALUE_FRAGMENT_BYTES", "UnregisteredFragments", "ValueFragments"]

VALUE_FRAGMENT_BYTES = 512 * 1024


class ValueFragments:
    """A value in fragments: the keys end with the fragment's number. It is always written whole.

    parts: the state that the fragments belong to.
    row: of their keys.
    most: the largest size in bytes.
    name: what comes between the row's prefix and the number, for a row of several values.
    registered: whether the value is the owner of its keys. Otherwise its owner calls :meth:`restore`.
    """

    def __init__(self, parts: ChangedParts, row: StateRow, most: int, name: str = "", *, registered: bool = True) -> None:
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
            raise PeerError("malformed", f"state {self._key(number)!r} is larger than possible")
        self._fragments[number] = value

    def _key(self, number: int) -> bytes:
        return self._prefix + b"%d" % number


class UnregisteredFragments:
    """A value in fragments under ``PREFIX/number``. It is always written whole.

    parts: the state that the fragments belong to.
    prefix: the prefix of their keys, without a slash at the end.
    most: the largest size in bytes.
    """

    def __init__(self, parts: ChangedParts, prefix: str, most: int) -> None:
        self._parts = parts
        self._prefix = prefix.encode() + b"/"
        self._most = most
        self._fragments: dict[int, bytes] = {}

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

    def restore(self, key: bytes, value: bytes) -> bool:
        """Restore a fragment; False if the key belongs to another owner."""
        if not key.startswith(self._prefix):
            return False
        number = key.removeprefix(self._prefix)
        if not (number.isdigit() and len(number) <= 9 and int(number) * VALUE_FRAGMENT_BYTES + len(value) <= self._most):
            raise PeerError("malformed", f"state {key[:60]!r} is larger than possible")
        self._fragments[int(number)] = value
        return True

    def _key(self, number: int) -> bytes:
        return self._prefix + b"%d" % number
