"""Turns the model's output into a probability and points: Platt scaling at the guest, and each party's part
of a scorecard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from streamfl.quasi_newton.rows.preprocessing import EVIDENCE, Preprocessing

__all__ = ["Calibration", "ScoreScale", "fit_calibration", "points_of_party", "score"]

Floats = NDArray[np.float64]
MOST_STEPS, PRECISE = 100, 1e-10


@dataclass(frozen=True)
class Calibration:
    """Log-odds a + b u of label +1. The output u itself is no log-odds."""

    intercept: float
    slope: float

    def log_odds(self, outputs: Floats) -> Floats:
        return np.asarray(self.intercept + self.slope * np.asarray(outputs), dtype=np.float64)

    def probabilities(self, outputs: Floats) -> Floats:
        """sigma(a + b u), of label +1."""
        return np.asarray(expit(self.log_odds(outputs)), dtype=np.float64)


def fit_calibration(outputs: Floats, labels: Floats) -> Calibration:
    """Platt scaling: a logistic regression of the label on u, on rows that the model has not learnt from.

    The targets are (n_1 + 1) / (n_1 + 2) and 1 / (n_0 + 2) in place of 1 and 0, so that the slope stays
    finite (Platt 1999).

    outputs: u, (rows,).
    labels: -1 and +1, (rows,); ValueError if one of the two is missing.
    """
    outputs, ones = np.asarray(outputs, dtype=np.float64), np.asarray(labels) > 0
    positive, negative = int(ones.sum()), int((~ones).sum())
    if not positive or not negative:
        raise ValueError("calibration needs held-out rows of both labels")
    targets = np.where(ones, (positive + 1) / (positive + 2), 1 / (negative + 2))
    columns = np.column_stack([np.ones_like(outputs), outputs])
    found = np.array([math.log((positive + 1) / (negative + 1)), 0.0])

    def cost(at: Floats) -> float:
        return float(np.sum(np.logaddexp(0.0, columns @ at) - targets * (columns @ at)))

    for _ in range(MOST_STEPS):
        chances = expit(columns @ found)
        slope = columns.T @ (chances - targets)
        hessian = (columns * (chances * (1 - chances))[:, np.newaxis]).T @ columns
        # A ridge in proportion to the Hessian: if all outputs are alike, as a host can make them, the Hessian
        # is singular.
        hessian += 1e-12 * np.diag(1.0 + hessian.diagonal())
        step, size = np.linalg.solve(hessian, slope), 1.0
        while cost(found - size * step) > cost(found) and size > PRECISE:
            size /= 2
        found = found - size * step
        if np.abs(size * step).max() < PRECISE * (1 + np.abs(found).max()):
            break
    return Calibration(float(found[0]), float(found[1]))


@dataclass(frozen=True)
class ScoreScale:
    """base_points: the score at odds of base_odds to one against label +1. doubling: points that double these
    odds."""

    base_points: float = 600.0
    base_odds: float = 50.0
    doubling: float = 20.0

    @property
    def factor(self) -> float:
        """Points of one unit of log-odds."""
        return self.doubling / math.log(2.0)

    @property
    def offset(self) -> float:
        """Points at odds of one to one."""
        return self.base_points - self.factor * math.log(self.base_odds)


def score(outputs: Floats, calibration: Calibration, scale: ScoreScale) -> Floats:
    """offset - factor (a + b u): the more points, the less likely is label +1."""
    return np.asarray(scale.offset - scale.factor * calibration.log_odds(outputs), dtype=np.float64)


def points_of_party(
    names: Sequence[str],
    weights: Floats,
    preprocessing: Preprocessing,
    calibration: Calibration,
    scale: ScoreScale,
    *,
    guest: bool = False,
    decimals: int = 2,
) -> dict[str, Any]:
    """The content of one party's scorecard file: points of its columns. Their sum over all parties is the
    score.

    names: of the raw columns.
    weights: of the columns that preprocessing makes; at the guest the intercept's is the last.
    guest: whether this party is the guest, whose file has the points that belong to no column.
    decimals: that points are rounded to. Rounded points reveal less about the columns.
    """
    unit = -scale.factor * calibration.slope
    own = np.asarray(weights[: len(weights) - 1] if guest else weights, dtype=np.float64)
    constant = (
        scale.offset - scale.factor * calibration.intercept + unit * float(weights[-1]) if guest else 0.0
    )
    columns: list[dict[str, Any]] = []
    if preprocessing.method == EVIDENCE:
        for number, (name, edges, values) in enumerate(
            zip(names, preprocessing.edges, preprocessing.values, strict=True)
        ):
            value = unit * float(own[number]) / float(preprocessing.deviation[number])
            constant -= value * float(preprocessing.mean[number])
            columns.append({"column": name, "bins": _bins(edges, value * values, decimals)})
    elif preprocessing.method == "quantile-bins":
        place = 0
        for name, edges, kept in zip(names, preprocessing.edges, preprocessing.kept, strict=True):
            points = np.zeros(len(edges) + 2)
            for number in kept:
                value = unit * float(own[place]) / float(preprocessing.deviation[place])
                points[number] += value
                constant -= value * float(preprocessing.mean[place])
                place += 1
            columns.append({"column": name, "bins": _bins(edges, points, decimals)})
    else:
        for number, name in enumerate(names):
            value = unit * float(own[number]) / float(preprocessing.deviation[number])
            constant -= value * float(preprocessing.mean[number])
            columns.append({"column": name, "points_per_unit": value})
    return {"constant": round(constant, decimals), "transform": preprocessing.method, "columns": columns}


def _bins(edges: Floats, points: Floats, decimals: int) -> list[dict[str, Any]]:
    """Each bin's ends, None for an open end, and its points. The last bin is of missing numbers."""
    ends = [None, *map(float, edges), None]
    shown: list[dict[str, Any]] = [
        {"from": ends[number], "below": ends[number + 1], "points": round(float(points[number]), decimals)}
        for number in range(len(edges) + 1)
    ]
    return [*shown, {"missing": True, "points": round(float(points[-1]), decimals)}]
