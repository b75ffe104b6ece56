"""Runs a scenario: workers that live, die and come back, producers that write, and whether it all comes to an end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec
import numpy as np

from streamfl.pofmkl.client_role import PofmklClient
from streamfl.runtime.bus import BusUnavailable, Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.worker import Worker
from streamfl.settings import RoleSection
from streamfl.simulation.faults.checkers import CheckFailed, check_alike, check_bounds, check_outcome, identity
from streamfl.simulation.faults.cluster import FaultyBus
from streamfl.simulation.faults.history import History
from streamfl.simulation.faults.scenario import Reading, Scenario, scenario
from streamfl.simulation.faults.schedule import BEGIN, Killed, Scheduler

__all__ = ["Federation", "Verdict", "simulate"]

# Virtual seconds within which everything has to be done once nothing fails any more.
PATIENCE = 150.0
# More than any commit interval.
LONGEST_GATHERING = 0.25


@dataclass(frozen=True)
class Verdict:
    """What came of a seed. failure: what does not hold, None if all does. hash, lines: of the history. seconds: virtual."""

    seed: int
    description: str
    failure: str | None
    hash: str
    lines: list[str]
    faults: Counter[str]
    seconds: float


def simulate(seed: int) -> Verdict:
    """Run the scenario of this seed and check whatever must hold of it."""
    chosen = scenario(seed)
    history = History()
    federation = Federation(chosen, history)
    failure = None
    try:
        federation.run()
        check_outcome(federation.bus, chosen)
        if chosen.exact:
            calm = Federation(chosen.calm, History())
            calm.run()
            check_alike(federation.bus, calm.bus, chosen)
    except CheckFailed as failed:
        failure = str(failed)
    except Exception as error:
        # Whatever a worker does not expect ends its process.
        failure = f"{type(error).__name__}: {error}"
    return Verdict(seed, str(chosen), failure, history.hash, history.lines, history.faults, federation.scheduler.now - BEGIN)


class Federation:
    """The processes of one scenario on one cluster."""

    def __init__(self, chosen: Scenario, history: History) -> None:
        self.scenario = chosen
        self.scheduler = Scheduler(chosen.seed)
        self.history = history
        name = chosen.settings.federation.name
        self.bus = FaultyBus(self.scheduler, history, chosen.rates, chosen.seed, f"{name}.updates")
        self._workers: dict[str, Worker] = {}
        self._encode = msgspec.msgpack.Encoder().encode

    def run(self) -> None:
        """All of it: faults, then none, then a restart of everything and some samples more.

        CheckFailed if something waits for ever or grows without bound.
        """
        self._create_topics()
        begin = self.scheduler.now
        try:
            for number, readings in enumerate(self.scenario.readings):
                self.scheduler.spawn(f"producer-{number}", lambda readings=readings: self._produce(readings))  # type: ignore[misc]
            for kind, count in (("server", self.scenario.server_workers), ("client", self.scenario.client_workers)):
                for number in range(count):
                    who = f"{kind}-{number}"
                    self.scheduler.spawn(who, lambda who=who, kind=kind: self._live(who, kind))  # type: ignore[misc]
            self.bus.faulty = True
            self.scheduler.run(begin + self.scenario.faulty_seconds)
            self.bus.faulty = False
            self.history.note(self.scheduler.now, "cluster", "nothing fails any more")
            before, altogether = self.scenario.samples_written
            self._finish(before)
            self.history.note(self.scheduler.now, "cluster", "every process is killed and started again")
            for process in self.scheduler.processes:
                process.kill()
            self.bus.write([self._record(reading) for reading in self.scenario.last])
            self._finish(altogether)
        finally:
            self.scheduler.close()

    def _finish(self, expected: int) -> None:
        deadline = self.scheduler.now + PATIENCE
        noted = -1
        # Records that were polled and wait for their commit show nowhere, but not for so long.
        while (standing := self._standing(expected)) or len(self.history.lines) > noted:
            if self.scheduler.now >= deadline:
                raise CheckFailed(f"not done {PATIENCE:g} s after the last fault: {standing}")
            noted = len(self.history.lines)
            self.scheduler.run(self.scheduler.now + LONGEST_GATHERING)

    def _standing(self, expected: int) -> str:
        """What is not done yet of what was written: predicted, heard, and nobody waits for a time to come."""
        busy = [process.name for process in self.scheduler.processes if not process.idle]
        if busy:
            return f"{', '.join(busy)}: still at it"
        predicted = len({identity(record) for record in self.bus.read(f"{self.scenario.settings.federation.name}.predictions")})
        figures = [(who, figure) for who, worker in sorted(self._workers.items()) for figure in worker.measure()]
        waits = {
            f"{who} {figure.name}": figure.value
            for who, figure in figures
            if figure.name in ("consumer_lag_records", "waiting_samples", "round_waiting") and figure.value
        }
        unowned = self.scenario.partitions + self.scenario.settings.federation.shards
        unowned -= int(sum(figure.value for _, figure in figures if figure.name == "partitions"))
        # What a late label is known by expires long after.
        soon = self.scheduler.now + PATIENCE
        ticks = [who for who, worker in sorted(self._workers.items()) if (worker.role.wake_at or soon) < soon]
        if predicted == expected and not (waits or ticks or unowned):
            return ""
        return f"{predicted} of {expected} samples predicted, {unowned} partitions without owner; waiting: {waits}; ticks: {ticks}"

    # ---- processes

    def _live(self, who: str, kind: str) -> None:
        """One process after another under this name."""
        draws, rates = self.bus.draws, self.bus.rates
        while True:
            try:
                worker = self._workers[who] = self._start(who, kind)
                try:
                    while not self.bus.happens(rates.leave):
                        if worker.step(0.5):
                            check_bounds(worker, self.scenario)
                    self.history.fault(self.scheduler.now, who, "leaves")
                    worker.close()
                except BusUnavailable:
                    self.history.note(self.scheduler.now, who, "leaves without saying so")
            except Killed:
                if self.scheduler.ending:
                    raise
                self.bus.abandon(who)
            finally:
                self._workers.pop(who, None)
            self.scheduler.sleep(float(draws.exponential(2.0)) if self.bus.faulty else 0.1)

    def _start(self, who: str, kind: str) -> Worker:
        settings = self.scenario.settings.model_copy(update={"role": RoleSection(kind=f"pofmkl-{kind}")})

        def clock() -> float:
            self.bus.role_times[who] = self.scheduler.now
            return self.scheduler.now

        self.history.note(self.scheduler.now, who, "starts")
        worker = build_worker(settings, self.bus, clock, self.scheduler.clock, self.scheduler.sleep)
        if isinstance(worker.role, PofmklClient):
            worker.role.waiting_limit = self.scenario.waiting_limit
            if self.scenario.exact:
                learner = cast(Any, worker.role.learner)
                learner.features = _RowByRow(learner.features)
        return worker

    def _produce(self, readings: tuple[Reading, ...]) -> None:
        begin = BEGIN
        for reading in readings:
            self.scheduler.sleep(begin + reading.at - self.scheduler.now)
            self.history.note(self.scheduler.now, self.bus.who, f"writes {reading.topic} {reading.content['id']}")
            self.bus.write([self._record(reading)])

    def _record(self, reading: Reading) -> Outgoing:
        return Outgoing(reading.topic, reading.client.encode(), self._encode(reading.content))

    def _create_topics(self) -> None:
        for kind in ("pofmkl-client", "pofmkl-server"):
            topics = find_kind(kind).topics(self.scenario.settings)
            self.bus.create([replace(topic, partitions=topic.partitions or self.scenario.partitions) for topic in topics])


class _RowByRow:
    """A learner's features, one sample at a time: BLAS rounds a row differently in products of different heights."""

    def __init__(self, features: Any) -> None:
        self._features = features

    def __getattr__(self, name: str) -> Any:
        return getattr(self._features, name)

    def predict(self, inputs: Any, parameters: Any) -> Any:
        count = len(inputs[0]) if isinstance(inputs, list) else len(inputs)

        def row(number: int) -> Any:
            one = slice(number, number + 1)
            return [view[one] for view in inputs] if isinstance(inputs, list) else inputs[one]

        return np.concatenate([self._features.predict(row(number), parameters) for number in range(count)])
