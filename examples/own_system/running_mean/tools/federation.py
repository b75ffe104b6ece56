"""Streams of labels through one worker on the memory bus."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from running_mean.config import RunningMeanSettings
from running_mean.messages import Prediction
from streamfl.configuration.settings import BusSection
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus

__all__ = ["Outcome", "run"]


@dataclass(frozen=True)
class Outcome:
    """predictions, labels: (rows,), in the label's own unit."""

    predictions: NDArray[np.float64]
    labels: NDArray[np.float64]

    @property
    def rmse(self) -> float:
        return float(np.sqrt(np.square(self.predictions - self.labels).mean()))


def run(settings: RunningMeanSettings, records: list[Outgoing], labels: NDArray[np.float64]) -> Outcome:
    """Write the records, one for each label, and read what is predicted."""
    settings = settings.in_one_process().model_copy(update={"bus": BusSection(commit_interval_ms=0)})
    bus = MemoryBus()
    bus.create([replace(topic, partitions=1) for topic in find_kind(settings.role.kind).topics(settings)])
    bus.write(records)
    with closing(build_worker(settings, bus)) as worker:
        while worker.step(0.0):
            pass
    decode = msgspec.json.Decoder(Prediction).decode
    predictions = [decode(record.value or b"").prediction for record in bus.read(settings.predictions)]
    return Outcome(np.array(predictions), labels)
