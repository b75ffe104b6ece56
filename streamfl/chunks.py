"""A long value that is remembered in records of half a megabyte."""

from __future__ import annotations

from streamfl.changelog import ChangedParts
from streamfl.role import PeerError

__all__ = ["CHUNK_BYTES", "Chunks"]

CHUNK_BYTES = 512 * 1024


class Chunks:
    """Bytes under ``PREFIX/number``, written whole and never changed in between.

    parts: where they are remembered.
    prefix: of their keys, without a slash at the end.
    most: bytes at most.
    """

    def __init__(self, parts: ChangedParts, prefix: str, most: int) -> None:
        self._parts = parts
        self._prefix = prefix.encode() + b"/"
        self._most = most
        self._pieces: dict[int, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def content(self) -> bytes:
        """All of it; empty where nothing is."""
        return b"".join(self._pieces[number] for number in sorted(self._pieces))

    def write(self, content: bytes) -> None:
        """This instead of what was."""
        pieces = {number: content[at : at + CHUNK_BYTES] for number, at in enumerate(range(0, len(content), CHUNK_BYTES))}
        for number in self._pieces.keys() - pieces.keys():
            self._parts.forget(self._key(number))
        for number, piece in pieces.items():
            self._parts.remember(self._key(number), piece)
        self._pieces = pieces

    def clear(self) -> None:
        """Nothing any more."""
        self.write(b"")

    def restore(self, key: bytes, value: bytes) -> bool:
        """Take a piece back; False if the key is another's."""
        if not key.startswith(self._prefix):
            return False
        number = key.removeprefix(self._prefix)
        if not (number.isdigit() and len(number) <= 9 and int(number) * CHUNK_BYTES + len(value) <= self._most):
            raise PeerError("malformed", f"state {key[:60]!r} is beyond what it can be")
        self._pieces[int(number)] = value
        return True

    def _key(self, number: int) -> bytes:
        return self._prefix + b"%d" % number
