"""A POF-MKL federation under faults, by seed."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from pofmkl.proof.checks import check_alike, check_bounds, check_outcome, check_said, identity
from pofmkl.proof.scenario import SAMPLES, Scenario, scenario

from streamfl.configuration.settings import RoleSection, RoleSettings
from streamfl.contract.role import TopicSpec
from streamfl.contract.seeding import rng_for
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.runtime.bus import Bus
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.worker import Worker
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.fault_rates import Rates
from streamfl.testing.faults.federation import Federation, Reading, Verdict, run
from streamfl.testing.faults.history import History
from streamfl.testing.faults.permanent_faults import GONE, PermanentFault, of_a_process
from streamfl.testing.faults.systems import FaultSimulation

__all__ = ["FAULTS", "simulate", "simulate_liveness"]


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Run the POF-MKL scenario of this seed on a bus, memory or sqlite, and check everything that must
    hold."""
    chosen = scenario(seed)

    def check(faulty: FaultyBus) -> None:
        check_outcome(faulty, chosen)
        if chosen.exact:
            calm = Federation(PofmklShape(chosen.calm), History())
            calm.run()
            check_alike(faulty, calm.bus, chosen)

    return run(PofmklShape(chosen), check, bus)


def simulate_liveness(seed: int, bus: str = "memory") -> Verdict:
    """As :func:`simulate`, with a permanent fault: everything that does not depend on the lost parts must
    complete."""
    chosen, permanent_fault = _with_a_fault_that_stays(seed)
    shape = PofmklShape(chosen, permanent_fault)

    def check(faulty: FaultyBus) -> None:
        if servers_are_gone(chosen, permanent_fault):
            check_said(faulty, chosen)
        else:
            check_outcome(faulty, shape.within_reach(faulty))

    return run(shape, check, bus)


def servers_are_gone(chosen: Scenario, permanent_fault: PermanentFault | None) -> bool:
    """Whether the permanent fault stops all servers."""
    servers = {f"server-{number}" for number in range(chosen.server_workers)}
    return permanent_fault is not None and servers <= permanent_fault.processes.keys()


def _with_a_fault_that_stays(seed: int) -> tuple[Scenario, PermanentFault | None]:
    """The scenario of this seed and its permanent fault; None: a client falls silent, and so has fewer
    samples."""
    draws = rng_for(seed, "simulation", "what stays")
    chosen = scenario(seed)
    learning = chosen.settings.learning.model_copy(
        update={"round_timeout_seconds": 5.0, "catch_up_patience_seconds": 2.0}
    )
    settings = chosen.settings.model_copy(update={"learning": learning})
    chosen = replace(
        chosen,
        settings=settings,
        exact=False,
        client_workers=max(2, chosen.client_workers),
        server_workers=max(2, chosen.server_workers),
    )
    at = float(draws.uniform(0.0, chosen.faulty_seconds))
    kinds = ["process", "process", "client"]
    if learning.staleness == "async":
        kinds.append("servers")
    if not chosen.late_labels and chosen.partitions > 1:
        kinds += ["partition"] * 2
    kind = kinds[int(draws.integers(len(kinds)))]
    if kind == "process":
        return chosen, of_a_process(draws, at, ["client", "server"])
    if kind == "servers":
        gone = {f"server-{n}": GONE for n in range(chosen.server_workers)}
        return chosen, PermanentFault("all servers never come back", at, gone)
    if kind == "partition":
        place = SAMPLES, int(draws.integers(chosen.partitions))
        return chosen, PermanentFault(
            f"partition {place[1]} of the samples cannot be read", at, {}, frozenset([place])
        )
    silent = f"client-{int(draws.integers(chosen.clients))}"

    def until(readings: tuple[Reading, ...], end: float) -> tuple[Reading, ...]:
        # Its labels are still written.
        return tuple(one for one in readings if one.client != silent or one.at < end)

    if chosen.late_labels:
        return chosen, of_a_process(draws, at, ["client", "server"])
    return replace(
        chosen, readings=tuple(until(own, at) for own in chosen.readings), last=until(chosen.last, 0.0)
    ), None


class PofmklShape:
    """A scenario as the fault simulation runs it."""

    def __init__(self, chosen: Scenario, permanent_fault: PermanentFault | None = None) -> None:
        self._scenario = chosen
        self._staying = permanent_fault

    def __str__(self) -> str:
        return str(self._scenario) if self._staying is None else f"{self._scenario}; {self._staying}"

    @property
    def permanent_fault(self) -> PermanentFault | None:
        return self._staying

    def within_reach(self, bus: Bus) -> Scenario:
        """The scenario without samples that could not be read: those of clients in unreadable partitions
        without a prediction."""
        unreadable = set() if self._staying is None else {partition for _, partition in self._staying.places}
        if not unreadable:
            return self._scenario
        partitions = self._scenario.partitions
        hidden = {
            name for name in self._scenario.samples if zlib.crc32(name.encode()) % partitions in unreadable
        }
        predicted = {
            identity(record) for record in bus.read(f"{self._scenario.settings.federation.name}.predictions")
        }

        def readable(readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
            return tuple(
                one
                for one in readings
                if one.client not in hidden or (one.client, one.content["id"]) in predicted
            )

        chosen = self._scenario
        return replace(
            chosen, readings=tuple(readable(own) for own in chosen.readings), last=readable(chosen.last)
        )

    @property
    def seed(self) -> int:
        return self._scenario.seed

    @property
    def rates(self) -> Rates:
        return self._scenario.rates

    @property
    def readings(self) -> tuple[tuple[Reading, ...], ...]:
        return self._scenario.readings

    @property
    def last(self) -> tuple[Reading, ...]:
        return self._scenario.last

    @property
    def faulty_seconds(self) -> float:
        return self._scenario.faulty_seconds

    @property
    def members(self) -> Mapping[str, tuple[int, RoleSettings]]:
        return {
            name: (
                count,
                self._scenario.settings.model_copy(update={"role": RoleSection(kind=f"pofmkl-{name}")}),
            )
            for name, count in (
                ("server", self._scenario.server_workers),
                ("client", self._scenario.client_workers),
            )
        }

    @property
    def repeatable(self) -> Collection[str]:
        return {f"{self._scenario.settings.federation.name}.updates"}

    @property
    def topics(self) -> Sequence[TopicSpec]:
        specs = {
            spec.name: replace(spec, partitions=spec.partitions or self._scenario.partitions)
            for kind in ("pofmkl-client", "pofmkl-server")
            for spec in find_kind(kind).topics(self._scenario.settings)
        }
        return list(specs.values())

    @property
    def tasks(self) -> int:
        shards = self._scenario.settings.federation.shards
        return self._scenario.partitions + (0 if servers_are_gone(self._scenario, self._staying) else shards)

    def prepare(self, worker: Worker) -> None:
        if isinstance(worker.role, PofmklClient):
            worker.role.waiting_limit = self._scenario.waiting_limit
            if self._scenario.exact:
                learner = cast(Any, worker.role.learner)
                learner.features = _RowByRow(learner.features)

    def check_bounds(self, worker: Worker) -> None:
        check_bounds(worker, self._scenario)

    def standing(self, bus: Bus, last: bool) -> str:
        expected = self.within_reach(bus).samples_written[last]
        predicted = len(
            {
                identity(record)
                for record in bus.read(f"{self._scenario.settings.federation.name}.predictions")
            }
        )
        return "" if predicted == expected else f"{predicted} of {expected} samples predicted"


class _RowByRow:
    """A learner's features, computed one sample at a time: BLAS rounds a row differently in products of
    different heights."""

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


FAULTS = FaultSimulation(simulate, simulate_liveness)
