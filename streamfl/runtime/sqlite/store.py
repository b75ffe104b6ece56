"""The topics of an SQLite bus and their logs: written, read, compacted.

A record's id is made of its log's number and its offset, so that one index, in the order of writing, serves
every read."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.assignment import partition_of
from streamfl.runtime.bus import HOW_TO_CREATE, Outgoing
from streamfl.runtime.sqlite.file import Database

__all__ = ["Store", "Topic"]

OFFSET_BITS = 40
OFFSET_MASK = (1 << OFFSET_BITS) - 1

# The newest records of a compacted topic, which are kept, so that a reader a little behind gets every version
# and every tombstone.
RECENT = 5_000
# Records in a slice. Compaction and retention do a few slices with each commit.
SLICE = 1_000

Headers = tuple[tuple[str, bytes], ...]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Headers).decode


class Topic(NamedTuple):
    """A topic as it was created. Its partitions have consecutive logs, from ``first_log`` on."""

    name: str
    first_log: int
    partitions: int
    compacted: bool
    options: dict[str, str]

    def log(self, partition: int) -> int:
        """The number of the partition's log; ConfigurationError if there is no such partition."""
        if not 0 <= partition < self.partitions:
            raise ConfigurationError(
                f"topic {self.name!r} has {self.partitions} partitions, there is no partition {partition}"
            )
        return self.first_log + partition

    def record(self, row: tuple[Any, ...]) -> Record:
        """The record in a row of the table ``records``."""
        number, key, value, headers, timestamp = row
        partition = (number >> OFFSET_BITS) - self.first_log
        return Record(
            self.name,
            partition,
            number & OFFSET_MASK,
            key,
            value,
            _decode(headers) if headers else (),
            timestamp,
        )


class Store:
    """The topics and records in a file.

    database: the connection for queries outside a caller's transaction.
    open: makes another connection.
    clock: the time of new records, in seconds.
    retention: age in seconds at which records of topics that are not compacted are deleted.
    """

    def __init__(
        self, database: Database, open: Callable[[], Database], clock: Callable[[], float], retention: float
    ) -> None:
        self._database = database
        self._open = open
        self._clock = clock
        self._retention = retention
        self._topics: dict[str, Topic] = {}
        # Begins with the process's number, so that processes that write single records without keys use
        # different partitions.
        self.keyless = os.getpid()

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet; existing ones stay as they are."""
        with self._database.writing() as connection:
            (first,) = connection.execute("SELECT coalesce(max(id) + 1, 0) FROM logs").fetchone()
            for spec in topics:
                count = spec.partitions or 1
                made = connection.execute(
                    "INSERT OR IGNORE INTO topics VALUES (?, ?, ?, ?, ?)",
                    (spec.name, first, count, spec.compacted, json.dumps({**spec.preferred, **spec.options})),
                )
                if made.rowcount:
                    connection.executemany(
                        "INSERT INTO logs VALUES (?, 0, 0)", [(first + number,) for number in range(count)]
                    )
                    first += count

    def topic(self, name: str) -> Topic:
        """The topic; ConfigurationError if there is none."""
        with self._database.reading() as connection:
            return self._require(connection, name)

    def look_up(self, connection: sqlite3.Connection, name: str) -> Topic | None:
        """The topic as it is in the file now; None if there is none."""
        row = connection.execute(
            "SELECT first_log, partitions, compacted, options FROM topics WHERE name = ?", (name,)
        ).fetchone()
        if row is None:
            return None
        first, partitions, compacted, options = row
        return Topic(name, first, partitions, bool(compacted), json.loads(options))

    def scan(self, topic: Topic, first_log: int, logs: int, limit: int | None = None) -> Iterator[Record]:
        """The records of consecutive logs of a topic, as they were at the first record."""
        # On a connection of its own, because one statement is one view of the file for as long as it is read
        # from.
        database = self._open()
        try:
            with database.failing():
                for row in database.connection.execute(
                    "SELECT * FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
                    (
                        first_log << OFFSET_BITS,
                        first_log + logs << OFFSET_BITS,
                        -1 if limit is None else limit,
                    ),
                ):
                    yield topic.record(row)
        finally:
            database.close()

    def since(
        self, connection: sqlite3.Connection, topic: Topic, partition: int, offset: int, limit: int = -1
    ) -> list[Record]:
        """The records of a partition from ``offset`` on, at most ``limit``; -1: all."""
        log = topic.log(partition)
        rows = connection.execute(
            "SELECT * FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            ((log << OFFSET_BITS) + offset, log + 1 << OFFSET_BITS, limit),
        )
        return [topic.record(row) for row in rows]

    def edges(self, connection: sqlite3.Connection, topic: Topic, partition: int, count: int) -> list[Record]:
        """The first and the last ``count`` records of a partition, in order and each once."""
        log = topic.log(partition)
        found: dict[int, Any] = {}
        for order in ("ASC", "DESC"):
            rows = connection.execute(
                f"SELECT * FROM records WHERE id >= ? AND id < ? ORDER BY id {order} LIMIT ?",
                (log << OFFSET_BITS, log + 1 << OFFSET_BITS, count),
            )
            found.update((row[0], row) for row in rows)
        return [topic.record(found[key]) for key in sorted(found)]

    def bounds(self, connection: sqlite3.Connection, topic: Topic, partition: int) -> tuple[int, int]:
        """The first offset that may still have a record, and the offset after the last record."""
        end, tidy = connection.execute(
            "SELECT end, tidy FROM logs WHERE id = ?", (topic.log(partition),)
        ).fetchone()
        # A compacted topic keeps some of its oldest records.
        return (0 if topic.compacted else tidy), end

    def offset_at(self, connection: sqlite3.Connection, topic: Topic, partition: int, at: float) -> int:
        """The offset of a partition's first record of that time or later; if there is none, the offset after
        the last record."""
        log = topic.log(partition)
        row = None
        if at < math.inf:
            row = connection.execute(
                "SELECT id FROM records WHERE id >= ? AND id < ? AND timestamp >= ? ORDER BY id LIMIT 1",
                (log << OFFSET_BITS, log + 1 << OFFSET_BITS, at),
            ).fetchone()
        return self.bounds(connection, topic, partition)[1] if row is None else int(row[0]) & OFFSET_MASK

    def append(self, connection: sqlite3.Connection, records: Iterable[Outgoing]) -> None:
        """Append records within the transaction that the caller has begun."""
        by_log: dict[int, tuple[Topic, list[Outgoing]]] = {}
        for record in records:
            topic = self._require(connection, record.topic)
            log = topic.log(self._partition_for(record, topic))
            by_log.setdefault(log, (topic, []))[1].append(record)
        now = self._clock()
        for log, (topic, mine) in by_log.items():
            end, tidy = connection.execute("SELECT end, tidy FROM logs WHERE id = ?", (log,)).fetchone()
            first = (log << OFFSET_BITS) + end
            connection.executemany(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?)",
                [
                    (
                        first + at,
                        one.key,
                        one.value,
                        _encode(one.headers) if one.headers else None,
                        one.written_at(now),
                    )
                    for at, one in enumerate(mine)
                ],
            )
            end += len(mine)
            # Twice as many records as came in, so that the part that waits for compaction does not grow.
            tidy = self._tidy(connection, log, topic, tidy, end, 1 + 2 * len(mine) // SLICE)
            connection.execute("UPDATE logs SET end = ?, tidy = ? WHERE id = ?", (end, tidy, log))

    def _find(self, connection: sqlite3.Connection, name: str) -> Topic | None:
        # Topics never change after their creation, so they can be cached.
        if name not in self._topics:
            topic = self.look_up(connection, name)
            if topic is None:
                return None
            self._topics[name] = topic
        return self._topics[name]

    def _require(self, connection: sqlite3.Connection, name: str) -> Topic:
        topic = self._find(connection, name)
        if topic is None:
            raise ConfigurationError(
                f"topic {name!r} does not exist in {self._database.path}: create it, {HOW_TO_CREATE}"
            )
        return topic

    def _partition_for(self, record: Outgoing, topic: Topic) -> int:
        if record.partition is not None:
            return record.partition
        if record.key is not None:
            return partition_of(record.key, topic.partitions)
        self.keyless += 1
        return self.keyless % topic.partitions

    def _tidy(
        self, connection: sqlite3.Connection, log: int, topic: Topic, tidy: int, end: int, slices: int
    ) -> int:
        """Continue compaction or retention of a log from offset ``tidy`` by some slices; returns the offset
        where it stopped."""
        kept = (
            float(topic.options.get("min.compaction.lag.ms", 0)) / 1000
            if topic.compacted
            else self._retention
        )
        for _ in range(slices):
            first = (log << OFFSET_BITS) + tidy
            stop = first + SLICE
            if tidy + SLICE > end - (RECENT if topic.compacted else 0):
                break
            # As in Kafka, a piece of a log is deleted or compacted when its youngest record is old enough.
            (written,) = connection.execute(
                "SELECT MAX(timestamp) FROM records WHERE id >= ? AND id < ?", (first, stop)
            ).fetchone()
            if written > self._clock() - kept:
                break
            if topic.compacted:
                _compact(connection, log, first, stop)
            else:
                connection.execute("DELETE FROM records WHERE id >= ? AND id < ?", (first, stop))
            tidy += SLICE
        return tidy


def _compact(connection: sqlite3.Connection, log: int, first: int, stop: int) -> None:
    """Keep only the last record of each key before ``stop``, and delete tombstones with the records that they
    replace.

    Records before ``first`` were compacted before: ``survivors`` has the one record of each of their keys.
    """
    rows = connection.execute(
        "SELECT id, key, value IS NULL FROM records WHERE id >= ? AND id < ? AND key IS NOT NULL ORDER BY id",
        (first, stop),
    ).fetchall()
    last = {key: (number, gone) for number, key, gone in rows}
    keys = [(log, key) for key in last]
    connection.executemany(
        "DELETE FROM records WHERE id = (SELECT record FROM survivors WHERE log = ? AND key = ?)", keys
    )
    connection.executemany("DELETE FROM survivors WHERE log = ? AND key = ?", keys)
    connection.executemany(
        "DELETE FROM records WHERE id = ?",
        [(number,) for number, key, gone in rows if gone or last[key][0] != number],
    )
    connection.executemany(
        "INSERT INTO survivors VALUES (?, ?, ?)",
        [(log, key, number) for key, (number, gone) in last.items() if not gone],
    )
