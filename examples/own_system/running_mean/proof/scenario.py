"""A federation of a seed: how many clients and processes, what they write, and which faults they meet."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from running_mean.config import KIND, RunningMeanFederation, RunningMeanSettings
from running_mean.messages import Prediction
from streamfl.configuration.settings import RoleSection
from streamfl.contract.seeding import rng_for
from streamfl.records.samples import SamplesSection
from streamfl.runtime.bus import Bus
from streamfl.runtime.worker import Worker
from streamfl.testing.faults.fault_rates import drawn_rates
from streamfl.testing.faults.federation import Reading
from streamfl.testing.faults.observed_messages import require
from streamfl.testing.faults.scenario import MembersScenario

__all__ = ["Scenario", "predictions", "scenario"]

SAMPLES = "samples"


@dataclass(frozen=True)
class Scenario(MembersScenario):
    """Clients, the processes that they are dealt to, and what the clients write."""

    settings: RunningMeanSettings

    def __str__(self) -> str:
        return (
            f"{self.settings.federation.clients} clients, {dict(self.workers)}, {self.partitions} "
            f"partitions; {self.faults}"
        )

    def of(self, member: str) -> RunningMeanSettings:
        return self.settings

    def check_bounds(self, worker: Worker) -> None:
        """A worker holds no more clients than there are."""
        known = next(one.value for one in worker.role.measure() if one.name == "clients")
        require(known <= self.settings.federation.clients, f"{known:g} clients are known")

    def standing(self, bus: Bus, last: bool) -> str:
        written = sum(map(len, self.readings)) + (len(self.last) if last else 0)
        predicted = len(predictions(bus, self.settings))
        return "" if predicted >= written else f"{predicted} of {written} samples are predicted"


def scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    draws = rng_for(seed, "running-mean", "scenario")
    clients, rounds, seconds = (
        int(draws.integers(1, 6)),
        int(draws.integers(3, 15)),
        float(draws.uniform(5, 20)),
    )
    settings = RunningMeanSettings(
        federation=RunningMeanFederation(name="means", seed=seed, clients=clients),
        role=RoleSection(kind=KIND),
        samples=SamplesSection(topic=SAMPLES, format="msgpack", sample_id="id", features=["x"], label="y"),
    )

    def readings(name: str, begin: int, end: int) -> tuple[Reading, ...]:
        times = sorted(draws.uniform(0, seconds, end - begin).tolist())
        labels = draws.uniform(0, 1, end - begin).tolist()
        return tuple(
            Reading(SAMPLES, name, {"id": f"{name}-{number}", "x": 0.0, "y": label}, at, True)
            for number, at, label in zip(range(begin, end), times, labels, strict=True)
        )

    names = [f"client-{number}" for number in range(clients)]
    return Scenario(
        seed=seed,
        settings=settings,
        workers={"worker": int(draws.integers(1, 4))},
        partitions=int(draws.integers(1, 4)),
        readings=tuple(readings(name, 0, rounds) for name in names),
        last=tuple(one for name in names for one in readings(name, rounds, rounds + 2)),
        rates=drawn_rates(draws, seed, exactly_once=True),
        faulty_seconds=seconds,
    )


def predictions(bus: Bus, settings: RunningMeanSettings) -> list[Prediction]:
    """All that were published."""
    decode = msgspec.json.Decoder(Prediction).decode
    return [decode(record.value or b"") for record in bus.read(settings.predictions)]
