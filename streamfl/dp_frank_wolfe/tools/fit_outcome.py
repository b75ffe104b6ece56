"""How the fits of a run ended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings

__all__ = ["FitOutcome"]


@dataclass(frozen=True)
class FitOutcome:
    """How the fits ended. With several windows, figures are of the last one.

    rows: of all windows together.
    test_rows: rows that r2 is measured on; 0: the rows of the last window.
    history: by iteration, objective, gap and support, before each step and after the last.
    uplink_numbers: signed indices and numbers of columns that parties sent, in all windows.
    uplink_most: what their plans allow.
    epsilon: of an entity's whole life.
    epsilon_spent: of the entity that the most was released of.
    parties: by name, columns, columns with a weight.
    traffic: by kind of topic, messages and bytes.
    seconds: on the clock.
    weights: by party.
    intercept: of the last model, in label bounds.
    trace: arrays by name.
    r2_draws: r2 of this and of other draws of noise, on the same rows; one without noise, none where r2 is
    None.
    prediction_noise: deviation of the noise in a prediction that is served, in the label's own unit; 0
    without noise.
    served_r2: r2 of such predictions. None without noise, or where r2 is None.
    alone, pooled: r2 of least squares without privacy, on each party's columns and on all.
    """

    settings: DPFrankWolfeSettings
    windows: int
    rows: int
    test_rows: int
    r2: float | None
    history: list[dict[str, float]]
    iterations: int
    uplink_numbers: int
    uplink_most: int
    epsilon: float
    epsilon_spent: float
    parties: dict[str, dict[str, int]]
    traffic: dict[str, dict[str, int]]
    seconds: float
    virtual_seconds: float
    weights: dict[str, NDArray[np.float64]]
    intercept: float
    trace: dict[str, NDArray[Any]]
    r2_draws: list[float]
    alone: dict[str, float | None]
    pooled: float | None
    prediction_noise: float
    served_r2: float | None

    def summary(self) -> dict[str, Any]:
        """Everything but arrays, ready for JSON. messages, bytes: between members."""
        last, privacy = self.history[-1], self.settings.privacy
        return {
            "r2": self.r2,
            "objective": last["objective"],
            "gap": last["gap"],
            "support": int(last["support"]),
            "l1_norm": math.fsum(abs(weight) for own in self.weights.values() for weight in own.tolist()),
            "epsilon": self.epsilon,
            "delta": privacy.delta,
            "uplink_numbers": self.uplink_numbers,
            "bytes": sum(one["bytes"] for one in self.traffic.values()),
            "iterations": self.iterations,
            "virtual_seconds": self.virtual_seconds,
            "intercept": self.intercept,
            "not_private": ["r2", "objective", "gap", "history", "r2_draws", "alone", "pooled", "served_r2"],
            "r2_draws": self.r2_draws,
            "alone": self.alone,
            "pooled": self.pooled,
            "r2_of": "held-out rows" if self.test_rows else "training rows",
            "epsilon_spent": self.epsilon_spent,
            "insecure_test_noise": privacy.insecure_test_noise,
            "estimator": self.settings.learning.estimator,
            "windows": self.windows,
            "rows": self.rows,
            "test_rows": self.test_rows,
            "uplink_most": self.uplink_most,
            "messages": sum(one["messages"] for one in self.traffic.values()),
            "seconds": self.seconds,
            "traffic": self.traffic,
            "parties": self.parties,
            "history": self.history,
            "prediction_noise": self.prediction_noise,
            "served_r2": self.served_r2,
        }
