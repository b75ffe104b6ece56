"""Reads records for ``streamfl init``: some of a topic, or the first lines of a file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from streamfl.contract.role import (
    BadRecord,
    ConfigurationError,
    DataError,
    IgnoredRecord,
    NotYetReadable,
    Record,
)
from streamfl.records.fields import shown
from streamfl.records.format_inference import InferredFormat, infer_format
from streamfl.records.keys import KeySection, key_reader
from streamfl.records.topic import TopicSection
from streamfl.runtime.bus import Bus, BusUnavailable
from streamfl.terminal.console import say
from streamfl.terminal.words import counted

__all__ = ["RecordSample", "lines_of", "look", "records_of", "topic_section"]

# The most partitions of a topic, and the number of first and of last records in each; the most lines and
# bytes of a file.
MOST_PARTITIONS = 8
EDGE_RECORDS = 32
MOST_LINES = 1_000
MOST_BYTES = 16 << 20
# The characters of a CSV line without values.
BLANK = b" \t\r\n,;|"


@dataclass(frozen=True)
class RecordSample:
    """Some records of a topic or file, and their format.

    topic: its name, or its future name.
    partitions: the topic's number; None: it is a file.
    file: the file.
    whole: whether these are all records.
    """

    topic: str
    records: Sequence[Record]
    format: InferredFormat
    partitions: int | None
    file: Path | None = None
    whole: bool = False

    def readable(self) -> list[tuple[Record, dict[str, Any]]]:
        """The readable records, each with its content."""
        both = zip(self.records, self.format.contents, strict=True)
        return [(record, content) for record, content in both if content is not None]

    def everything(self) -> Iterator[dict[str, Any]]:
        """All readable contents of the file, or of the records of a topic that were looked at."""
        if self.file is None or self.whole:
            yield from self.format.read
            return
        decode = self.format.format.decoder(Any)
        for record in _lines(self.file):
            try:
                content = decode(record.value or b"")
            except (
                ValueError,
                msgspec.DecodeError,
                RecursionError,
                BadRecord,
                IgnoredRecord,
                NotYetReadable,
            ):
                continue
            if isinstance(content, dict) and content:
                yield content

    def keys(self, said: Mapping[str, Any]) -> list[str]:
        """The names in the records' keys. said: how to read keys, as in a topic's section. BadRecord if a key
        has no name."""
        told = {key: value for key, value in said.items() if key in ("key", "key_field")}
        section = KeySection.model_validate({"topic": self.topic, **told})
        read = key_reader(section, "samples")
        found = [read(record.key) for record in self.records]
        for name in found:
            # A text with control characters is a binary number, and a JSON object has the name in one of its
            # fields.
            if not name.isprintable() or name.startswith("{"):
                raise BadRecord("malformed", f"the record key {shown(name)} is no plain name")
        return found

    def told(self) -> str:
        """The number of records and their source, in words."""
        count = counted(len(self.records), "record")
        if self.partitions is None:
            return f"{count} of a file" if self.whole else f"the first {count} of a file"
        return f"{count} of {self.topic}, which has {counted(self.partitions, 'partition')}"


def records_of(bus: Bus, topic: str, deadline: float) -> tuple[list[Record], int, bool]:
    """Some records of a topic, its number of partitions, and whether these are all. No partition is begun
    after the deadline, which is told.

    ConfigurationError if there is no such topic; DataError if it has no records.
    """
    state = bus.describe([topic]).get(topic)
    if state is None or state.error is not None:
        raise ConfigurationError(f"topic {topic} {'does not exist' if state is None else state.error}")
    count = min(state.partitions, MOST_PARTITIONS)
    found: list[Record] = []
    whole = count == state.partitions
    for place in range(count):
        if found and time.monotonic() > deadline:
            whole = False
            say(
                f"time is over after {place} of {counted(count, 'partition')} of {topic}: what is written of "
                "clients, ranges and gaps is known from these alone. --seconds gives more time"
            )
            break
        found += bus.peek(topic, [place * state.partitions // count], EDGE_RECORDS)
    whole &= _without_gaps(found)
    found = [record for record in found if record.value]
    if not found:
        raise DataError(f"topic {topic} has no records with a value: write some, or give a file, --from-file")
    return found, state.partitions, whole


def _without_gaps(records: Sequence[Record]) -> bool:
    """Whether there are no records between the first and the last ones of each partition."""
    following = [
        (one, other) for one, other in itertools.pairwise(records) if one.partition == other.partition
    ]
    return all(one.offset + 1 == other.offset for one, other in following)


def lines_of(path: Path) -> tuple[list[Record], bool]:
    """The first lines of a file, each as a record, and whether these are all; DataError if it has none."""
    found: list[Record] = []
    left = MOST_BYTES
    for record in _lines(path):
        left -= len(record.value or b"")
        if left < 0 or len(found) == MOST_LINES:
            return found, False
        found.append(record)
    if not found:
        raise DataError(f"{path}: has no lines")
    return found, True


def _lines(path: Path) -> Iterator[Record]:
    """The lines of a file that have more than separators."""
    try:
        with closing(path.open("rb")) as lines:
            number = 0
            while line := lines.readline(MOST_BYTES):
                if line.strip(BLANK):
                    yield Record(path.name, 0, number, None, line.rstrip(b"\r\n"))
                    number += 1
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def look(
    records: Sequence[Record],
    given: TopicSection,
    partitions: int | None,
    deadline: float,
    file: Path | None,
    whole: bool,
) -> RecordSample:
    """Infer the format of these records. given: as in
    :func:`streamfl.records.format_inference.infer_format`."""
    values: list[bytes] = [record.value for record in records if record.value is not None]
    try:
        found = infer_format(values, given, deadline)
    except NotYetReadable as error:
        raise BusUnavailable(str(error)) from None
    if found.headers:
        # Lines that name the columns are no records.
        records = [record for place, record in enumerate(records) if place not in found.headers]
        found = found.without_headers()
    return RecordSample(given.topic, records, found, partitions, file, whole)


def topic_section(topic: str, **keys: Any) -> TopicSection:
    """The section of a topic from these keys, without those that are None. ConfigurationError if a value is
    not allowed."""
    try:
        return TopicSection(topic=topic, **{key: value for key, value in keys.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{'.'.join(map(str, first['loc']))} = {first['input']!r}: {said}") from None
