"""A POF-MKL federation under faults, by seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from streamfl.pofmkl.client_role import PofmklClient
from streamfl.role import TopicSpec
from streamfl.runtime.bus import Bus
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.worker import Worker
from streamfl.settings import RoleSection, RoleSettings
from streamfl.simulation.faults.chances import Rates
from streamfl.simulation.faults.checkers import check_alike, check_bounds, check_outcome, identity
from streamfl.simulation.faults.cluster import FaultyBus
from streamfl.simulation.faults.federation import Federation, Reading, Verdict, run
from streamfl.simulation.faults.history import History
from streamfl.simulation.faults.scenario import Scenario, scenario

__all__ = ["simulate"]


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Run the POF-MKL scenario of this seed on a bus, memory or sqlite, and check whatever must hold of it."""
    chosen = scenario(seed)

    def check(faulty: FaultyBus) -> None:
        check_outcome(faulty, chosen)
        if chosen.exact:
            calm = Federation(PofmklShape(chosen.calm), History())
            calm.run()
            check_alike(faulty, calm.bus, chosen)

    return run(PofmklShape(chosen), check, bus)


class PofmklShape:
    """A scenario as those who run it see it."""

    def __init__(self, chosen: Scenario) -> None:
        self._scenario = chosen

    def __str__(self) -> str:
        return str(self._scenario)

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
            name: (count, self._scenario.settings.model_copy(update={"role": RoleSection(kind=f"pofmkl-{name}")}))
            for name, count in (("server", self._scenario.server_workers), ("client", self._scenario.client_workers))
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
        return self._scenario.partitions + self._scenario.settings.federation.shards

    def prepare(self, worker: Worker) -> None:
        if isinstance(worker.role, PofmklClient):
            worker.role.waiting_limit = self._scenario.waiting_limit
            if self._scenario.exact:
                learner = cast(Any, worker.role.learner)
                learner.features = _RowByRow(learner.features)

    def check_bounds(self, worker: Worker) -> None:
        check_bounds(worker, self._scenario)

    def standing(self, bus: Bus, last: bool) -> str:
        expected = self._scenario.samples_written[last]
        predicted = len({identity(record) for record in bus.read(f"{self._scenario.settings.federation.name}.predictions")})
        return "" if predicted == expected else f"{predicted} of {expected} samples predicted"


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
