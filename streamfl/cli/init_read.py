"""The records that ``streamfl init`` looks at: some of a topic, or the first lines of a file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streamfl.cli.preflight import counted
from streamfl.records.fields import shown
from streamfl.records.guessed_format import GuessedFormat, guess_format
from streamfl.records.keys import KeySection, key_reader
from streamfl.records.samples import DataError
from streamfl.records.topic import TopicSection
from streamfl.role import ConfigurationError, NotYetReadable, PeerError, Record
from streamfl.runtime.bus import Bus, BusUnavailable

__all__ = ["Seen", "lines_of", "look", "records_of", "topic_section"]

# Of so many partitions, the first and the last records; of a file, the first lines.
MOST_PARTITIONS = 8
EDGE_RECORDS = 32
MOST_LINES = 1_000
MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Seen:
    """Some records of a topic, and how they are written.

    topic: its name, or what it will be. partitions: of the topic; None: it is a file.
    """

    topic: str
    records: Sequence[Record]
    format: GuessedFormat
    partitions: int | None

    def keys(self, said: Mapping[str, Any]) -> list[str]:
        """The names in the records' keys. said: how they are read, as a topic's section says it. PeerError if a key has no name."""
        told = {key: value for key, value in said.items() if key in ("key", "key_field")}
        section = KeySection.model_validate({"topic": self.topic, **told})
        read = key_reader(section, "samples")
        found = [read(record.key) for record in self.records]
        for name in found:
            # Text with control characters in it is a number in binary, and an object in JSON has a name in one of its fields.
            if not name.isprintable() or name.startswith("{"):
                raise PeerError("malformed", f"the record key {shown(name)} is no plain name")
        return found

    def told(self) -> str:
        """How many records, of what."""
        of = "a file" if self.partitions is None else f"{self.topic}, which has {counted(self.partitions, 'partition')}"
        return f"{counted(len(self.records), 'record')} of {of}"


def records_of(bus: Bus, topic: str, deadline: float) -> tuple[list[Record], int]:
    """Some records of a topic, and its number of partitions. No partition is begun after the deadline.

    ConfigurationError if there is no such topic; DataError if nothing lies in it.
    """
    state = bus.describe([topic]).get(topic)
    if state is None or state.error is not None:
        raise ConfigurationError(f"topic {topic} {'does not exist' if state is None else state.error}")
    count = min(state.partitions, MOST_PARTITIONS)
    found: list[Record] = []
    for place in range(count):
        if found and time.monotonic() > deadline:
            break
        found += bus.peek(topic, [place * state.partitions // count], EDGE_RECORDS)
    found = [record for record in found if record.value]
    if not found:
        raise DataError(f"topic {topic} has no records with a value: write some, or give a file, --from-file")
    return found, state.partitions


def lines_of(path: Path) -> list[Record]:
    """The first lines of a file, each as a record; DataError if it has none."""
    found: list[Record] = []
    left = MOST_BYTES
    try:
        with closing(path.open("rb")) as lines:
            while left > 0 and len(found) < MOST_LINES and (line := lines.readline(left)):
                left -= len(line)
                if line.strip():
                    found.append(Record(path.name, 0, len(found), None, line.rstrip(b"\r\n")))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not found:
        raise DataError(f"{path}: has no lines")
    return found


def look(records: Sequence[Record], given: TopicSection, partitions: int | None, deadline: float) -> Seen:
    """What these records are. given: as :func:`streamfl.records.guessed_format.guess_format` has it."""
    values: list[bytes] = [record.value for record in records if record.value is not None]
    try:
        return Seen(given.topic, records, guess_format(values, given, deadline), partitions)
    except NotYetReadable as error:
        raise BusUnavailable(str(error)) from None


def topic_section(topic: str, **keys: Any) -> TopicSection:
    """What is known of a topic, without what is None. ConfigurationError where one of it cannot be."""
    try:
        return TopicSection(topic=topic, **{key: value for key, value in keys.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{'.'.join(map(str, first['loc']))} = {first['input']!r}: {said}") from None
