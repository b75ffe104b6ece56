"""Runs a scenario: workers start, die and come back, and producers write. In the end all work has to be
finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError, Measurement
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.bus import Bus, BusUnavailable, Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.lag import SessionMetrics
from streamfl.runtime.worker import Worker
from streamfl.testing.faults.buses import MemoryCluster
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.fault_rates import Rates
from streamfl.testing.faults.followed import astray, traced
from streamfl.testing.faults.history import History
from streamfl.testing.faults.permanent_faults import GONE, PermanentFault
from streamfl.testing.faults.read_back import ReadBack
from streamfl.testing.faults.schedule import BEGIN, Killed, Scheduler
from streamfl.testing.faults.slow_pool import SlowPool

__all__ = ["CheckFailed", "Federation", "Reading", "Shape", "Verdict", "run"]

Kinds = Mapping[str, RoleKind[Any]]

LAG, PARTITIONS = SessionMetrics.consumer_lag_records.name, SessionMetrics.partitions.name
# Once nothing fails any more, all work has to be finished within this many virtual seconds.
PATIENCE = 150.0
# Longer than any commit interval.
LONGEST_GATHERING = 0.25


class CheckFailed(Exception):
    """Something that must hold does not."""


@dataclass(frozen=True)
class Reading:
    """One record of a user's topic.

    at: when it is written, in seconds after the beginning.
    labelled: whether its sample gets a label, sooner or later.
    """

    topic: str
    client: str
    content: dict[str, Any]
    at: float
    labelled: bool


@dataclass(frozen=True)
class Verdict:
    """The result of a seed.

    failure: what does not hold; None if everything does.
    hash, lines, faults: copied from the history.
    seconds: length of the run in virtual seconds.
    """

    seed: int
    description: str
    failure: str | None
    hash: str
    lines: list[str]
    faults: Counter[str]
    seconds: float


def run(shape: Shape, check: Callable[[FaultyBus], None], bus: str, kinds: Kinds | None = None) -> Verdict:
    """Run a scenario on a bus, memory or sqlite, and check that everything holds that must.

    kinds: role kinds by name that belong to no system.
    """
    history = History()
    federation = Federation(shape, history, bus, kinds)
    failure = None
    try:
        with closing(federation.bus):
            federation.run()
            check(federation.bus)
            failure = astray(federation.bus, [settings for _, settings in shape.members.values()]) or None
    except CheckFailed as failed:
        failure = str(failed)
    except Exception as error:
        # An error that a worker does not expect ends its process.
        failure = f"{type(error).__name__}: {error}"
    seconds = federation.scheduler.now - BEGIN
    return Verdict(shape.seed, str(shape), failure, history.hash, history.lines, history.faults, seconds)


class Shape(Protocol):
    """What a system's scenario provides to run it.

    readings: what each producer writes.
    last: what is written after the final restart.
    faulty_seconds: seconds from the beginning after which nothing fails.
    """

    @property
    def seed(self) -> int: ...

    @property
    def rates(self) -> Rates: ...

    @property
    def readings(self) -> tuple[tuple[Reading, ...], ...]: ...

    @property
    def last(self) -> tuple[Reading, ...]: ...

    @property
    def faulty_seconds(self) -> float: ...

    @property
    def members(self) -> Mapping[str, tuple[int, RoleSettings]]:
        """By member: its number of processes, and their settings."""

    @property
    def repeatable(self) -> Collection[str]:
        """The topics whose records a producer may write a second time."""

    @property
    def topics(self) -> Sequence[TopicSpec]:
        """The topics of all members, with their partitions."""

    @property
    def tasks(self) -> int:
        """Number of partitions of all members. In the end each has an owner."""

    @property
    def permanent_fault(self) -> PermanentFault | None:
        """The permanent fault, if any. It needs the memory bus."""

    def prepare(self, worker: Worker) -> None:
        """Change the role where it has to behave differently in the simulation."""

    def check_bounds(self, worker: Worker) -> None:
        """Raise CheckFailed if a worker holds more than it may."""

    def standing(self, bus: Bus, last: bool) -> str:
        """Describes which results of the written records are still missing; empty: none.

        last: whether the records of :attr:`last` were written.
        """


def _is_before(wake_at: float | None, soon: float) -> bool:
    """Whether a role asks for a tick before this time. With 0.0 it asks for one at once."""
    return wake_at is not None and wake_at < soon


def _mended(chosen: Shape, kinds: Kinds) -> set[str]:
    """Changelogs that others may write into. A role repairs a damaged record there instead of refusing it."""
    found: set[str] = set()
    for _, settings in chosen.members.values():
        channels = (kinds.get(settings.role.kind) or find_kind(settings.role.kind)).channels(settings)
        found.update(channels.changelogs[channel] for channel in channels.published)
    return found


class Federation:
    """The processes of one scenario on one cluster."""

    def __init__(
        self, chosen: Shape, history: History, bus: str = "memory", kinds: Kinds | None = None
    ) -> None:
        self.scenario = chosen
        self.scheduler = Scheduler(chosen.seed)
        self.history = history
        rates = chosen.rates if bus == "memory" else chosen.rates.in_a_file
        self._kinds = kinds or {}
        mended = _mended(chosen, self._kinds)
        self.bus = FaultyBus(bus, self.scheduler, history, rates, chosen.seed, chosen.repeatable, mended)
        self._workers: dict[str, Worker] = {}
        # Processes that are no longer expected to finish anything.
        self._lost: frozenset[str] = frozenset()
        self._encode = msgspec.msgpack.Encoder().encode

    def run(self) -> None:
        """Run with faults, then without. Then restart everything and write some more samples.

        CheckFailed if something waits for ever or grows without bound.
        """
        self.bus.create(self.scenario.topics)
        begin = self.scheduler.now
        try:
            for number, readings in enumerate(self.scenario.readings):
                self.scheduler.spawn(f"producer-{number}", lambda readings=readings: self._produce(readings))  # type: ignore[misc]
            for member, (count, settings) in self.scenario.members.items():
                for number in range(count):
                    who = f"{member}-{number}"
                    self.scheduler.spawn(who, lambda who=who, settings=settings: self._live(who, settings))  # type: ignore[misc]
            if self.scenario.permanent_fault is not None:
                self.scheduler.at(begin + self.scenario.permanent_fault.at, self._strike)
            self.bus.fault_draws.faulty = True
            self.scheduler.run(begin + self.scenario.faulty_seconds)
            self.bus.fault_draws.faulty = False
            self.history.note(self.scheduler.now, "cluster", "nothing fails any more")
            self._finish(last=False)
            self.history.note(self.scheduler.now, "cluster", "every process is killed and started again")
            for process in self.scheduler.processes:
                process.kill()
            self.bus.write([self._record(reading) for reading in self.scenario.last])
            self._finish(last=True)
        finally:
            self.scheduler.close()

    def _strike(self) -> None:
        permanent_fault = self.scenario.permanent_fault
        assert permanent_fault is not None
        self.history.note(self.scheduler.now, "cluster", str(permanent_fault))
        self._lost = frozenset(permanent_fault.processes)
        for process in self.scheduler.processes:
            how = permanent_fault.processes.get(process.name)
            if how == GONE:
                process.kill()
            elif how is not None:
                self.bus.cut_off[process.name] = how
        if permanent_fault.places:
            assert isinstance(self.bus.cluster, MemoryCluster)
            self.bus.cluster.unreadable = permanent_fault.places

    def _finish(self, last: bool) -> None:
        deadline = self.scheduler.now + PATIENCE
        noted = -1
        # Polled records that wait for their commit are not visible here. They never wait longer than one
        # round of this loop.
        while not self._is_done(last, PATIENCE) or len(self.history.lines) > noted:
            # Records may come late in that time. Ticks that roles then ask for may be due after it.
            late = self.scheduler.now - deadline
            if late >= PATIENCE or (late >= 0 and not self._is_done(last, 0.0)):
                raise CheckFailed(f"not done {PATIENCE:g} s after the last fault: {self._standing(last)}")
            noted = len(self.history.lines)
            self.scheduler.run(self.scheduler.now + LONGEST_GATHERING)

    def _is_done(self, last: bool, ahead: float) -> bool:
        """Whether every record was read by all members, and no role asks for a tick in the next ``ahead``
        seconds. It is asked hundreds of times in a run, so what costs most comes last: figures of a worker,
        and what is in the topics."""
        return not (
            self._busy()
            or self._ticks(ahead)
            or any(worker.role.waiting for worker in self._expected().values())
            or any(self._unread_and_unowned())
            or self.scenario.standing(self.bus, last)
        )

    def _standing(self, last: bool) -> str:
        """Describes what is not done yet."""
        if busy := self._busy():
            return f"{', '.join(busy)}: still at it"
        unread, unowned = self._unread_and_unowned()
        waits = {
            f"{who} {what}": count
            for who, worker in self._expected().items()
            for what, count in worker.role.waiting.items()
        }
        return (
            f"{self.scenario.standing(self.bus, last)}, {unowned} partitions without owner; waiting: "
            f"{waits | unread}; ticks: {self._ticks(PATIENCE)}"
        )

    def _expected(self) -> dict[str, Worker]:
        """The workers that have to finish something, by process."""
        return {who: worker for who, worker in sorted(self._workers.items()) if who not in self._lost}

    def _busy(self) -> list[str]:
        """The processes that are in the middle of something."""
        return [
            process.name
            for process in self.scheduler.processes
            if not process.idle and process.name not in self._lost
        ]

    def _ticks(self, ahead: float) -> list[str]:
        """The processes whose role asks for a tick in the next ``ahead`` seconds. The memory of learnt
        samples, by which late labels are recognised, expires much later: such ticks do not count."""
        soon = self.scheduler.now + ahead
        return [who for who, worker in self._expected().items() if _is_before(worker.role.wake_at, soon)]

    def _unread_and_unowned(self) -> tuple[dict[str, int], int]:
        """Numbers of unread records, by process, and the number of partitions that nobody has."""
        figures = [
            (who, figure)
            for who, worker in self._expected().items()
            for figure in worker.measure()
            if figure.name in (LAG, PARTITIONS) and not self._is_out_of_reach(figure)
        ]
        unread = {
            f"{who} {figure.name}": int(figure.value)
            for who, figure in figures
            if figure.name == LAG and figure.value
        }
        owned = sum(figure.value for _, figure in figures if figure.name == PARTITIONS)
        return unread, self.scenario.tasks - int(owned)

    def _is_out_of_reach(self, figure: Measurement) -> bool:
        """Whether a figure is the lag of a partition that nobody can read."""
        permanent_fault = self.scenario.permanent_fault
        if permanent_fault is None or figure.name != LAG:
            return False
        labels = dict(figure.labels)
        return (labels.get("topic", ""), int(labels.get("partition", 0))) in permanent_fault.places

    # ---- processes

    def _live(self, who: str, settings: RoleSettings) -> None:
        """Run one process after another under this name."""
        fault_draws, rates = self.bus.fault_draws, self.bus.rates
        while who not in self._lost or who in self.bus.cut_off:
            try:
                worker = self._workers[who] = self._start(who, settings)
                try:
                    while not fault_draws.happens(rates.leave):
                        if worker.step(0.5):
                            self.scenario.check_bounds(worker)
                    self.history.fault(self.scheduler.now, who, "leaves")
                    worker.close()
                except BusUnavailable:
                    self.history.note(self.scheduler.now, who, "leaves without saying so")
            except ConfigurationError as refusal:
                damaged = self.bus.damaged.pop(who, None)
                if damaged is None or damaged not in str(refusal):
                    raise
                # The refusal names the record, so an operator can restore it.
                self.history.note(self.scheduler.now, who, f"refuses {damaged}")
                self.bus.fall_silent(who, for_ever=True)
            except Killed:
                if self.scheduler.ending:
                    raise
                self.bus.fall_silent(who, for_ever=True)
            finally:
                self._workers.pop(who, None)
            self.scheduler.sleep(float(fault_draws.draws.exponential(2.0)) if fault_draws.faulty else 0.1)

    def _start(self, who: str, settings: RoleSettings) -> Worker:
        def clock() -> float:
            self.bus.role_times[who] = self.scheduler.now
            return self.scheduler.now

        self.history.note(self.scheduler.now, who, "starts")
        own = self._kinds.get(settings.role.kind)
        worker = build_worker(
            settings, self.bus, clock, self.scheduler.clock, self.scheduler.sleep, SlowPool(self.bus), own
        )
        self.scenario.prepare(worker)
        if who not in self.bus.read_back:
            self.bus.read_back[who] = ReadBack(own or find_kind(settings.role.kind), settings)
        return worker

    def _produce(self, readings: tuple[Reading, ...]) -> None:
        begin = BEGIN
        for reading in readings:
            self.scheduler.sleep(begin + reading.at - self.scheduler.now)
            self.history.note(
                self.scheduler.now, self.bus.who, f"writes {reading.topic} {reading.content['id']}"
            )
            self.bus.write([self._record(reading)])

    def _record(self, reading: Reading) -> Outgoing:
        key = reading.client.encode()
        return Outgoing(reading.topic, key, self._encode(reading.content), None, traced(key))
