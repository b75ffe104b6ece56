"""How the user's records are written: JSON and MessagePack.

Others register in the entry-point group ``streamfl.formats``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

__all__ = ["Json", "MessagePack"]

Decoded = TypeVar("Decoded")


class Json:
    """JSON in UTF-8. Numbers that JSON does not have (NaN, infinities) are written as null.

    >>> Json().decoder(dict)(b'{"a": 1}')
    {'a': 1}
    """

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()

    def decoder(self, type: type[Decoded]) -> Callable[[bytes], Decoded]:
        """A function from bytes to ``type``; it raises msgspec.DecodeError, or ValueError where ``type`` is Any."""
        # Many writers do put NaN into JSON. Reading anything at all, one wants to see that it was one.
        return json.loads if type is Any else msgspec.json.Decoder(type).decode

    def encode(self, content: Any) -> bytes:
        """The JSON of a mapping, sequence, text, number, Struct or None."""
        return self._encoder.encode(content)


class MessagePack:
    """MessagePack.

    >>> MessagePack().decoder(dict)(MessagePack().encode({"a": 1}))
    {'a': 1}
    """

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()

    def decoder(self, type: type[Decoded]) -> Callable[[bytes], Decoded]:
        """A function from bytes to ``type``; it raises msgspec.DecodeError."""
        return msgspec.msgpack.Decoder(type).decode

    def encode(self, content: Any) -> bytes:
        """The MessagePack of a mapping, sequence, text, number, Struct or None."""
        return self._encoder.encode(content)
