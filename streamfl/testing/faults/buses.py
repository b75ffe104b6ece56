"""The memory bus and the SQLite bus in virtual time, with the faults that only a bus itself can have."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import structs

from streamfl.contract.role import Record
from streamfl.runtime.bus import Outgoing, Polled, Session, Step, Subscription, TopicPartition
from streamfl.runtime.memory_bus import MemoryBus, MemorySession
from streamfl.runtime.sqlite.file import Database
from streamfl.runtime.sqlite.session import SqliteSession
from streamfl.runtime.sqlite_bus import SqliteBus
from streamfl.testing.faults.fault_rates import FaultDraws
from streamfl.testing.faults.schedule import Changed, Scheduler

__all__ = ["CLUSTERS", "ClusterMember", "MemoryCluster", "SqliteCluster"]

CLUSTERS = ("memory", "sqlite")


class ClusterMember(Session, Protocol):
    """A session to which faults can happen."""

    def refuse(self) -> None:
        """Makes the next commit fail as refused."""

    @property
    def settled(self) -> bool:
        """Whether, as far as the member knows, no partition has moved."""

    def fall_silent(self, for_ever: bool) -> None:
        """Its process stops responding; ``for_ever``: it has ended."""


class MemoryCluster(MemoryBus):
    """A memory bus. It takes away a silent member's partitions after ``rates.session_timeout``, and polls as
    Kafka may."""

    def __init__(self, scheduler: Scheduler, fault_draws: FaultDraws, note: Callable[[str], None]) -> None:
        super().__init__(clock=scheduler.clock, monotonic=scheduler.clock, changed=Changed(scheduler))
        self.scheduler = scheduler
        self.fault_draws = fault_draws
        self.note = note
        # Partitions that nobody can read any more.
        self.unreadable: frozenset[TopicPartition] = frozenset()

    @property
    def session_type(self) -> type[MemorySession]:
        return MemoryMember

    def session(self, subscription: Subscription) -> MemoryMember:
        session = super().session(subscription)
        assert isinstance(session, MemoryMember)
        return session

    def end(self, topic: str, partition: int) -> int:
        return self._log(topic, partition).end

    def partition_for(self, record: Outgoing) -> int:
        return self._topic(record.topic).partition_for(record)

    def forget_offsets(self) -> None:
        """Expires the groups' offsets. The changelogs stay."""
        for group in self._groups.values():
            group.committed.clear()


class MemoryMember(MemorySession):
    """A membership on a :class:`MemoryCluster`."""

    _bus: MemoryCluster

    def refuse(self) -> None:
        self._refused = True

    @property
    def settled(self) -> bool:
        return self._settled

    def check_ownership(self, step: Step) -> None:
        """Raises CommitRefused if a commit of this step would be refused."""
        self._check_ownership(step)

    def show(self, step: Step) -> None:
        """Makes a transaction of this member visible."""
        self._apply(step)

    def parts(self, step: Step) -> list[Step]:
        """A transaction's writes, one partition after another. The group's offsets come last."""
        places: dict[TopicPartition, Step] = {}
        for written in ("outputs", "changelog"):
            for record in getattr(step, written):
                partition = self._bus.partition_for(record)
                part = places.setdefault((record.topic, partition), Step())
                getattr(part, written).append(structs.replace(record, partition=partition))
        return [*places.values(), Step(positions=step.positions)]

    def fall_silent(self, for_ever: bool) -> None:
        if not self._closed:
            scheduler = self._bus.scheduler
            scheduler.at(scheduler.now + self._bus.fault_draws.rates.session_timeout, self._expel)

    def _expel(self) -> None:
        if self in self._group.members:
            self._bus.note(f"expels a member of {self._subscription.group}")
            self._bus.expel(self)

    def _take_records(self, polled: Polled, max_records: int) -> None:
        # One partition's records come in order, but a poll may return records of any of the partitions.
        fault_draws = self._bus.fault_draws
        if fault_draws.happens(fault_draws.rates.withhold):
            max_records = int(fault_draws.draws.integers(1, max_records + 1))
        paused, self._paused = self._paused, self._paused | self._bus.unreadable
        super()._take_records(polled, max_records)
        self._paused = paused

    def _take_tables(self) -> list[Record]:
        fault_draws = self._bus.fault_draws
        taken = super()._take_tables()
        # A poll that reports an assignment also reads the tables to their end. After any other poll each
        # table partition may lag.
        if not taken or not self._settled or not fault_draws.happens(fault_draws.rates.withhold):
            return taken
        by_place: dict[TopicPartition, list[Record]] = {}
        for record in taken:
            by_place.setdefault((record.topic, record.partition), []).append(record)
        held: list[Record] = []
        for place, records in by_place.items():
            count = int(fault_draws.draws.integers(0, len(records) + 1))
            held += records[:count]
            if count < len(records):
                self._table_positions[place] = records[count].offset
        return held


class SqliteCluster(SqliteBus):
    """A bus in a file that is deleted at the end. Its members detect silent ones themselves, so the cluster
    does not expel any."""

    def __init__(self, scheduler: Scheduler, fault_draws: FaultDraws) -> None:
        self.scheduler = scheduler
        self._members: list[SqliteMember] = []
        self._folder = Path(tempfile.mkdtemp(prefix="streamfl-simulation-"))
        timeout = {"session_timeout_seconds": fault_draws.rates.session_timeout}
        super().__init__(
            f"sqlite://{self._folder}/bus.db", timeout, clock=scheduler.clock, monotonic=scheduler.clock
        )
        # A process id would differ from run to run.
        self.store.keyless = 0

    def open(self) -> Database:
        database = super().open()
        # No power failure is simulated, so nothing has to reach the disk.
        database.connection.execute("PRAGMA synchronous = OFF")
        return database

    def session(self, subscription: Subscription) -> SqliteMember:
        session = SqliteMember(self, subscription)
        self._members.append(session)
        return session

    def write(self, records: Sequence[Outgoing]) -> None:
        super().write(records)
        self.scheduler.wake()

    def close(self) -> None:
        for member in self._members:
            member.fall_silent(for_ever=True)
        super().close()
        shutil.rmtree(self._folder)

    def end(self, topic: str, partition: int) -> int:
        found = self.store.topic(topic)
        with self.database.reading() as connection:
            return self.store.bounds(connection, found, partition)[1]


class SqliteMember(SqliteSession):
    """A membership on a :class:`SqliteCluster`."""

    def __init__(self, cluster: SqliteCluster, subscription: Subscription) -> None:
        self._scheduler = cluster.scheduler
        super().__init__(
            cluster.store,
            cluster.database,
            cluster.open,
            subscription,
            cluster.session_timeout,
            cluster.monotonic,
        )

    def commit(self, step: Step) -> None:
        super().commit(step)
        self._scheduler.wake()

    def refuse(self) -> None:
        self._refused = True

    @property
    def settled(self) -> bool:
        return not self._refused

    def fall_silent(self, for_ever: bool) -> None:
        if for_ever and not self._closed:
            # The operating system closes the files of a process that has ended.
            self._closed = True
            self._database.close()

    def _wait(self, deadline: float, version: int) -> None:
        scheduler = self._scheduler
        assert scheduler.current is not None
        scheduler.current.wait(max(min(deadline, self._member.next_beat) - scheduler.now, 1e-6), wakes=True)
