"""The bus in one SQLite file: several processes of one machine, no Kafka.

A commit is one transaction: the check that the member still owns its partitions, outputs, changelog and offsets. It obeys the same
laws as the Kafka connector (:mod:`streamfl.testing.bus_laws`), and under every guarantee a commit is atomic.

The file is in WAL mode, so that readers and the one writer do not wait for each other, with ``synchronous = FULL``: a commit is
on the disk before it is answered. Against ``kill -9`` ``NORMAL`` would do as well, for what was written to the log is with the
operating system; but a power cut could then take back commits that a producer or a reader of predictions had already been told of.

Members prove that they live by counting up a number in their row whenever they poll, restore or commit. Whoever has watched
another's number stand still for that member's session timeout takes it out of the group. No clock is compared between processes:
neither a clock that is set nor a restart of the machine makes the living dead or the dead living.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from streamfl.role import ConfigurationError, Record, TopicSpec
from streamfl.runtime.assignment import deal, partition_of
from streamfl.runtime.bus import (
    BusUnavailable,
    CommitRefused,
    Outgoing,
    Polled,
    Step,
    Subscription,
    TopicPartition,
    TopicState,
)

__all__ = ["Database", "SqliteBus", "SqliteSession", "connect"]

SCHEME = "sqlite://"
APPLICATION = int.from_bytes(b"sfl1")
SCHEMA_VERSION = 1

# A record's id is its log's number and its offset in it, so that one index in the order of writing serves every reading.
OFFSET_BITS = 40
OFFSET_MASK = (1 << OFFSET_BITS) - 1

# Of a compacted topic so many records stay as they are, so that a reader a little behind sees every version and every tombstone.
RECENT = 5_000
# Compaction and retention go on by so many records, a few of these slices with a commit.
SLICE = 1_000

BEATS_PER_TIMEOUT = 5
SHORTEST_LOOK_SECONDS = 0.001
LONGEST_LOOK_SECONDS = 0.02
# The log is cut back to this after a step that was larger.
LOG_BYTES = 64 * 1024 * 1024
BEAT_RECORDS = 1_000

OPTIONS = {
    "connect_timeout_seconds": 30.0,
    "retention_hours": 168.0,
    "session_timeout_seconds": 10.0,
}

SCHEMA = """
CREATE TABLE topics (name TEXT PRIMARY KEY, first_log INTEGER NOT NULL, partitions INTEGER NOT NULL, compacted INTEGER NOT NULL,
                     options TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE logs (id INTEGER PRIMARY KEY, end INTEGER NOT NULL, tidy INTEGER NOT NULL);
CREATE TABLE records (id INTEGER PRIMARY KEY, key BLOB, value BLOB, headers BLOB, timestamp REAL NOT NULL);
CREATE TABLE survivors (log INTEGER NOT NULL, key BLOB NOT NULL, record INTEGER NOT NULL, PRIMARY KEY (log, key)) WITHOUT ROWID;
CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, partitions INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE members (id INTEGER PRIMARY KEY AUTOINCREMENT, group_name TEXT NOT NULL, beat INTEGER NOT NULL, timeout REAL NOT NULL);
CREATE INDEX members_of_groups ON members (group_name);
CREATE TABLE owners (group_name TEXT NOT NULL, partition INTEGER NOT NULL, member INTEGER NOT NULL, since INTEGER NOT NULL,
                     PRIMARY KEY (group_name, partition)) WITHOUT ROWID;
CREATE TABLE offsets (group_name TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
                      PRIMARY KEY (group_name, topic, partition)) WITHOUT ROWID;
"""

Headers = tuple[tuple[str, bytes], ...]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Headers).decode


def connect(url: str, options: Mapping[str, Any]) -> SqliteBus:
    """The bus in the file that ``url`` names, made if it does not exist.

    ``sqlite:///var/lib/plant.db`` is an absolute path, ``sqlite://plant.db`` one below the working directory. options:
    ``session_timeout_seconds`` (10), after which a silent member is taken for dead; ``retention_hours`` (168), after which records
    of topics that are not compacted go; ``connect_timeout_seconds`` (30), for how long to wait while another process writes.
    ConfigurationError if url, options or file will not do; BusUnavailable if the file stays locked.
    """
    return SqliteBus(url, options)


class _Topic(NamedTuple):
    name: str
    first_log: int
    partitions: int
    compacted: bool
    options: dict[str, str]

    def log(self, partition: int) -> int:
        if not 0 <= partition < self.partitions:
            raise ConfigurationError(f"topic {self.name!r} has {self.partitions} partitions, there is no partition {partition}")
        return self.first_log + partition

    def record(self, row: tuple[Any, ...]) -> Record:
        number, key, value, headers, timestamp = row
        partition = (number >> OFFSET_BITS) - self.first_log
        return Record(self.name, partition, number & OFFSET_MASK, key, value, _decode(headers) if headers else (), timestamp)


class SqliteBus:
    """A cluster in a file; see :func:`connect`. It may be used from several threads.

    clock: the time of its records. monotonic: by what members watch each other.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        chosen = _options(options or {})
        self.clock = clock
        self.monotonic = monotonic
        self.path = _path(url)
        self.session_timeout = chosen["session_timeout_seconds"]
        self._retention = chosen["retention_hours"] * 3600
        self._patience = chosen["connect_timeout_seconds"]
        self._topics: dict[str, _Topic] = {}
        # Processes that write records without keys one by one must not all begin with the same partition.
        self._keyless = os.getpid()
        _create_file(self.path)
        self.database = self.open()
        try:
            _prepare(self.database, self._patience)
            opened = self.path.stat()
            self._file = opened.st_dev, opened.st_ino
        except BaseException:
            self.database.close()
            raise

    @property
    def session_type(self) -> type[SqliteSession]:
        """The class of this bus's sessions."""
        return SqliteSession

    def open(self) -> Database:
        """A connection of its own to the file."""
        return Database(self.path, self._patience)

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name: none where the file was removed or replaced."""
        states: dict[str, TopicState] = {}
        if not self._is_the_file():
            return states
        with self.database.reading() as connection:
            for name in topics:
                topic = self._look_up(connection, name)
                if topic is not None:
                    identity = f"{topic.first_log}"
                    states[name] = TopicState(name, topic.partitions, topic.compacted, topic.options, identity=identity)
        return states

    def partition_of(self, key: bytes, partitions: int) -> int:
        return partition_of(key, partitions)

    def members(self, group: str) -> int:
        """The members of a consumer group at present."""
        with self.database.reading() as connection:
            (count,) = connection.execute("SELECT count(*) FROM members WHERE group_name = ?", (group,)).fetchone()
        return int(count)

    def _is_the_file(self) -> bool:
        """Whether the path still leads to the file that is open: a removed one can be read and written by who has it open."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet; existing ones stay as they are."""
        with self.database.writing() as connection:
            (first,) = connection.execute("SELECT coalesce(max(id) + 1, 0) FROM logs").fetchone()
            for spec in topics:
                count = spec.partitions or 1
                made = connection.execute(
                    "INSERT OR IGNORE INTO topics VALUES (?, ?, ?, ?, ?)",
                    (spec.name, first, count, spec.compacted, json.dumps({**spec.preferred, **spec.options})),
                )
                if made.rowcount:
                    connection.executemany("INSERT INTO logs VALUES (?, 0, 0)", [(first + number,) for number in range(count)])
                    first += count

    def session(self, subscription: Subscription) -> SqliteSession:
        """Join a group; ConfigurationError names a topic that is missing."""
        return self.session_type(self, subscription)

    def write(self, records: Sequence[Outgoing]) -> None:
        """Write records in one transaction; they are on the disk when this returns."""
        if records:
            with self.database.writing() as connection:
                self.append(connection, records)

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        """Committed records from the beginning of every partition to the present end, at most ``limit``."""
        found = self.topic(topic)
        yield from self.scan(found, found.first_log, found.partitions, limit)

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        found = self.topic(topic)
        records: list[Record] = []
        with self.database.reading() as connection:
            for log in map(found.log, partitions):
                edges: dict[int, Any] = {}
                for order in ("ASC", "DESC"):
                    rows = connection.execute(
                        f"SELECT * FROM records WHERE id >= ? AND id < ? ORDER BY id {order} LIMIT ?",
                        (log << OFFSET_BITS, log + 1 << OFFSET_BITS, count),
                    )
                    edges.update((row[0], row) for row in rows)
                records += [found.record(edges[key]) for key in sorted(edges)]
        return records

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end."""
        found = self.topic(topic)
        return (record for record in self.scan(found, found.log(partition), 1) if record.offset >= offset)

    def codecs(self) -> Sequence[str]:
        """None: nothing is compressed."""
        return ()

    def close(self) -> None:
        """Close the file; sessions are closed by themselves."""
        self.database.close()

    def topic(self, name: str) -> _Topic:
        """The topic; ConfigurationError if there is none."""
        with self.database.reading() as connection:
            return self._require(connection, name)

    def scan(self, topic: _Topic, first_log: int, logs: int, limit: int | None = None) -> Iterator[Record]:
        """The records of consecutive logs of a topic, all as they were when the first was asked for."""
        # On a connection of its own, because one statement is one view of the file for as long as it is read from.
        database = self.open()
        try:
            with database.failing():
                for row in database.connection.execute(
                    "SELECT * FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
                    (first_log << OFFSET_BITS, first_log + logs << OFFSET_BITS, -1 if limit is None else limit),
                ):
                    yield topic.record(row)
        finally:
            database.close()

    def append(self, connection: sqlite3.Connection, records: Iterable[Outgoing]) -> None:
        """Append records within the transaction that the caller has begun."""
        by_log: dict[int, tuple[_Topic, list[Outgoing]]] = {}
        for record in records:
            topic = self._require(connection, record.topic)
            log = topic.log(self._partition_for(record, topic))
            by_log.setdefault(log, (topic, []))[1].append(record)
        now = self.clock()
        for log, (topic, mine) in by_log.items():
            end, tidy = connection.execute("SELECT end, tidy FROM logs WHERE id = ?", (log,)).fetchone()
            first = (log << OFFSET_BITS) + end
            connection.executemany(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?)",
                [
                    (first + number, record.key, record.value, _encode(record.headers) if record.headers else None, now)
                    for number, record in enumerate(mine)
                ],
            )
            end += len(mine)
            # Twice what came in, or what waits would grow.
            tidy = self._tidy(connection, log, topic, tidy, end, 1 + 2 * len(mine) // SLICE)
            connection.execute("UPDATE logs SET end = ?, tidy = ? WHERE id = ?", (end, tidy, log))

    def _find(self, connection: sqlite3.Connection, name: str) -> _Topic | None:
        # Topics stay as they were created, so what was once found can be remembered.
        if name not in self._topics:
            topic = self._look_up(connection, name)
            if topic is None:
                return None
            self._topics[name] = topic
        return self._topics[name]

    def _look_up(self, connection: sqlite3.Connection, name: str) -> _Topic | None:
        row = connection.execute("SELECT first_log, partitions, compacted, options FROM topics WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        first, partitions, compacted, options = row
        return _Topic(name, first, partitions, bool(compacted), json.loads(options))

    def _require(self, connection: sqlite3.Connection, name: str) -> _Topic:
        topic = self._find(connection, name)
        if topic is None:
            raise ConfigurationError(
                f"topic {name!r} does not exist in {self.path}: create it, for instance with 'streamfl topics CONFIG --create'"
            )
        return topic

    def _partition_for(self, record: Outgoing, topic: _Topic) -> int:
        if record.partition is not None:
            return record.partition
        if record.key is not None:
            return partition_of(record.key, topic.partitions)
        self._keyless += 1
        return self._keyless % topic.partitions

    def _tidy(self, connection: sqlite3.Connection, log: int, topic: _Topic, tidy: int, end: int, slices: int) -> int:
        """Go on with the compaction or the retention of a log from offset ``tidy`` by some slices; the offset where it stopped."""
        kept = float(topic.options.get("min.compaction.lag.ms", 0)) / 1000 if topic.compacted else self._retention
        for _ in range(slices):
            first = (log << OFFSET_BITS) + tidy
            stop = first + SLICE
            if tidy + SLICE > end - (RECENT if topic.compacted else 0):
                break
            (written,) = connection.execute("SELECT timestamp FROM records WHERE id = ?", (stop - 1,)).fetchone()
            if written > self.clock() - kept:
                break
            if topic.compacted:
                _compact(connection, log, first, stop)
            else:
                connection.execute("DELETE FROM records WHERE id >= ? AND id < ?", (first, stop))
            tidy += SLICE
        return tidy


def _compact(connection: sqlite3.Connection, log: int, first: int, stop: int) -> None:
    """Leave of the records before ``stop`` the last of each key; tombstones go with what they replace.

    Those before ``first`` have been through this before: ``survivors`` has the one record of each of their keys.
    """
    rows = connection.execute(
        "SELECT id, key, value IS NULL FROM records WHERE id >= ? AND id < ? AND key IS NOT NULL ORDER BY id", (first, stop)
    ).fetchall()
    last = {key: (number, gone) for number, key, gone in rows}
    keys = [(log, key) for key in last]
    connection.executemany("DELETE FROM records WHERE id = (SELECT record FROM survivors WHERE log = ? AND key = ?)", keys)
    connection.executemany("DELETE FROM survivors WHERE log = ? AND key = ?", keys)
    connection.executemany(
        "DELETE FROM records WHERE id = ?", [(number,) for number, key, gone in rows if gone or last[key][0] != number]
    )
    connection.executemany(
        "INSERT INTO survivors VALUES (?, ?, ?)", [(log, key, number) for key, (number, gone) in last.items() if not gone]
    )


class SqliteSession:
    """A membership in a group of a :class:`SqliteBus`; see :class:`streamfl.runtime.bus.Session`."""

    def __init__(self, bus: SqliteBus, subscription: Subscription) -> None:
        self._bus = bus
        self._subscription = subscription
        self._group = subscription.group
        self._topics = {name: bus.topic(name) for name in (*subscription.inputs, *subscription.tables)}
        counts = {name: self._topics[name].partitions for name in subscription.inputs}
        if len(set(counts.values())) > 1:
            raise ConfigurationError(f"the inputs of a role need the same number of partitions, but have {counts}")
        self._partitions = next(iter(counts.values()), 0)
        self._member = -1
        self._generation = -1
        self._owned: set[int] = set()
        self._positions: dict[TopicPartition, int] = {}
        self._origins: dict[TopicPartition, int] = {}
        self._paused: frozenset[TopicPartition] = frozenset()
        self._table_positions: dict[TopicPartition, int] = {}
        self._watched: dict[int, tuple[int, float]] = {}
        self._next_beat = 0.0
        self._last_lag: dict[TopicPartition, int] = {}
        self._refused = False
        self._closed = False
        self._turn = 0
        self._database = bus.open()
        try:
            with self._database.writing() as connection:
                self._join(connection)
        except BaseException:
            self._database.close()
            raise

    def poll(self, timeout: float, max_records: int) -> Polled:
        """Wait at most ``timeout`` seconds for anything; never more than ``max_records`` input records."""
        self._check_open()
        deadline = self._bus.monotonic() + timeout
        try:
            while True:
                # Looked at first: what is committed while the rest is read shows as a change afterwards.
                version = self._database.version()
                self._attend()
                polled = self._take(max_records)
                if polled or self._bus.monotonic() >= deadline:
                    return polled
                self._wait(deadline, version)
        except BaseException:
            # Positions may have moved on over records that nobody got.
            self._refused = True
            raise

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        """All committed records of a partition from its beginning to its present end."""
        found = self._bus.topic(topic)
        for number, record in enumerate(self._bus.scan(found, found.log(partition), 1)):
            if number % BEAT_RECORDS == 0:
                # Restoring much may take longer than a member may be silent.
                self._beat()
            yield record

    def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset."""
        with self._database.reading() as connection:
            return self._committed(connection, topic, partition)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on reading an assigned input partition at ``offset``."""
        if (topic, partition) not in self._positions:
            raise ValueError(f"partition {partition} of {topic!r} is not assigned to this session")
        self._positions[topic, partition] = offset

    def commit(self, step: Step) -> None:
        """Make the step visible, in one transaction."""
        self._check_open()
        try:
            with self._database.writing() as connection:
                self._check_ownership(connection, step)
                self._bus.append(connection, [*step.outputs, *step.changelog])
                connection.executemany(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?)",
                    [(self._group, topic, partition, position) for (topic, partition), position in step.positions.items()],
                )
                self._count_up(connection)
        except BaseException:
            self._refused = True
            raise

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Bring no more records of exactly these input partitions until told otherwise."""
        self._paused = frozenset(places)

    def lag(self) -> Mapping[TopicPartition, int]:
        """Records between the position and the end of each assigned input partition; the last known while the file is locked."""
        with suppress(BusUnavailable), self._bus.database.reading() as connection:
            lag = {}
            for (name, partition), position in dict(self._positions).items():
                topic = self._topics[name]
                end, tidy = connection.execute("SELECT end, tidy FROM logs WHERE id = ?", (topic.log(partition),)).fetchone()
                lag[name, partition] = end - (position if topic.compacted else max(position, tidy))
            self._last_lag = lag
        return self._last_lag

    def close(self) -> None:
        """Leave the group. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            with self._database.writing() as connection:
                if connection.execute("DELETE FROM members WHERE id = ?", (self._member,)).rowcount:
                    _deal(connection, self._group)
        finally:
            self._database.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the session is closed")

    def _check_ownership(self, connection: sqlite3.Connection, step: Step) -> None:
        current = connection.execute(
            "SELECT generation FROM groups JOIN members ON group_name = name WHERE members.id = ?", (self._member,)
        ).fetchone()
        stale = self._refused or current != (self._generation,)
        if stale or any(partition not in self._owned for _, partition in step.positions):
            raise CommitRefused(f"group {self._group!r} has rebalanced since the last poll")

    # Being a member

    def _join(self, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT OR IGNORE INTO groups VALUES (?, 0, 0)", (self._group,))
        connection.execute("UPDATE groups SET partitions = ? WHERE name = ?", (self._partitions, self._group))
        timeout = self._bus.session_timeout
        joined = connection.execute("INSERT INTO members (group_name, beat, timeout) VALUES (?, 0, ?)", (self._group, timeout))
        self._member = joined.lastrowid or -1
        self._count_up(connection)
        _deal(connection, self._group)

    def _count_up(self, connection: sqlite3.Connection) -> bool:
        """Show that the member lives; False if it is none any more."""
        self._next_beat = self._bus.monotonic() + self._bus.session_timeout / BEATS_PER_TIMEOUT
        return connection.execute("UPDATE members SET beat = beat + 1 WHERE id = ?", (self._member,)).rowcount > 0

    def _beat(self) -> None:
        if self._bus.monotonic() >= self._next_beat:
            with self._database.writing() as connection:
                self._count_up(connection)

    def _attend(self) -> None:
        """Stay a member, or become one again, and take out those who are silent for too long."""
        self._beat()
        with self._database.reading() as connection:
            members = connection.execute("SELECT id, beat, timeout FROM members WHERE group_name = ?", (self._group,)).fetchall()
        now = self._bus.monotonic()
        watched = self._watched
        self._watched = {
            member: watched[member] if member in watched and watched[member][0] == beat else (beat, now)
            for member, beat, _ in members
        }
        silent = [
            (member, beat)
            for member, beat, timeout in members
            if member != self._member and now - self._watched[member][1] > timeout
        ]
        absent = self._member not in self._watched
        if not silent and not absent:
            return
        with self._database.writing() as connection:
            gone = connection.executemany("DELETE FROM members WHERE id = ? AND beat = ?", silent).rowcount
            if absent:
                self._refused = True
                self._join(connection)
            elif gone > 0:
                _deal(connection, self._group)

    def _wait(self, deadline: float, version: int) -> None:
        """Until another connection has committed something, or the deadline or the time for a beat has come."""
        until = min(deadline, self._next_beat)
        pause = SHORTEST_LOOK_SECONDS
        while (remaining := until - self._bus.monotonic()) > 0:
            time.sleep(min(pause, remaining))
            if self._database.version() != version:
                return
            # Looking seldom after a long silence costs little latency in proportion.
            pause = min(1.25 * pause, LONGEST_LOOK_SECONDS)

    # Taking

    def _take(self, max_records: int) -> Polled:
        # One view of the file: an assignment comes with the tables as they were when it was made, or later.
        with self._database.reading() as connection:
            (generation,) = connection.execute("SELECT generation FROM groups WHERE name = ?", (self._group,)).fetchone()
            tables, positions = self._read_tables(connection)
            polled = Polled(tables=tables)
            if self._refused or generation != self._generation:
                self._rebalance(connection, generation, polled)
            else:
                self._take_records(connection, polled.records, max_records)
        self._table_positions |= positions
        return polled

    def _read_tables(self, connection: sqlite3.Connection) -> tuple[list[Record], dict[TopicPartition, int]]:
        taken: list[Record] = []
        positions: dict[TopicPartition, int] = {}
        for name in self._subscription.tables:
            for partition in range(self._topics[name].partitions):
                records = self._since(connection, name, partition, self._table_positions.get((name, partition), 0))
                if records:
                    positions[name, partition] = records[-1].offset + 1
                    taken += records
        return taken, positions

    def _rebalance(self, connection: sqlite3.Connection, generation: int, polled: Polled) -> None:
        owned = "SELECT partition, since FROM owners WHERE group_name = ? AND member = ?"
        owned_since: dict[int, int] = dict(connection.execute(owned, (self._group, self._member)))
        # A partition that was another's for a while comes back as revoked and assigned: its state here is out of date.
        kept = {p for p in self._owned if not self._refused and owned_since.get(p, self._generation + 1) <= self._generation}
        polled.revoked = sorted(self._owned - kept)
        polled.assigned = sorted(owned_since.keys() - kept)
        begun = {
            (topic, partition): self._first_position(connection, topic, partition)
            for topic in self._subscription.inputs
            for partition in polled.assigned
        }
        self._positions = {place: at for place, at in self._positions.items() if place[1] in kept} | begun
        self._owned = set(owned_since)
        self._generation = generation
        self._refused = False

    def _first_position(self, connection: sqlite3.Connection, topic: str, partition: int) -> int:
        committed = self._committed(connection, topic, partition)
        if committed is not None:
            return committed
        reset = self._subscription.auto_offset_reset
        if reset == "error":
            raise ConfigurationError(
                f"bus.auto_offset_reset = 'error': group {self._group!r} has no committed offset for partition {partition} of "
                f"{topic!r}; set 'earliest' or 'latest' to say where to begin"
            )
        log = self._topics[topic].log(partition)
        (end,) = connection.execute("SELECT end FROM logs WHERE id = ?", (log,)).fetchone()
        # After a refused step 'latest' asked a second time would pass over what was read and not committed.
        return self._origins.setdefault((topic, partition), end if reset == "latest" else 0)

    def _take_records(self, connection: sqlite3.Connection, taken: list[Record], max_records: int) -> None:
        places = [place for place in self._positions if place not in self._paused]
        # Another partition goes first each time, or a busy one would starve the rest.
        self._turn += 1
        start = self._turn % len(places) if places else 0
        for place in places[start:] + places[:start]:
            records = self._since(connection, *place, self._positions[place], max_records - len(taken))
            if records:
                self._positions[place] = records[-1].offset + 1
                taken += records

    def _since(self, connection: sqlite3.Connection, name: str, partition: int, offset: int, limit: int = -1) -> list[Record]:
        topic = self._topics[name]
        log = topic.log(partition)
        rows = connection.execute(
            "SELECT * FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            ((log << OFFSET_BITS) + offset, log + 1 << OFFSET_BITS, limit),
        )
        return [topic.record(row) for row in rows]

    def _committed(self, connection: sqlite3.Connection, topic: str, partition: int) -> int | None:
        row = connection.execute(
            "SELECT position FROM offsets WHERE group_name = ? AND topic = ? AND partition = ?", (self._group, topic, partition)
        ).fetchone()
        return None if row is None else int(row[0])


def _deal(connection: sqlite3.Connection, name: str) -> None:
    """Give every partition of a group an owner."""
    connection.execute("UPDATE groups SET generation = generation + 1 WHERE name = ?", (name,))
    generation, partitions = connection.execute("SELECT generation, partitions FROM groups WHERE name = ?", (name,)).fetchone()
    members = [member for (member,) in connection.execute("SELECT id FROM members WHERE group_name = ? ORDER BY id", (name,))]
    rows = connection.execute("SELECT partition, member, since FROM owners WHERE group_name = ?", (name,))
    owners = deal(partitions, members, {partition: (owner, since) for partition, owner, since in rows}, generation)
    connection.execute("DELETE FROM owners WHERE group_name = ?", (name,))
    connection.executemany("INSERT INTO owners VALUES (?, ?, ?, ?)", [(name, p, *owner) for p, owner in owners.items()])


class Database:
    """A connection to the file, one transaction at a time, with SQLite's failures as the bus's."""

    def __init__(self, path: Path, patience: float) -> None:
        self.path = path
        self._lock = threading.Lock()
        with self.failing():
            self.connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
        with self._lock, self.failing():
            self.connection.execute("PRAGMA synchronous = FULL")
            self.connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One view of the file."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One change of the file, whole or not at all; nobody else writes meanwhile."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def version(self) -> int:
        """A number that changes when another connection has committed."""
        with self._lock, self.failing():
            return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Close the connection; an open transaction comes to nothing."""
        with self._lock:
            self.connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock, self.failing():
            self.connection.execute(begin)
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    with suppress(sqlite3.Error):
                        self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def failing(self) -> Iterator[None]:
        """SQLite's failures inside become BusUnavailable, or ConfigurationError where trying again cannot help."""
        try:
            yield
        except sqlite3.DataError as error:
            raise ConfigurationError(f"{self.path}: a record is larger than SQLite can hold: {error}") from error
        except sqlite3.DatabaseError as error:
            # Failures that Python itself found are mistakes of the code here and carry no code of SQLite.
            if not hasattr(error, "sqlite_errorcode"):
                raise
            # The lower byte is the kind; the rest says more about it.
            kind = error.sqlite_errorcode & 0xFF
            if kind == sqlite3.SQLITE_NOTADB:
                raise ConfigurationError(f"bus.url: {self.path} is not an SQLite database; name another file") from error
            if kind == sqlite3.SQLITE_CORRUPT:
                raise ConfigurationError(
                    f"bus.url: {self.path} is damaged ({error}); restore a copy of it, or begin anew with another file"
                ) from error
            if kind in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
                raise ConfigurationError(
                    f"bus.url: {self.path} cannot be used ({error}); this user needs to read and write the file and its folder"
                ) from error
            if kind in (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE):
                raise
            raise BusUnavailable(f"{self.path}: {error}") from error


def _options(given: Mapping[str, Any]) -> dict[str, float]:
    unknown = sorted(given.keys() - OPTIONS.keys())
    if unknown:
        raise ConfigurationError(f"bus.options.{unknown[0]} is not known to sqlite:// (known: {', '.join(OPTIONS)})")
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise ConfigurationError(f"bus.options.{name}: a positive number is expected")
    return {**OPTIONS, **given}


def _path(url: str) -> Path:
    text = url.removeprefix(SCHEME)
    if not text or text.endswith("/") or "?" in text or "\0" in text:
        raise ConfigurationError(
            "bus.url: expected a file, as in sqlite:///var/lib/plant.db, or sqlite://plant.db below the working folder"
        )
    return Path(text).absolute()


def _create_file(path: Path) -> None:
    """An empty file that only its owner may read; the files that SQLite puts beside it get the same rights."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise ConfigurationError(f"bus.url: {path} is not a file") from None
    except OSError as error:
        raise ConfigurationError(f"bus.url: {path} cannot be created: {error.strerror}") from error


def _prepare(database: Database, patience: float) -> None:
    """Bring an empty file into shape; ConfigurationError if the file is somebody else's or of a newer version."""
    if _is_new(database):
        _turn_on_log(database, patience)
        with database.writing() as connection:
            # Another process may have been first.
            if connection.execute("PRAGMA application_id").fetchone() == (0,):
                for statement in SCHEMA.split(";")[:-1]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _is_new(database: Database) -> bool:
    with database.reading() as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == APPLICATION and version == SCHEMA_VERSION:
        return False
    if application == APPLICATION:
        raise ConfigurationError(
            f"bus.url: {database.path} was made by another version of streamfl (its schema is {version}, "
            f"here it is {SCHEMA_VERSION}); use that version, or another file"
        )
    if application or version or tables:
        raise ConfigurationError(f"bus.url: {database.path} is an SQLite database of another program; name another file")
    return True


def _turn_on_log(database: Database, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            with database.failing():
                mode = database.connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except BusUnavailable:
            # SQLite does not wait here while another process does the same.
            if time.monotonic() >= deadline:
                raise
            time.sleep(LONGEST_LOOK_SECONDS)
            continue
        if mode != "wal":
            raise ConfigurationError(
                f"bus.url: {database.path} is on a file system on which SQLite cannot keep a log "
                f"(its mode stays {mode}); use a local disk"
            )
        return
