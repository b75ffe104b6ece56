"""Dead letters and the notes of their replays, as records of the dead letters' topic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import Bus
from streamfl.runtime.pending_step import OTHERS_NAMES
from streamfl.terminal.printable import LONGEST_TEXT, printable

__all__ = ["REPLAYED", "Letter", "Note", "check_reasons", "place_of", "read_letter", "read_note"]

# The header of a note.
REPLAYED = "replayed"
CAUSE = ("topic", "partition", "offset", "error", "text")
TRUNCATED_FROM = "truncated_from"
MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter.

    record: the record in the dead letters' topic.
    topic, partition, offset: the place of the refused record.
    reason, text: why it was refused.
    truncated_from: its original size in bytes, if it was cut short.
    headers: the headers of the refused record.
    """

    record: Record
    topic: str
    partition: int
    offset: int
    reason: str
    text: str
    truncated_from: int | None
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A note of the letters that a transaction of a replay sent back.

    position: grows with each note of a partition.
    offsets: the letters' offsets, in the note's own partition.
    """

    position: int
    offsets: tuple[int, ...]


def read_letter(record: Record) -> Letter | None:
    """The letter in ``record``; None if it is no letter.

    The last headers have the cause, and those before them the same cause under other systems' names. The rest
    are the sender's own and may have any name.
    """
    headers = record.headers
    truncated = _number(headers[-1][1]) if headers and headers[-1][0] == TRUNCATED_FROM else None
    if truncated is not None:
        headers = headers[:-1]
    own, cause = headers[: -len(CAUSE)], headers[-len(CAUSE) :]
    if tuple(name for name, _ in cause) != CAUSE:
        return None
    topic, partition, offset, reason, text = (content for _, content in cause)
    place = _number(partition), _number(offset)
    if place[0] is None or place[1] is None:
        return None
    if tuple(name for name, _ in own[-len(OTHERS_NAMES) :]) == OTHERS_NAMES:
        own = own[: -len(OTHERS_NAMES)]
    # No worker writes a longer text, but a stranger may.
    said = [content[:LONGEST_TEXT].decode(errors="replace") for content in (topic, reason, text)]
    return Letter(record, said[0], place[0], place[1], said[1], said[2], truncated, own)


def read_note(record: Record) -> Note | None:
    """The note in ``record``; None if it is no note."""
    if len(record.headers) != 1 or record.headers[0][0] != REPLAYED:
        return None
    position = _number(record.headers[0][1])
    try:
        offsets = msgspec.json.decode(record.value or b"", type=tuple[int, ...])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if position is None else Note(position, offsets)


def _number(content: bytes) -> int | None:
    return int(content) if content.isdigit() and len(content) < 20 else None


def check_reasons(bus: Bus, topic: str, reasons: frozenset[str]) -> None:
    """ConfigurationError if there are letters, but none with one of the reasons: it is mistyped, or its
    letters are gone."""
    letters = filter(None, map(read_letter, bus.read(topic)))
    counts = Counter(letter.reason for letter in letters)
    unknown = sorted(reasons - counts.keys())
    if unknown and counts:
        found = ", ".join(
            f"{printable(reason)} ({count})" for reason, count in counts.most_common(MOST_REASONS)
        )
        raise ConfigurationError(
            f"--reason {', '.join(unknown)}: no letter in {topic} has this reason; there are: {found}"
        )


def place_of(record: Record) -> str:
    """The record's place: topic-partition-offset."""
    return f"{record.topic}-{record.partition}-{record.offset}"
