"""State in parts, each under its own changelog key: tracks what changed since the last commit, and cuts large
arrays in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import decode_array, encode_array
from streamfl.state.table import StateRow

__all__ = ["ChangedParts", "NamedParts", "changed_chunks", "restore_chunk"]

# Well below the largest record, one megabyte.
CHUNK_BYTES = 512 * 1024

Name = TypeVar("Name", str, int)
Content = TypeVar("Content")


class ChangedParts:
    """The parts of one partition's state that changed since the last commit, in the order of their last
    writing.

    The owners of state in a partition share one object, each with its own keys. So a compacted changelog
    restores all parts in the order in which they were written last. An owner registers each of its rows in
    the role's table, with :meth:`single` or :meth:`named`.

    whose: the member in the text of a refusal.

    >>> parts = ChangedParts()
    >>> parts.remember(b"entity/a", (1.0, 2))
    >>> parts.remember(b"task", b"raw")
    >>> parts.forget(b"entity/a")
    >>> parts.changed_state()
    [(b'entity/a', None), (b'task', b'raw')]
    >>> parts.changed_state()
    []
    """

    def __init__(self, whose: str = "this party") -> None:
        self._whose = whose
        self._changed: dict[bytes, Any] = {}
        # By key, or prefix with its slash: takes the rest of the key, and the value.
        self._restore: dict[bytes, Callable[[bytes, bytes], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._changed)

    def single(
        self, row: StateRow, content: type[Content], restore: Callable[[Content], None]
    ) -> Callable[[Content], None]:
        """Register a row that is one part. Returns a function that remembers its value.

        content: the type of the value, in MessagePack; bytes: the value as it is.
        restore: called with a restored value. It raises BadRecord or ValueError for one that cannot have been
        written."""
        decode = _decoder(content)
        self.register(row.prefix, lambda name, value: restore(decode(value)))
        return partial(self.remember, row.prefix)

    def named(
        self,
        row: StateRow,
        name: Callable[[bytes], Name],
        content: type[Content],
        restore: Callable[[Name, Content], None],
    ) -> NamedParts[Name, Content]:
        """Register a row of parts that have names.

        name: decodes a name: ``check_name`` or ``int``.
        content, restore: as in :meth:`single`.
        """
        decode = _decoder(content)
        self.register(row.prefix, lambda rest, value: restore(name(rest), decode(value)))
        return NamedParts(self._changed, row.prefix)

    def register(self, prefix: bytes, restore: Callable[[bytes, bytes], None]) -> None:
        """Register the keys with this prefix, which is a row's, or a row's with a name and another slash.

        restore: called with the rest of the key, and the value.
        """
        assert prefix not in self._restore, f"{prefix.decode()} has two owners"
        self._restore[prefix] = restore

    def restore(self, key: bytes, value: bytes) -> None:
        """Let the owner of a part restore it. BadRecord for a key that no owner has registered."""
        ends = len(key), key.rfind(b"/") + 1, key.find(b"/") + 1
        end = next((end for end in ends if key[:end] in self._restore), None)
        if end is None:
            raise BadRecord("malformed", f"state {key[:60]!r} is not of {self._whose}")
        self._restore[key[:end]](key[end:], value)

    def remember(self, key: bytes, value: Any) -> None:
        """Set the value of the part ``key``.

        value: bytes, or anything that MessagePack can encode. :meth:`changed_state` encodes it, because most
            parts are forgotten or changed again before that. So after a later change of the object call
            ``remember`` again.
        """
        self._changed.pop(key, None)
        self._changed[key] = value

    def forget(self, key: bytes) -> None:
        """Delete the part ``key``."""
        self._changed[key] = None

    def changed_state(self) -> list[tuple[bytes, bytes | None]]:
        """Keys and values of what changed since the last call; None forgets the key."""
        encode = msgspec.msgpack.encode
        changed = [
            (key, value if value is None or isinstance(value, bytes) else encode(value))
            for key, value in self._changed.items()
        ]
        self._changed.clear()
        return changed


class NamedParts(Generic[Name, Content]):
    """Writes the parts of a row.

    changed: of the :class:`ChangedParts`, written without a call to it: most samples change a named part.
    """

    def __init__(self, changed: dict[bytes, Any], prefix: bytes) -> None:
        self._changed = changed
        self._prefix = prefix

    def remember(self, name: Name, content: Content) -> None:
        """As :meth:`ChangedParts.remember`."""
        key = self._prefix + str(name).encode()
        self._changed.pop(key, None)
        self._changed[key] = content

    def forget(self, name: Name) -> None:
        """Delete a part."""
        self._changed[self._prefix + str(name).encode()] = None


def _decoder(content: type[Content]) -> Callable[[bytes], Content]:
    return content if issubclass(content, bytes) else msgspec.msgpack.Decoder(content).decode


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
    check: raises BadRecord for numbers that the named array cannot have held.
    Raises BadRecord with reason malformed if the chunk belongs to none of the arrays.
    """
    parts = key.decode(errors="replace").split("/")
    array = arrays.get(parts[1]) if len(parts) == 3 and parts[0] == "array" and parts[2].isdecimal() else None
    begin = int(parts[2]) * (CHUNK_BYTES // array.itemsize) if array is not None else 0
    if array is None or begin >= len(array):
        raise BadRecord("malformed", f"state {key!r} is not of this model")
    part = array[begin : begin + CHUNK_BYTES // array.itemsize]
    numbers = decode_array(value, np.dtype(array.dtype).type, part.shape, parts[1])
    check(parts[1], numbers)
    part[:] = numbers
