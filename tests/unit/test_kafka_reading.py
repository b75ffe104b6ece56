"""Reading committed records of given partitions, on a log without a cluster. Both Kafka connectors use this
reader."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pytest
from streamfl_connectors.reading import Logs, Reader, Readers
from streamfl_connectors.tables import Tables

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import BusUnavailable, TopicPartition, Unreadable

PLACE = ("numbers", 0)


class Log(Reader):
    """A reader on partitions that are lists of records. Missing offsets are markers, and reading stops at
    ``damaged``."""

    def __init__(
        self,
        *records: Record,
        end: int | None = None,
        damaged: int | None = None,
        patience: float = 0.0,
        begin: int = 0,
    ) -> None:
        super().__init__(patience)
        self.records = list(records)
        self.end = end if end is not None else 1 + max((record.offset for record in records), default=-1)
        self.damaged = damaged
        self.begin = begin
        self.stands: dict[TopicPartition, int | None] = {}
        self.closed = False
        self.waits_for_position = 0

    def go_to(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        self.stands = {place: max(self.begin, offset or 0) for place, offset in offsets.items()}

    def positions(self) -> dict[TopicPartition, int | None]:
        if self.waits_for_position:
            self.waits_for_position -= 1
            return dict.fromkeys(self.stands)
        return dict(self.stands)

    def first(self, place: TopicPartition) -> int:
        return self.begin

    def ends(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, self.end)

    def take(self, timeout: float, most: int) -> list[Record]:
        taken: list[Record] = []
        for place, position in self.stands.items():
            stop = self.damaged if self.damaged is not None else self.end
            mine = [
                r
                for r in self.records
                if (r.topic, r.partition) == place and (position or 0) <= r.offset < stop
            ][:most]
            taken += mine
            self.stands[place] = mine[-1].offset + 1 if mine and len(mine) == most else stop
        return taken

    def explain(self, place: TopicPartition, position: int | None) -> None:
        if self.damaged is not None and position == self.damaged:
            raise Unreadable(*place, position, "damaged")

    def close(self) -> None:
        self.closed = True


def record(
    offset: int, key: bytes | None = b"k", value: bytes | None = None, topic: str = "numbers"
) -> Record:
    return Record(topic, 0, offset, key, b"%d" % offset if value is None else value, (), 0.0)


def offsets(records: Iterator[Record] | list[Record]) -> list[int]:
    return [one.offset for one in records]


def test_a_partition_that_ends_in_a_marker_is_read_to_its_end() -> None:
    """Protects a restart: a marker follows the last record of a committed transaction, and no poll ever
    returns a marker."""
    log = Log(record(0), record(1), end=3)
    assert offsets(log.read_whole([PLACE])) == [0, 1]
    log.records.append(record(3))
    log.end = 5
    assert offsets(log.read_to_end()) == [3]


def test_a_position_that_is_not_known_yet_is_not_the_end() -> None:
    """Protects restored state: a partition whose position is not known yet must not count as read or
    empty."""
    log = Log(record(0), patience=60.0)
    log.waits_for_position = 3
    assert offsets(log.read_whole([PLACE])) == [0]


def test_no_partitions_are_read_at_once() -> None:
    """Protects a role without tables: there is nothing to wait for."""
    assert offsets(Log(record(0)).read_whole([])) == []


def test_what_cannot_be_read_is_told_before_that_nothing_came() -> None:
    """Protects the operator: of two reasons for a stuck partition, the one that can be fixed is reported."""
    log = Log(record(0), record(1), damaged=1)
    seen: list[Record] = []
    with pytest.raises(Unreadable, match="numbers-0-1 cannot be read: damaged"):
        seen.extend(log.read_whole([PLACE]))
    # A log that reports more records but returns none.
    silent = Log(record(0), end=5, damaged=1)
    silent.explain = lambda place, position: None  # type: ignore[method-assign]
    with pytest.raises(BusUnavailable, match="nothing could be read from 'numbers'"):
        list(silent.read_whole([PLACE]))
    with pytest.raises(BusUnavailable, match="nothing could be read from 'numbers'"):
        silent.read_edges(PLACE, 3)


@pytest.mark.parametrize(
    ("end", "begin", "count", "expected"),
    [(10, 0, 2, [0, 1, 8, 9]), (3, 0, 2, [0, 1, 2]), (10, 7, 2, [7, 8, 9]), (10, 0, 0, []), (0, 0, 3, [])],
)
def test_the_edges_of_a_partition_come_once_and_in_order(
    end: int, begin: int, count: int, expected: list[int]
) -> None:
    """Protects the preflight with either library: first and last records, also if they overlap or old ones
    were deleted."""
    log = Log(*(record(offset) for offset in range(begin, end)), end=end, begin=begin)
    assert offsets(log.read_edges(PLACE, count)) == expected


def test_tables_come_as_compaction_would_leave_them() -> None:
    """Protects memory and the first prediction: from a long log the newest record of each key, and all
    without a key."""
    log = Log(record(0, b"a"), record(1, None), record(2, b"b"), record(3, None), record(4, b"a"))
    tables = Tables(lambda: log, [PLACE])
    assert offsets(tables.read_whole()) == [1, 2, 3, 4]
    assert tables.read_whole() == []
    log.records.append(record(5, b"a"))
    log.end = 6
    assert offsets(tables.read_to_end()) == [5]


def test_tables_that_cannot_be_read_are_read_whole_again() -> None:
    """Protects a worker from an incomplete model: after a failed first read, the next one begins at the
    start."""
    broken, whole = Log(record(0, b"a"), record(1, b"b"), damaged=1), Log(record(0, b"a"), record(1, b"b"))
    logs = iter([broken, whole])
    tables = Tables(lambda: next(logs), [PLACE])
    with pytest.raises(Unreadable):
        tables.read_whole()
    assert broken.closed
    assert offsets(tables.read_whole()) == [0, 1]


def test_a_reader_is_used_again_unless_it_failed() -> None:
    """Protects the time to restore many partitions, and the next restore from a reader at an arbitrary
    position."""
    made: list[Log] = []

    def make() -> Log:
        made.append(Log(record(0)))
        return made[-1]

    readers = Readers(make)
    for _ in range(2):
        with readers.one() as reader:
            assert offsets(reader.read_whole([PLACE])) == [0]
    assert len(made) == 1
    with pytest.raises(BusUnavailable), readers.one():
        raise BusUnavailable
    assert made[0].closed
    with readers.one() as reader:
        assert reader is made[1]

    def begun() -> Iterator[Record]:
        with readers.one() as reader:
            yield from reader.read_whole([PLACE])

    # Who wants the first record alone reads no further.
    assert next(begun()).offset == 0
    assert not made[1].positions()
    with readers.one() as late, readers.one() as other:
        assert late is made[1]
        readers.close()
    assert other is made[2]
    assert made[1].closed
    assert made[2].closed


class Numbers(Logs):
    """Logs of a topic with one partition of five records."""

    def __init__(self) -> None:
        super().__init__(lambda topics: dict.fromkeys(topics, 1), 1.0)
        self.last = Log(*(record(offset) for offset in range(5)))

    def reader(self) -> Log:
        return self.last

    def ends(self, places: object, patience: float | None = None) -> dict[TopicPartition, int]:
        return {PLACE: 5}

    def ends_soon(self, places: object) -> dict[TopicPartition, int]:
        return {PLACE: 5}

    def first_since(self, places: object, at: float) -> dict[TopicPartition, int]:
        return {PLACE: -1 if at > 4 else max(0, int(at))}

    def ends_of(self, epochs: object) -> dict[TopicPartition, int]:
        return {}

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        return iter(())


@pytest.mark.parametrize(("limit", "expected"), [(None, 5), (7, 5), (3, 3), (0, 0), (-1, 0)])
def test_reading_a_topic_ends_at_the_limit(limit: int | None, expected: int) -> None:
    """Protects the preflight, which reads a few records of a topic with millions. The reader is always
    returned."""
    logs = Numbers()
    assert len(list(logs.read("numbers", limit))) == expected
    assert logs.last.closed == (limit is None or limit > 0)


def test_a_partition_that_is_not_there_is_refused() -> None:
    """Protects users who mistype a partition from waiting for records that cannot come."""
    with pytest.raises(ConfigurationError, match="topic 'numbers' has 1 partitions, there is no partition 1"):
        Numbers().peek("numbers", [0, 1], 2)


def test_a_time_after_the_last_record_is_the_end() -> None:
    """Protects a reset to a time: Kafka returns -1 for a time after the last record, and a group at -1 would
    begin at 0."""
    assert [Numbers().offsets("numbers", at)[0] for at in (3.0, 9.0)] == [3, 5]
