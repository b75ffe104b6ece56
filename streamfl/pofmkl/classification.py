"""How probabilities of label 1 are judged, beside their squared error, which is the Brier score."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

__all__ = ["accuracy", "area_under_curve", "classification_figures", "log_loss"]


def log_loss(probabilities: NDArray[Any], labels: NDArray[Any]) -> float:
    """Mean of -log of what was given to the label that came, in nats; NaN without labels.

    A probability is kept away from 0 and 1 by the spacing of doubles at 1, so that certainty in error costs 36 and not infinity.

    >>> round(log_loss(np.array([0.5, 0.75]), np.array([0.0, 1.0])), 6)
    0.490415
    """
    given = np.where(np.asarray(labels) > 0.5, probabilities, 1.0 - np.asarray(probabilities))
    spacing = float(np.finfo(np.float64).eps)
    return float(-np.log(np.clip(given, spacing, 1.0 - spacing)).mean()) if given.size else float("nan")


def accuracy(probabilities: NDArray[Any], labels: NDArray[Any]) -> float:
    """Share of the samples whose label is the likelier one, that is 1 from a half upward; NaN without labels."""
    right = (np.asarray(probabilities) >= 0.5) == (np.asarray(labels) > 0.5)
    return float(right.mean()) if right.size else float("nan")


def area_under_curve(probabilities: NDArray[Any], labels: NDArray[Any]) -> float:
    """How often a sample of label 1 is given more than one of label 0, ties counted half; NaN where one of the labels is missing.

    AUC = U / (n_1 n_0),  U = sum of the ranks of label 1 - n_1 (n_1 + 1) / 2   (Mann and Whitney 1947; ties share their rank)
    """
    ones = np.ravel(labels) > 0.5
    positive = int(ones.sum())
    negative = ones.size - positive
    if not positive or not negative:
        return float("nan")
    ranks = rankdata(np.ravel(probabilities))
    return float((ranks[ones].sum() - positive * (positive + 1) / 2) / (positive * negative))


def classification_figures(probabilities: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    """``log_loss``, ``accuracy`` and ``auc`` of predictions and labels of one shape, all samples together."""
    return {
        "log_loss": log_loss(probabilities, labels),
        "accuracy": accuracy(probabilities, labels),
        "auc": area_under_curve(probabilities, labels),
    }
