"""Formats of users' records, found by name through the entry-point group ``streamfl.formats``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoints, entry_points
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from streamfl.contract.role import BadRecord, ConfigurationError, IgnoredRecord
from streamfl.records.csv_layout import Decimal

if TYPE_CHECKING:
    from streamfl.records.topic import RegistrySection

__all__ = ["Format", "FormatKeys", "format_named", "format_of", "is_textual", "without_value", "written_as"]

Decoded = TypeVar("Decoded")

# Keys of a topic's section that only some formats take.
SPECIAL_KEYS = ("schema_file", "message", "columns", "delimiter", "decimal", "check_schema")


class FormatKeys(Protocol):
    """What a format may need to know about its topic; a :class:`~streamfl.records.topic.TopicSection` has all
    of it."""

    @property
    def format(self) -> str: ...

    @property
    def schema_file(self) -> str | None: ...

    @property
    def message(self) -> str | None: ...

    @property
    def columns(self) -> Sequence[str] | None: ...

    @property
    def delimiter(self) -> str | None: ...

    @property
    def decimal(self) -> Decimal | None: ...

    @property
    def check_schema(self) -> bool | None: ...

    @property
    def registry(self) -> RegistrySection | None: ...


class Format(Protocol):
    """A format of records: JSON, MessagePack, …

    A class may have these attributes, each of which may be missing:
    ``textual``: every value is text, so that "21.5" is a number everywhere.
    ``tombstones``: a record without a value is no mistake.
    ``takes``: the ``SPECIAL_KEYS`` that it uses.
    ``for_topic``: a class method that makes the format from a topic's section and its name in the settings,
    or ConfigurationError. ``for_written``: the same from a section, its name, a topic and the type of
    everything that streamfl itself writes there."""

    def decoder(self, type: type[Decoded]) -> Callable[[bytes], Decoded]:
        """A function from bytes to ``type`` (a msgspec Struct or Any).

        It raises ValueError or msgspec.DecodeError, or, with a reason of its own, BadRecord, IgnoredRecord or
        NotYetReadable. For Any it returns plain dicts, lists, text, numbers, truth values, bytes and None.
        """

    def encode(self, content: Any) -> bytes:
        """The bytes of a mapping, sequence, text, number, Struct or None."""


def format_named(name: str, setting: str = "samples.format") -> Format:
    """The installed format called ``name``; ConfigurationError names ``setting`` and lists the known ones."""
    return cast(Format, _class_of(name, setting)())


def format_of(section: FormatKeys, setting: str = "samples") -> Format:
    """The format of a topic, made from its section.

    setting: the section's name. ConfigurationError if no such format is installed, what it needs is missing,
    or a key is given that it does not use.
    """
    found = _class_of(section.format, f"{setting}.format")
    takes = getattr(found, "takes", ())
    for key in SPECIAL_KEYS:
        if getattr(section, key) is not None and key not in takes:
            raise ConfigurationError(
                f'{setting}.{key} has no meaning with {setting}.format = "{section.format}"; leave it out'
            )
    return cast(Format, found.for_topic(section, setting) if hasattr(found, "for_topic") else found())


def written_as(section: FormatKeys, setting: str, topic: str, kind: type[Any]) -> Format:
    """The format of what streamfl itself writes to ``topic``, all of it of the type ``kind``;
    ConfigurationError as above."""
    found = _class_of(section.format, f"{setting}.format")
    return cast(
        Format, found.for_written(section, setting, topic, kind) if hasattr(found, "for_written") else found()
    )


def is_textual(format: Format) -> bool:
    """Whether every value is text, so that a number has to be read from it."""
    return bool(getattr(format, "textual", False))


def without_value(format: Format, what: str) -> BadRecord | IgnoredRecord:
    """The error to raise for a record without a value. what: a sample, a label, for the text."""
    if getattr(format, "tombstones", False):
        return IgnoredRecord("tombstone")
    return BadRecord("malformed", f"{what} without a value")


def _class_of(name: str, setting: str) -> Any:
    found = _installed_formats()
    for point in found:
        if point.name == name:
            return point.load()
    known = ", ".join(sorted({point.name for point in found})) or "none"
    raise ConfigurationError(f"{setting} = {name!r}: no such format is installed (known: {known})")


@functools.cache
def _installed_formats() -> EntryPoints:
    # Cached, because it reads every package's metadata.
    return entry_points(group="streamfl.formats")
