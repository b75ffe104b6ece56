"""A worker's session on an SQLite bus: its positions in inputs and tables, and the commit of a step."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from streamfl.contract.role import Record
from streamfl.runtime.bus import (
    BusUnavailable,
    CommitRefused,
    Moved,
    Polled,
    Step,
    Subscription,
    TopicPartition,
)
from streamfl.runtime.co_partitions import partitions_of_inputs
from streamfl.runtime.own_session import OwnSession
from streamfl.runtime.sqlite.file import Database
from streamfl.runtime.sqlite.membership import SqliteMembership
from streamfl.runtime.sqlite.store import Store

__all__ = ["SqliteSession"]

SHORTEST_LOOK_SECONDS = 0.001
LONGEST_LOOK_SECONDS = 0.02


class SqliteSession(OwnSession):
    """A membership in a group of an SQLite bus; see :class:`streamfl.runtime.bus.Session`.

    store: the topics and records.
    shared: the bus's connection, for questions from other threads.
    open: makes this session's own connection.
    session_timeout: seconds of silence after which the others count this member as dead.
    monotonic: the clock for waiting and watching, in seconds.
    """

    def __init__(
        self,
        store: Store,
        shared: Database,
        open: Callable[[], Database],
        subscription: Subscription,
        session_timeout: float,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(subscription)
        self._store = store
        self._shared = shared
        self._group = subscription.group
        self._monotonic = monotonic
        self._topics = {name: store.topic(name) for name in (*subscription.inputs, *subscription.tables)}
        partitions = partitions_of_inputs(
            subscription, {name: self._topics[name].partitions for name in subscription.inputs}
        )
        self._last_lag: dict[TopicPartition, int] = {}
        self._database = open()
        try:
            self._member = SqliteMembership(
                self._database, self._group, partitions, session_timeout, monotonic
            )
        except BaseException:
            self._database.close()
            raise

    def poll(self, timeout: float, max_records: int) -> Polled:
        """Wait at most ``timeout`` seconds for anything; never more than ``max_records`` input records."""
        self._check_open()
        deadline = self._monotonic() + timeout
        try:
            while True:
                # Read first, so that later commits of others show as a change.
                version = self._database.version()
                if self._member.attend():
                    self._refused = True
                polled = self._take(max_records)
                if polled or self._monotonic() >= deadline:
                    return polled
                self._wait(deadline, version)
        except BaseException:
            # Positions may be after records that were never returned.
            self._refused = True
            raise

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        """All committed records of a partition from its beginning to its present end."""
        found = self._store.topic(topic)
        for record in self._store.scan(found, found.log(partition), 1):
            self.attend()
            yield record

    def attend(self) -> None:
        """Take part in the group, if it is time to."""
        self._member.beat()

    def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset."""
        with self._database.reading() as connection:
            return self._committed(connection, topic, partition)

    def commit(self, step: Step) -> None:
        """Make the step visible, in one transaction."""
        self._check_open()
        try:
            with self._database.writing() as connection:
                self._check_ownership(connection, step)
                self._store.append(connection, [*step.outputs, *step.changelog])
                connection.executemany(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?)",
                    [
                        (self._group, topic, partition, position)
                        for (topic, partition), position in step.positions.items()
                    ],
                )
                self._member.count_up(connection)
        except BaseException:
            self._refused = True
            raise

    def lag(self) -> Mapping[TopicPartition, int]:
        """Records between the position and the end of each assigned input partition; the last known while the
        file is locked."""
        with suppress(BusUnavailable), self._shared.reading() as connection:
            lag = {}
            for (name, partition), position in dict(self._positions).items():
                first, end = self._store.bounds(connection, self._topics[name], partition)
                lag[name, partition] = end - max(position, first)
            self._last_lag = lag
        return self._last_lag

    unread = lag

    def close(self) -> None:
        """Leave the group. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._member.leave()
        finally:
            self._database.close()

    def _check_ownership(self, connection: sqlite3.Connection, step: Step) -> None:
        stale = self._refused or not self._member.is_current(connection)
        if stale or any(partition not in self._member.owned for _, partition in step.positions):
            raise CommitRefused(f"group {self._group!r} has rebalanced since the last poll")

    def _wait(self, deadline: float, version: int) -> None:
        """Wait until another connection has committed something, or until the deadline or the next beat."""
        until = min(deadline, self._member.next_beat)
        pause = SHORTEST_LOOK_SECONDS
        while (remaining := until - self._monotonic()) > 0:
            time.sleep(min(pause, remaining))
            if self._database.version() != version:
                return
            # After a long silence looking less often adds little latency in proportion.
            pause = min(1.25 * pause, LONGEST_LOOK_SECONDS)

    def _take(self, max_records: int) -> Polled:
        # One view of the file: an assignment comes with the tables as they were when it was made, or later.
        with self._database.reading() as connection:
            generation = self._member.group_generation(connection)
            tables, positions = self._read_tables(connection)
            polled = Polled(tables=tables)
            if self._refused or generation != self._member.generation:
                self._rebalance(connection, generation, polled)
            else:
                self._take_records(connection, polled, max_records)
        self._table_positions |= positions
        return polled

    def _read_tables(self, connection: sqlite3.Connection) -> tuple[list[Record], dict[TopicPartition, int]]:
        taken: list[Record] = []
        positions: dict[TopicPartition, int] = {}
        for name in self._subscription.tables:
            topic = self._topics[name]
            for partition in range(topic.partitions):
                records = self._store.since(
                    connection, topic, partition, self._table_positions.get((name, partition), 0)
                )
                if records:
                    positions[name, partition] = records[-1].offset + 1
                    taken += records
        return taken, positions

    def _rebalance(self, connection: sqlite3.Connection, generation: int, polled: Polled) -> None:
        polled.revoked, polled.assigned = self._member.changes(connection, self._refused)
        kept = self._member.owned.difference(polled.revoked)
        begun = {
            (topic, partition): self._first_position(connection, topic, partition)
            for topic in self._subscription.inputs
            for partition in polled.assigned
        }
        self._positions = {place: at for place, at in self._positions.items() if place[1] in kept} | begun
        self._member.accept(generation, polled.revoked, polled.assigned)
        self._refused = False

    def _first_position(self, connection: sqlite3.Connection, topic: str, partition: int) -> int:
        committed = self._committed(connection, topic, partition)
        if committed is not None:
            return committed
        bounds = self._store.bounds(connection, self._topics[topic], partition)
        return self._without_offset((topic, partition), *bounds)

    def _take_records(self, connection: sqlite3.Connection, polled: Polled, max_records: int) -> None:
        taken = polled.records
        for name, partition in self._places_in_turn():
            offset = self._positions[name, partition]
            records = self._store.since(
                connection, self._topics[name], partition, offset, max_records - len(taken)
            )
            if not records or records[0].offset > offset:
                first, _ = self._store.bounds(connection, self._topics[name], partition)
                if first > offset:
                    polled.moved.append(Moved(name, partition, offset, first))
                    self._positions[name, partition] = first
                    continue
            if records:
                self._positions[name, partition] = records[-1].offset + 1
                taken += records

    def _committed(self, connection: sqlite3.Connection, topic: str, partition: int) -> int | None:
        row = connection.execute(
            "SELECT position FROM offsets WHERE group_name = ? AND topic = ? AND partition = ?",
            (self._group, topic, partition),
        ).fetchone()
        return None if row is None else int(row[0])
