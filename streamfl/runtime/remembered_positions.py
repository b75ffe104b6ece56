"""How a changelog holds positions in inputs, and facts about them: a number by a topic's or a fact's name."""

from __future__ import annotations

import struct

from streamfl.runtime.bus import Outgoing
from streamfl.runtime.checksum import with_checksum
from streamfl.runtime.input_topics import FACT

__all__ = ["POSITION_KEY", "is_position", "position_of", "position_record"]

POSITION_KEY = b"\0position/"


def is_position(key: bytes) -> bool:
    """Whether the key is that of a position, and not that of a fact."""
    return key.startswith(POSITION_KEY) and not key.startswith(POSITION_KEY + FACT.encode())


def position_record(changelog: str, partition: int, name: str, number: int | None) -> Outgoing:
    """The changelog's record of a position or fact; None forgets it."""
    value = None if number is None else struct.pack("<q", number)
    return with_checksum(changelog, partition, POSITION_KEY + name.encode(), value)


def position_of(key: bytes, value: bytes) -> tuple[str, int]:
    """The name and the number of such a record; ValueError if it is none."""
    try:
        (number,) = struct.unpack("<q", value)
        name = key.removeprefix(POSITION_KEY).decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"it is not a position: {error}") from None
    if number < 0:
        raise ValueError(f"{number} is not a position")
    return name, number
