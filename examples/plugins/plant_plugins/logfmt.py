"""The format ``logfmt``: a record is a line of ``name=value``, as many log shippers write it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

__all__ = ["Logfmt"]

Decoded = TypeVar("Decoded")


class Logfmt:
    """Lines such as ``press=a temp=21.5 note="door open"``, in UTF-8. A name without a value is a missing
    one.

    >>> Logfmt().decoder(dict)(b'press=a temp=21.5 note="door open"')
    {'press': 'a', 'temp': '21.5', 'note': 'door open'}
    """

    # Every value is text, so that "21.5" is a number wherever one is expected.
    textual = True

    def decoder(self, type: type[Decoded]) -> Callable[[bytes], Decoded]:
        """A function from bytes to ``type``; what is no such line is a ValueError, and streamfl makes a dead
        letter of it."""
        if type is Any:
            return cast(Callable[[bytes], Decoded], self._read)
        return lambda value: msgspec.convert(self._read(value), type, strict=False)

    def encode(self, content: Any) -> bytes:
        """The line of a mapping or Struct; what is None is left out."""
        pairs = msgspec.to_builtins(content).items()
        return " ".join(
            f"{name}={_quoted(str(value))}" for name, value in pairs if value is not None
        ).encode()

    def _read(self, value: bytes) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for pair in shlex.split(value.decode("utf-8")):
            name, is_there, text = pair.partition("=")
            if not name or not is_there:
                raise ValueError(f"{pair[:40]!r} is no name=value")
            found[name] = text or None
        return found


def _quoted(text: str) -> str:
    return text if text and not set(text) & set(" \t\n\"'\\=") else shlex.quote(text)
