"""A memory bus that misbehaves as clusters do, by seed, wherever a worker calls it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from streamfl.role import Record
from streamfl.runtime.bus import BusUnavailable, CommitRefused, Outgoing, Polled, Step, Subscription, TopicPartition
from streamfl.runtime.memory_bus import MemoryBus, MemorySession
from streamfl.runtime.worker import POSITION_KEY
from streamfl.seeding import rng_for
from streamfl.simulation.faults.history import History, content
from streamfl.simulation.faults.schedule import Changed, Killed, Scheduler

__all__ = ["FAULTS", "FaultyBus", "FaultySession", "Rates"]

FAULTS = (
    "crash before poll",
    "crash after poll",
    "crash before commit",
    "crash after commit",
    "crash while restoring",
    "slow",
    "stopped",
    "leaves",
    "call failed",
    "commit refused",
    "commit failed",
    "answer lost",
    "broker pause",
    "updates repeated",
    "offsets forgotten",
    "half a commit",
    "changelog late",
)


@dataclass(frozen=True)
class Rates:
    """How likely each fault is whenever there is a chance for it; 0: never.

    session_timeout: seconds of silence after which the cluster gives a member's partitions to others.
    """

    crash: float = 0.0
    slow: float = 0.0
    stop: float = 0.0
    leave: float = 0.0
    fail: float = 0.0
    refuse: float = 0.0
    lose_answer: float = 0.0
    pause: float = 0.0
    repeat: float = 0.0
    forget_offsets: float = 0.0
    half: float = 0.0
    late: float = 0.0
    withhold: float = 0.0
    session_timeout: float = 6.0


class FaultyBus(MemoryBus):
    """A cluster with the faults of ``rates`` while ``faulty``.

    repeatable: topics of which a producer may write records a second time. repeated: the places of those. sent: (role's time,
    record) of every one that was committed.
    """

    def __init__(self, scheduler: Scheduler, history: History, rates: Rates, seed: int, repeatable: Collection[str]) -> None:
        super().__init__(clock=scheduler.clock, monotonic=scheduler.clock, changed=Changed(scheduler))
        self.scheduler = scheduler
        self.history = history
        self.rates = rates
        self.faulty = False
        self.draws = rng_for(seed, "simulation", "faults")
        self.repeated: set[tuple[str, int, int]] = set()
        self.sent: list[tuple[float, Outgoing]] = []
        self.role_times: dict[str, float] = {}
        # Where a changelog seems to end, and until when, though the group's offsets are further: a marker is on its way.
        self.late: dict[TopicPartition, tuple[int, float]] = {}
        self._repeatable = repeatable
        self._paused_until = 0.0
        self._sessions: dict[str, list[FaultySession]] = {}

    @property
    def session_type(self) -> type[MemorySession]:
        return FaultySession

    @property
    def who(self) -> str:
        return self.scheduler.current.name if self.scheduler.current is not None else "cluster"

    def session(self, subscription: Subscription) -> MemorySession:
        self.call("join")
        session = super().session(subscription)
        assert isinstance(session, FaultySession)
        self._sessions.setdefault(self.who, []).append(session)
        self.history.note(self.scheduler.now, self.who, "joins")
        return session

    def happens(self, probability: float) -> bool:
        return self.faulty and probability > 0 and bool(self.draws.random() < probability)

    def moment(self) -> None:
        """Every call takes a little time, in which others go on."""
        self.scheduler.sleep(float(self.draws.exponential(1e-3)) if self.faulty else 1e-4)

    def call(self, name: str, where: str = "") -> None:
        """A worker calls the cluster: chances to crash, to be stopped and to get no answer. where: it could crash in here."""
        self.moment()
        if self.happens(self.rates.pause):
            seconds = float(self.draws.uniform(0.2, 8.0))
            self._paused_until = self.scheduler.now + seconds
            self.history.fault(self.scheduler.now, "cluster", "broker pause", f"{seconds:.3f} s")
        self.delay()
        if where and self.happens(self.rates.crash):
            self.crash(where)
        if self.scheduler.now < self._paused_until:
            self.history.note(self.scheduler.now, self.who, f"{name}: no broker answers")
            raise BusUnavailable("the broker does not answer")
        if self.happens(self.rates.fail):
            self.history.fault(self.scheduler.now, self.who, "call failed", name)
            raise BusUnavailable(f"{name} was not answered")

    def delay(self) -> None:
        if self.happens(self.rates.slow):
            seconds = float(self.draws.uniform(0.01, self.rates.session_timeout))
            self.history.fault(self.scheduler.now, self.who, "slow", f"{seconds:.3f} s")
            self.scheduler.sleep(seconds)
        if self.happens(self.rates.stop):
            seconds = float(self.draws.uniform(1.0, 3.0) * self.rates.session_timeout)
            self.history.fault(self.scheduler.now, self.who, "stopped", f"{seconds:.3f} s")
            self.abandon(self.who)
            self.scheduler.sleep(seconds)
            self.history.note(self.scheduler.now, self.who, "wakes up")

    def crash(self, where: str) -> None:
        self.history.fault(self.scheduler.now, self.who, f"crash {where}")
        raise Killed

    def abandon(self, who: str) -> None:
        """Nothing is heard of a process any more: the cluster gives up waiting for it after the session timeout."""
        for session in self._sessions.get(who, []):
            if not session.is_closed:
                self.scheduler.at(self.scheduler.now + self.rates.session_timeout, session.expel)

    def repeat(self, records: Iterable[Outgoing]) -> None:
        """Write some updates again, in their order, as a client that is not sure whether they arrived would."""
        for record in records:
            assert record.partition is not None
            self.repeated.add((record.topic, record.partition, self._log(record.topic, record.partition).end))
            self.write([record])

    def is_repeatable(self, record: Outgoing) -> bool:
        return record.topic in self._repeatable

    def forget_offsets(self) -> None:
        """Groups' offsets expire; what is in the changelogs does not."""
        for group in self._groups.values():
            group.committed.clear()
        self.late = {}


class FaultySession(MemorySession):
    """A membership on a :class:`FaultyBus`."""

    _bus: FaultyBus

    @property
    def is_closed(self) -> bool:
        return self._closed

    def expel(self) -> None:
        if self in self._group.members:
            self._bus.history.note(self._bus.scheduler.now, "cluster", f"expels a member of {self._subscription.group}")
            self._bus.expel(self)

    def poll(self, timeout: float, max_records: int) -> Polled:
        bus = self._bus
        bus.call("poll", "before poll")
        polled = super().poll(timeout, max_records)
        if polled:
            moved = f", revoked {polled.revoked}, assigned {polled.assigned}" if polled.revoked or polled.assigned else ""
            bus.history.note(
                bus.scheduler.now, bus.who, f"polls {len(polled.records)} records, {len(polled.tables)} of tables{moved}"
            )
            if bus.happens(bus.rates.crash):
                bus.crash("after poll")
        bus.delay()
        return polled

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        self._bus.call("restore", "while restoring")
        end, until = self._bus.late.get((topic, partition), (0, 0.0))
        records = super().restore(topic, partition)
        if self._bus.scheduler.now < until:
            return (record for record in records if record.offset < end)
        return records

    def committed(self, topic: str, partition: int) -> int | None:
        self._bus.call("committed")
        return super().committed(topic, partition)

    def commit(self, step: Step) -> None:
        bus, now = self._bus, self._bus.scheduler
        role_time = bus.role_times[bus.who]
        places = ", ".join(f"{topic}[{partition}] to {end}" for (topic, partition), end in sorted(step.positions.items()))
        what = f"{len(step.outputs)} outputs, {len(step.changelog)} remembered, {content([*step.outputs, *step.changelog])}"
        bus.call("commit", "before commit")
        if bus.happens(bus.rates.refuse):
            bus.history.fault(now.now, bus.who, "commit refused")
            self._refused = True
        if bus.happens(bus.rates.fail):
            bus.history.fault(now.now, bus.who, "commit failed")
            raise BusUnavailable("the commit was not done")
        if self._subscription.guarantee == "at_least_once" and self._settled and bus.happens(bus.rates.half):
            bus.history.fault(now.now, bus.who, "half a commit", what)
            self._append(step.outputs, role_time)
            if bus.draws.random() < 0.5:
                self._append(step.changelog, role_time)
            raise BusUnavailable("the commit was done in part")
        ends = {place: bus._log(*place).end for place in ((record.topic, record.partition or 0) for record in step.changelog)}
        try:
            super().commit(step)
        except CommitRefused:
            bus.history.note(now.now, bus.who, f"commit refused: {places}: {what}")
            raise
        bus.history.note(now.now, bus.who, f"commits {places}: {what}")
        self._delay_markers(step, ends)
        updates = self._sent(step.outputs, role_time)
        if updates and bus.happens(bus.rates.repeat):
            bus.history.fault(now.now, bus.who, "updates repeated", f"{len(updates)}")
            now.at(now.now + float(bus.draws.exponential(0.5)), lambda: bus.repeat(updates))
        if bus.happens(bus.rates.forget_offsets):
            bus.history.fault(now.now, "cluster", "offsets forgotten")
            bus.forget_offsets()
        if bus.happens(bus.rates.crash):
            bus.crash("after commit")
        if bus.happens(bus.rates.lose_answer):
            bus.history.fault(now.now, bus.who, "answer lost")
            raise BusUnavailable("the commit's answer was lost")

    def _delay_markers(self, step: Step, ends: dict[TopicPartition, int]) -> None:
        bus = self._bus
        bus.late = {place: late for place, late in bus.late.items() if place not in ends}
        if self._subscription.guarantee == "exactly_once" and step.positions and bus.happens(bus.rates.late):
            until = bus.scheduler.now + float(bus.draws.uniform(0.1, 3.0))
            bus.history.fault(bus.scheduler.now, "cluster", "changelog late", f"until {until:.3f}")
            for record in step.changelog:
                if record.key is not None and record.key.startswith(POSITION_KEY):
                    place = (record.topic, record.partition or 0)
                    bus.late[place] = (ends[place], until)

    def close(self) -> None:
        try:
            self._bus.call("leave")
        except BusUnavailable:
            self._bus.abandon(self._bus.who)
            raise
        super().close()

    def _append(self, records: list[Outgoing], role_time: float) -> None:
        self._bus.write(records)
        self._sent(records, role_time)

    def _sent(self, records: list[Outgoing], role_time: float) -> list[Outgoing]:
        updates = [record for record in records if self._bus.is_repeatable(record)]
        self._bus.sent += [(role_time, record) for record in updates]
        return updates

    def _take_records(self, taken: list[Record], max_records: int) -> None:
        # What one producer wrote comes in order; what several wrote comes in any portions.
        if self._bus.happens(self._bus.rates.withhold):
            max_records = int(self._bus.draws.integers(1, max_records + 1))
        super()._take_records(taken, max_records)

    def _take_tables(self) -> list[Record]:
        taken = super()._take_tables()
        # A poll that reports an assignment brings the tables up to date; every other one may lag behind, anywhere.
        if not taken or not self._settled or not self._bus.happens(self._bus.rates.withhold):
            return taken
        by_place: dict[TopicPartition, list[Record]] = {}
        for record in taken:
            by_place.setdefault((record.topic, record.partition), []).append(record)
        held: list[Record] = []
        for place, records in by_place.items():
            count = int(self._bus.draws.integers(0, len(records) + 1))
            held += records[:count]
            if count < len(records):
                self._table_positions[place] = records[count].offset
        return held


def drawn_rates(draws: np.random.Generator, exactly_once: bool) -> Rates:
    """Each fault is left out of half of the scenarios, so that what one hides another shows."""

    def rate(most: float) -> float:
        chosen, size = draws.random(2)
        return most * float(size) if chosen < 0.5 else 0.0

    return Rates(
        crash=rate(0.03),
        slow=rate(0.03),
        stop=rate(0.02),
        leave=rate(0.03),
        fail=rate(0.03),
        refuse=rate(0.1),
        lose_answer=rate(0.1),
        pause=rate(0.005),
        repeat=rate(0.3),
        forget_offsets=rate(0.1) if exactly_once else 0.0,
        half=rate(0.4),
        late=rate(0.3),
        withhold=rate(1.0),
        session_timeout=float(draws.choice([1.0, 3.0, 6.0])),
    )
