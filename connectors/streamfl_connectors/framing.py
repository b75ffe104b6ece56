"""The bytes before a record whose schema is in a registry: a zero byte, the schema's number, and Protobuf's
message indexes."""

from __future__ import annotations

import struct

from streamfl.contract.role import ConfigurationError
from streamfl.records.formats import FormatKeys

__all__ = ["framed", "is_framed", "missing_extra", "no_schema", "number_of", "told_of_frame", "with_indexes"]

LENGTH = 5
MOST_INDEXES = 100


def is_framed(value: bytes) -> bool:
    """Whether a record begins like one whose schema is in a registry."""
    return len(value) >= LENGTH and value[0] == 0


def number_of(value: bytes) -> int:
    """The schema's number; ValueError if the record names none.

    >>> number_of(framed(7, b"content"))
    7
    """
    if not is_framed(value):
        raise ValueError(
            "it names no schema of a registry (byte 0 and four bytes with a number are expected first)"
        )
    return int(struct.unpack_from(">I", value, 1)[0])


def framed(number: int, content: bytes) -> bytes:
    """The content after the schema's number."""
    return struct.pack(">bI", 0, number) + content


def told_of_frame(value: bytes) -> str | None:
    """The error text for a record with a registry's schema where no registry is expected; None for another
    record."""
    if not is_framed(value):
        return None
    return (
        "it begins as the records of a schema registry do (byte 0, then the schema's number "
        f"{number_of(value)}): set format to "
        '"avro", "protobuf", "json-schema" or "debezium", and give [registry] url'
    )


def with_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """The indexes of a Protobuf record's message in its schema, outermost first, and where the message
    begins; or ValueError."""
    count, place = _varint(value, LENGTH)
    if count == 0:
        return (0,), place
    if not 0 < count <= MOST_INDEXES:
        raise ValueError(f"{count} message indexes, 1 to {MOST_INDEXES} are expected")
    indexes = []
    for _ in range(count):
        index, place = _varint(value, place)
        indexes.append(index)
    return tuple(indexes), place


def missing_extra(setting: str, format: str, extra: str, missing: ImportError) -> ConfigurationError:
    """The error if a format's library is not installed."""
    return ConfigurationError(
        f"{setting}.format = {format!r} needs {missing.name}: pip install 'streamfl[{extra}]'"
    )


def no_schema(section: FormatKeys, setting: str) -> ConfigurationError:
    """The error if no schema is given."""
    return ConfigurationError(
        f'{setting}.format = "{section.format}": where is the schema? Give [registry] url if records name '
        "one of a schema "
        f"registry, or {setting}.schema_file if they do not"
    )


def _varint(value: bytes, place: int) -> tuple[int, int]:
    """A zigzag-encoded whole number and the place after it."""
    number = 0
    for shift in range(0, 35, 7):
        if place >= len(value):
            break
        byte = value[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place
    raise ValueError("its message indexes are cut short or too large")
