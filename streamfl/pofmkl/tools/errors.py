"""RMSE and MAE in the label's own unit, from squared errors on the learning scale."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamfl.pofmkl.client.live_challengers import LiveChallengers

__all__ = ["Errors", "errors_of", "errors_of_challengers", "rmse_over_time", "without_regret"]

Floats = NDArray[np.float64]


class Errors(NamedTuple):
    """Errors of predictions, in the label's own unit. Not finite where the learner diverged."""

    rmse: float
    mae: float


@np.errstate(over="ignore", invalid="ignore")
def errors_of(squared: Floats, labels: Floats, label_unit: float) -> Errors:
    """The errors over all samples.

    squared: (T, K), squared errors on the learning scale.
    labels: (T, K), NaN where there is no sample.
    label_unit: units of the label for 1 on the learning scale.
    """
    there = ~np.isnan(labels)
    return Errors(
        label_unit * float(np.sqrt(squared.mean(where=there))),
        label_unit * float(np.sqrt(squared).mean(where=there)),
    )


@np.errstate(over="ignore", invalid="ignore")
def rmse_over_time(squared: Floats, labels: Floats, label_unit: float) -> Floats:
    """The RMSE of all samples so far after each round, (T,); arguments as for :func:`errors_of`."""
    there = ~np.isnan(labels)
    totals = np.cumsum(squared.sum(axis=1, where=there)) / np.cumsum(there.sum(axis=1))
    return np.asarray(label_unit * np.sqrt(totals))


def errors_of_challengers(challengers: LiveChallengers | None) -> dict[str, Errors]:
    """Each challenger's errors by its name, on the learning scale."""
    if challengers is None:
        return {}
    squared, absolute = challengers.mean_squared_errors(), challengers.mean_absolute_errors()
    return {name: Errors(math.sqrt(squared[name]), absolute[name]) for name in squared}


def without_regret(rmse: float, regret: float, label_unit: float, loss: str) -> float | None:
    """The RMSE of each client's best kernel in hindsight: the squared error minus the regret   (POF-MKL, eq.
    11).

    regret: per sample, on the learning scale. Returns None if the loss is not the squared error.
    """
    return label_unit * math.sqrt(max(0.0, (rmse / label_unit) ** 2 - regret)) if loss == "square" else None
