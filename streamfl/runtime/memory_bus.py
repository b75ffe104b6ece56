"""A cluster in this process: topics, consumer groups and atomic commits with the behaviour that streamfl
needs of Kafka.

The demo, the simulator and the tests run on it. It obeys the same laws as the Kafka connector
(:mod:`streamfl.testing.bus_laws`). One lock guards everything, and a commit is atomic under every guarantee.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.assignment import changes, deal, partition_of
from streamfl.runtime.bus import (
    CommitRefused,
    Moved,
    Outgoing,
    Polled,
    Step,
    Subscription,
    TopicPartition,
    TopicState,
)
from streamfl.runtime.co_partitions import partitions_of_inputs
from streamfl.runtime.memory_log import MemoryTopic, PartitionLog
from streamfl.runtime.own_session import OwnSession

__all__ = ["MemoryBus", "MemorySession", "connect"]

TOPIC = attrgetter("topic")


def connect(url: str, options: Mapping[str, Any]) -> MemoryBus:
    """The bus that this process shares under ``url``; there are no options."""
    return MemoryBus.at(url)


class MemoryBus:
    """A new, empty cluster; :meth:`at` returns the one that the process shares under a URL.

    clock: the time of its records.
    monotonic: the clock of a waiting poll.
    changed: wakes a waiting poll.

    >>> bus = MemoryBus()
    >>> bus.create([TopicSpec("readings", 1, compacted=False)])
    >>> bus.write([Outgoing("readings", b"pump", b"4.2")])
    >>> [record.value for record in bus.read("readings")]
    [b'4.2']
    """

    _named: ClassVar[dict[str, MemoryBus]] = {}
    _naming = threading.Lock()

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        changed: threading.Condition | None = None,
    ) -> None:
        self.clock = clock
        self.monotonic = monotonic
        self._changed = changed or threading.Condition()
        self._topics: dict[str, MemoryTopic] = {}
        self._created = 0
        self._groups: dict[str, _Group] = {}

    @property
    def session_type(self) -> type[MemorySession]:
        """The class of this bus's sessions; a bus with faults has one of its own."""
        return MemorySession

    @classmethod
    def at(cls, url: str) -> MemoryBus:
        """The bus of this URL in this process, always the same object."""
        with cls._naming:
            return cls._named.setdefault(url, cls())

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        with self._changed:
            return {name: self._topics[name].state() for name in topics if name in self._topics}

    def members(self, group: str) -> int:
        with self._changed:
            return len(self._groups[group].members) if group in self._groups else 0

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with self._changed:
            return dict(self._groups[group].committed) if group in self._groups else {}

    def create(self, topics: Sequence[TopicSpec]) -> None:
        with self._changed:
            for spec in topics:
                if spec.name not in self._topics:
                    self._created += 1
                    self._topics[spec.name] = MemoryTopic(spec, f"{self._created}")

    def partition_of(self, key: bytes, partitions: int) -> int:
        return partition_of(key, partitions)

    def session(self, subscription: Subscription) -> MemorySession:
        with self._changed:
            for name in (*subscription.inputs, *subscription.tables):
                self._topic(name)
            partitions = partitions_of_inputs(
                subscription, {name: len(self._topic(name).partitions) for name in subscription.inputs}
            )
            group = self._groups.setdefault(subscription.group, _Group(partitions))
            session = self.session_type(self, group, subscription)
            group.join(session)
            self._changed.notify_all()
            return session

    def write(self, records: Sequence[Outgoing]) -> None:
        with self._changed:
            self._append(records)

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        with self._changed:
            records = [record for log in self._topic(topic).partitions for record in log.since(0)]
        return iter(records[:limit])

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        with self._changed:
            return [record for partition in partitions for record in self._log(topic, partition).edges(count)]

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        with self._changed:
            return iter(self._log(topic, partition).since(offset))

    def offsets(self, topic: str, at: float) -> dict[int, int]:
        with self._changed:
            return {number: log.offset_at(at) for number, log in enumerate(self._topic(topic).partitions)}

    def forget_read(self) -> None:
        """Delete records that all sessions have read, or none reads. For runs in which no worker takes over
        from another."""
        with self._changed:
            sessions = [session for group in self._groups.values() for session in group.members]
            for name, topic in self._topics.items():
                for number, log in enumerate(topic.partitions):
                    log.drop(min((session.read_to(name, number) for session in sessions), default=log.end))

    def undecided(self, topic: str) -> dict[int, tuple[int, int]]:
        return {}

    def codecs(self) -> Sequence[str]:
        return ()

    def expel(self, session: MemorySession) -> None:
        """Remove a member, as a cluster removes a silent worker: others get its partitions, and its commits
        are refused."""
        with self._changed:
            session._group.leave(session)
            self._changed.notify_all()

    def close(self) -> None:
        """Does nothing: the records live as long as the bus."""

    def _topic(self, name: str) -> MemoryTopic:
        if name not in self._topics:
            raise ConfigurationError(f"topic {name!r} does not exist on the memory bus; create it first")
        return self._topics[name]

    def _log(self, name: str, partition: int) -> PartitionLog:
        return self._topic(name).log(partition)

    def _append(self, records: Sequence[Outgoing]) -> None:
        # All destinations are looked up before anything is written, so that a wrong one leaves no partial
        # write.
        logs: list[PartitionLog] = []
        for name, group in groupby(records, TOPIC):
            topic = self._topic(name)
            logs += map(topic.log, map(topic.partition_for, group))
        now = self.clock()
        for log, record in zip(logs, records, strict=True):
            log.append(record, now)
        if records:
            self._changed.notify_all()


class MemorySession(OwnSession):
    """A membership in a group of a :class:`MemoryBus`; see :class:`streamfl.runtime.bus.Session`."""

    def __init__(self, bus: MemoryBus, group: _Group, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._bus = bus
        self._group = group
        self._generation = -1
        self._owned: set[int] = set()

    def poll(self, timeout: float, max_records: int) -> Polled:
        deadline = self._bus.monotonic() + timeout
        with self._bus._changed:
            self._check_open()
            while True:
                polled = self._take(max_records)
                remaining = deadline - self._bus.monotonic()
                if polled or remaining <= 0:
                    return polled
                self._bus._changed.wait(remaining)

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        with self._bus._changed:
            return iter(self._bus._log(topic, partition).since(0))

    def attend(self) -> None:
        """Does nothing: a silent member stays."""

    def committed(self, topic: str, partition: int) -> int | None:
        with self._bus._changed:
            return self._group.committed.get((topic, partition))

    def commit(self, step: Step) -> None:
        with self._bus._changed:
            self._check_ownership(step)
            self._apply(step)

    def _check_ownership(self, step: Step) -> None:
        self._check_open()
        if not self._settled or any(partition not in self._owned for _, partition in step.positions):
            self._refused = True
            raise CommitRefused(f"group {self._subscription.group!r} has rebalanced since the last poll")

    def _apply(self, step: Step) -> None:
        self._bus._append([*step.outputs, *step.changelog])
        self._group.committed.update(step.positions)

    def lag(self) -> Mapping[TopicPartition, int]:
        with self._bus._changed:
            return {
                place: self._bus._log(*place).end - position for place, position in self._positions.items()
            }

    unread = lag

    def read_to(self, topic: str, partition: int) -> int:
        """The offset before which the session has read all records that it will ever read."""
        place, end = (topic, partition), self._bus._log(topic, partition).end
        if topic in self._subscription.tables:
            return self._table_positions.get(place, 0)
        if topic in self._subscription.inputs:
            return self._positions.get(place, end if self._settled else 0)
        return end

    def close(self) -> None:
        with self._bus._changed:
            self._closed = True
            self._group.leave(self)
            self._bus._changed.notify_all()

    def _take(self, max_records: int) -> Polled:
        polled = Polled(tables=self._take_tables())
        if self not in self._group.members:
            self._group.join(self)
            self._refused = True
            self._bus._changed.notify_all()
        if self._settled:
            self._take_records(polled, max_records)
        else:
            self._rebalance(polled)
        return polled

    @property
    def _settled(self) -> bool:
        """Whether no partition has moved and no step was refused since the last poll."""
        return (
            not self._refused and self._generation == self._group.generation and self in self._group.members
        )

    def _take_tables(self) -> list[Record]:
        taken: list[Record] = []
        for topic in self._subscription.tables:
            for partition, log in enumerate(self._bus._topic(topic).partitions):
                taken += log.since(self._table_positions.get((topic, partition), 0))
                self._table_positions[topic, partition] = log.end
        return taken

    def _rebalance(self, polled: Polled) -> None:
        owned_since = self._group.owned_since(self)
        polled.revoked, polled.assigned = changes(self._owned, owned_since, self._generation, self._refused)
        for topic in self._subscription.inputs:
            for partition in polled.revoked:
                del self._positions[topic, partition]
            for partition in polled.assigned:
                self._positions[topic, partition] = self._first_position(topic, partition)
        self._owned = set(owned_since)
        self._generation = self._group.generation
        self._refused = False

    def _first_position(self, topic: str, partition: int) -> int:
        committed = self._group.committed.get((topic, partition))
        if committed is not None:
            return committed
        log = self._bus._log(topic, partition)
        return self._without_offset((topic, partition), log.begin, log.end)

    def _take_records(self, polled: Polled, max_records: int) -> None:
        taken = polled.records
        for place in self._places_in_turn():
            log, position = self._bus._log(*place), self._positions[place]
            if position < log.begin:
                polled.moved.append(Moved(*place, position, log.begin))
                self._positions[place] = log.begin
                continue
            records = log.since(position, max_records - len(taken))
            if records:
                self._positions[place] = records[-1].offset + 1
                taken += records


class _Group:
    """A consumer group: its members, the partitions of each with the generation since which it owns them, and
    committed offsets."""

    def __init__(self, partitions: int) -> None:
        self.generation = 0
        self.committed: dict[TopicPartition, int] = {}
        self.members: list[MemorySession] = []
        self._partitions = partitions
        self._owners: dict[int, tuple[MemorySession, int]] = {}

    def join(self, session: MemorySession) -> None:
        self.members.append(session)
        self._deal()

    def leave(self, session: MemorySession) -> None:
        if session in self.members:
            self.members.remove(session)
            self._deal()

    def owned_since(self, session: MemorySession) -> dict[int, int]:
        return {partition: since for partition, (owner, since) in self._owners.items() if owner is session}

    def _deal(self) -> None:
        self.generation += 1
        self._owners = deal(self._partitions, self.members, self._owners, self.generation)
