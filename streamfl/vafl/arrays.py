"""Arrays of parameters as values of a changelog: cut into pieces, for one record holds a megabyte at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.role import PeerError
from streamfl.wire import decode_array, encode_array

__all__ = ["changed_chunks", "restore_chunk"]

CHUNK_BYTES = 512 * 1024


def changed_chunks(arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of all of them."""
    for name, array in arrays.items():
        step = CHUNK_BYTES // array.itemsize
        for number, begin in enumerate(range(0, len(array), step)):
            yield b"array/%s/%d" % (name.encode(), number), encode_array(array[begin : begin + step])


def restore_chunk(
    arrays: Mapping[str, NDArray[Any]], key: bytes, value: bytes, check: Callable[[str, NDArray[Any]], None]
) -> None:
    """Take back one piece in place; PeerError if it is of other arrays than these, or if ``check`` raises it for its numbers."""
    parts = key.decode(errors="replace").split("/")
    array = arrays.get(parts[1]) if len(parts) == 3 and parts[0] == "array" and parts[2].isdecimal() else None
    begin = int(parts[2]) * (CHUNK_BYTES // array.itemsize) if array is not None else 0
    if array is None or begin >= len(array):
        raise PeerError("malformed", f"state {key!r} is not of this model")
    part = array[begin : begin + CHUNK_BYTES // array.itemsize]
    numbers = decode_array(value, np.dtype(array.dtype).type, part.shape, parts[1])
    check(parts[1], numbers)
    part[:] = numbers
