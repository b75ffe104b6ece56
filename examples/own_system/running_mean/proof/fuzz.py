"""``make fuzz``: wrong samples, and wrong records of the changelog."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from running_mean.config import KIND, RunningMeanFederation, RunningMeanSettings
from running_mean.messages import Mean, encode_mean
from streamfl.configuration.settings import RoleSection
from streamfl.contract.role import Send
from streamfl.records.samples import SamplesSection
from streamfl.testing.fuzz.federations import Corpus, Fuzzed
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.targets import Restored, RoleTarget, Target

__all__ = ["RUNNING_MEAN"]

FEDERATION = "running-mean"
corpus = Corpus(Path(__file__).parent / "corpus")
settings = RunningMeanSettings(
    federation=RunningMeanFederation(name="means", clients=100_000),
    role=RoleSection(kind=KIND),
    samples=SamplesSection(topic="samples", features=["x"], label="y"),
)


def sample(client: str, number: int) -> FuzzedRecord:
    content = {"x": float(number), "y": (number % 10) / 10}
    return FuzzedRecord("samples", client.encode(), json.dumps(content).encode(), number % 2)


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


def record(federation: str) -> list[FuzzedRecord]:
    """Samples of three clients, and what is remembered of two."""
    samples = [sample(f"client-{number % 3}", number) for number in range(12)]
    return [*samples, *(FuzzedRecord("state", b"client-%d" % count, encode_mean(Mean(count, 0.25))) for count in (1, 2))]


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """By name, what makes one."""
    return {
        f"role {FEDERATION}": lambda name: RunningMeanTarget(name, corpus(FEDERATION, "samples"), random, settings),
        f"restore {FEDERATION}": lambda name: Restored(name, corpus(FEDERATION, "state"), random, settings),
    }


RUNNING_MEAN = Fuzzed(corpus, (FEDERATION,), record, targets)
