"""State in parts, each under its own changelog key: tracks what changed since the last commit, and cuts large arrays in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import PeerError
from streamfl.encoding.wire import decode_array, encode_array

__all__ = ["ChangedParts", "changed_chunks", "restore_chunk"]

# Well below the largest record, one megabyte.
CHUNK_BYTES = 512 * 1024


class ChangedParts:
    """The parts of one partition's state that changed since the last commit, in the order of their last writing.

    The owners of state in a partition share one object, each with its own keys. So a compacted changelog restores all parts in the
    order in which they were written last.

    >>> parts = ChangedParts()
    >>> parts.remember(b"entity/a", (1.0, 2))
    >>> parts.remember(b"task", b"raw")
    >>> parts.forget(b"entity/a")
    >>> parts.changed_state()
    [(b'entity/a', None), (b'task', b'raw')]
    >>> parts.changed_state()
    []
    """

    def __init__(self) -> None:
        self._changed: dict[bytes, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._changed)

    def remember(self, key: bytes, value: Any) -> None:
        """Set the value of the part ``key``.

        value: bytes, or anything that MessagePack can encode. :meth:`changed_state` encodes it, because most parts are forgotten or
            changed again before that. So after a later change of the object call ``remember`` again.
        """
        self._changed.pop(key, None)
        self._changed[key] = value

    def forget(self, key: bytes) -> None:
        """Delete the part ``key``."""
        self._changed[key] = None

    def changed_state(self) -> list[tuple[bytes, bytes | None]]:
        """Keys and values of what changed since the last call; None forgets the key."""
        changed, self._changed = self._changed, {}
        encode = msgspec.msgpack.encode
        return [(key, value if value is None or isinstance(value, bytes) else encode(value)) for key, value in changed.items()]


def changed_chunks(arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[bytes, bytes]]:
    """Keys ``array/name/number`` and values of one-dimensional arrays, cut into chunks."""
    for name, array in arrays.items():
        step = CHUNK_BYTES // array.itemsize
        for number, begin in enumerate(range(0, len(array), step)):
            yield b"array/%s/%d" % (name.encode(), number), encode_array(array[begin : begin + step])


def restore_chunk(
    arrays: Mapping[str, NDArray[Any]], key: bytes, value: bytes, check: Callable[[str, NDArray[Any]], None]
) -> None:
    """Restore one chunk in place.

    arrays: all arrays by name, each (size,).
    check: raises PeerError for numbers that the named array cannot have held.
    Raises PeerError with reason malformed if the chunk belongs to none of the arrays.
    """
    parts = key.decode(errors="replace").split("/")
    array = arrays.get(parts[1]) if len(parts) == 3 and parts[0] == "array" and parts[2].isdecimal() else None
    begin = int(parts[2]) * (CHUNK_BYTES // array.itemsize) if array is not None else 0
    if array is None or begin >= len(array):
        raise PeerError("malformed", f"state {key!r} is not of this model")
    part = array[begin : begin + CHUNK_BYTES // array.itemsize]
    numbers = decode_array(value, np.dtype(array.dtype).type, part.shape, parts[1])
    check(parts[1], numbers)
    part[:] = numbers
