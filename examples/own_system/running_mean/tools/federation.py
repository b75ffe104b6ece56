"""Samples through one worker on the memory bus."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from running_mean.config import RunningMeanSettings
from running_mean.messages import Prediction
from streamfl.runtime.bus import Outgoing
from streamfl.simulation.in_memory import run_in_memory

__all__ = ["predictions_of", "rmse"]


def predictions_of(settings: RunningMeanSettings, records: list[Outgoing]) -> NDArray[np.float64]:
    """What is predicted of each record, in the label's own unit."""
    bus, decode = run_in_memory([settings], records), msgspec.json.Decoder(Prediction).decode
    return np.array([decode(record.value or b"").prediction for record in bus.read(settings.predictions)])


def rmse(predictions: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """predictions, labels: (rows,)."""
    return float(np.sqrt(np.square(predictions - labels).mean()))
