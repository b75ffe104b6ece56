"""How the user's records are written: formats, found by name through the entry-point group ``streamfl.formats``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import EntryPoints, entry_points
from typing import Any, Protocol, TypeVar, cast

from streamfl.role import ConfigurationError

__all__ = ["Format", "format_named"]

Decoded = TypeVar("Decoded")


class Format(Protocol):
    """How records are written: JSON, MessagePack, …"""

    def decoder(self, type: type[Decoded]) -> Callable[[bytes], Decoded]:
        """A function from bytes to ``type`` (a msgspec Struct or Any) that raises ValueError or msgspec.DecodeError."""

    def encode(self, content: Any) -> bytes:
        """The bytes of a mapping, sequence, text, number, Struct or None."""


def format_named(name: str, setting: str = "samples.format") -> Format:
    """The installed format called ``name``; ConfigurationError names ``setting`` and lists the known ones."""
    found = _installed_formats()
    for point in found:
        if point.name == name:
            return cast(Format, point.load()())
    known = ", ".join(sorted({point.name for point in found})) or "none"
    raise ConfigurationError(f"{setting} = {name!r}: no such format is installed (known: {known})")


@functools.cache
def _installed_formats() -> EntryPoints:
    # Every package's metadata is read for it.
    return entry_points(group="streamfl.formats")
