"""Measures of a model on entities that it has not learnt from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamfl.learning.accuracy import area_under_curve, kolmogorov_smirnov, log_loss
from streamfl.quasi_newton.scoring.scorecard import Calibration

__all__ = ["calibration_error", "held_out_figures"]

Floats = NDArray[np.float64]
BINS = 10


def calibration_error(probabilities: Floats, ones: NDArray[np.bool_], bins: int = BINS) -> float:
    """Mean over rows of |mean probability - share of label +1| of the row's bin. Bins are by probability, of
    about equal size.

    probabilities: of label +1, (rows,).
    ones: whether the label is +1, (rows,).
    """
    order = np.argsort(probabilities, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return float(
        sum(len(part) * abs(probabilities[part].mean() - ones[part].mean()) for part in parts) / len(order)
    )


def held_out_figures(outputs: Floats, labels: Floats, calibration: Calibration | None) -> dict[str, float]:
    """auc and ks, and with a calibration log_loss and calibration_error. Empty if one of the labels is
    missing.

    outputs: u, (rows,).
    labels: -1 and +1, (rows,).
    """
    ones = np.asarray(labels) > 0
    if ones.all() or not ones.any():
        return {}
    figures = {"auc": area_under_curve(outputs, ones), "ks": kolmogorov_smirnov(outputs, ones)}
    if calibration is not None:
        chances = calibration.probabilities(outputs)
        figures |= {
            "log_loss": log_loss(chances, ones),
            "calibration_error": calibration_error(chances, ones),
        }
    return figures
