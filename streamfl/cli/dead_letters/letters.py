"""Dead letters and the notes of their replays, as they lie in the dead letters' topic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from streamfl.printable import printable
from streamfl.role import ConfigurationError, Record
from streamfl.runtime.bus import Bus
from streamfl.runtime.pending_step import OTHERS_NAMES

__all__ = ["REPLAYED", "Letter", "Note", "check_reasons", "place_of", "read_letter", "read_note"]

# The header of a note.
REPLAYED = "replayed"
CAUSE = ("topic", "partition", "offset", "error", "text")
TRUNCATED_FROM = "truncated_from"
MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter.

    record: as it lies among the dead letters.
    topic, partition, offset: where the refused record lay.
    reason, text: why it was refused.
    truncated_from: the bytes that it had, if it was cut short.
    headers: those that the refused record had.
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
    """What a transaction of a replay sent back.

    position: grows with each note of a partition.
    offsets: of the letters, in the note's own partition.
    """

    position: int
    offsets: tuple[int, ...]


def read_letter(record: Record) -> Letter | None:
    """The letter in ``record``; None if it is none.

    The headers at its end say why it was refused, before these the same as other systems name it. The rest are the sender's and may
    have any name.
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
    said = [content.decode(errors="replace") for content in (topic, reason, text)]
    return Letter(record, said[0], place[0], place[1], said[1], said[2], truncated, own)


def read_note(record: Record) -> Note | None:
    """The note in ``record``; None if it is none."""
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
    """ConfigurationError if there are letters, and none of one of these reasons: it is mistyped, or nothing is left of it."""
    letters = filter(None, map(read_letter, bus.read(topic)))
    counts = Counter(letter.reason for letter in letters)
    unknown = sorted(reasons - counts.keys())
    if unknown and counts:
        found = ", ".join(f"{printable(reason)} ({count})" for reason, count in counts.most_common(MOST_REASONS))
        raise ConfigurationError(f"--reason {', '.join(unknown)}: no letter in {topic} has this reason; there are: {found}")


def place_of(record: Record) -> str:
    """Where the record lies."""
    return f"{record.topic}-{record.partition}-{record.offset}"
