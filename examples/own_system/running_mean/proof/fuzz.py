"""``make fuzz``: wrong samples, and wrong records of the changelog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from random import Random

from running_mean.config import KIND, RunningMeanFederation, RunningMeanSettings
from streamfl.configuration.settings import RoleSection
from streamfl.contract.role import Send
from streamfl.records.samples import SamplesSection
from streamfl.testing.fuzz.federations import FuzzedFederation, users_record
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.targets import RoleTarget, Target, member_targets

__all__ = ["FEDERATION", "targets"]

settings = RunningMeanSettings(
    federation=RunningMeanFederation(name="means", clients=100_000),
    role=RoleSection(kind=KIND),
    samples=SamplesSection(topic="samples", features=["x"], label="y"),
)


def sample(client: str, number: int) -> FuzzedRecord:
    # Every fifth has no label.
    label = None if number % 5 == 4 else (number % 10) / 10
    return users_record("samples", settings.samples, client, {"x": float(number), "y": label})


def written(number: int) -> Iterator[tuple[str, FuzzedRecord]]:
    """What users write in a round: a sample of one of three clients."""
    yield "worker", sample(f"client-{number % 3}", number)


FEDERATION = FuzzedFederation({"worker": settings}, written)


class RunningMeanTarget(RoleTarget):
    """The role, told by its users."""

    _heard = 0

    def goes_on(self) -> None:
        before = self._heard
        assert self.feed(sample("the-good-one", 0)) is None, "a good sample was refused"
        assert self._heard == before + 1, "a good sample was not predicted"

    def sent(self, send: Send) -> None:
        prediction = json.loads(send.value)
        assert 0.0 <= prediction["prediction"] <= 1.0 or prediction["client"] != "the-good-one"
        self._heard += prediction["client"] == "the-good-one"


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """By name, what makes a target of wrong messages: the worker, and its start from a damaged changelog."""
    return member_targets(random, {"means": FEDERATION}, {"worker": RunningMeanTarget})
