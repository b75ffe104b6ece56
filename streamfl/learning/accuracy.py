"""Measures of predictions for labels 0 and 1: log loss, accuracy, the area under the ROC curve, the
Kolmogorov-Smirnov statistic.

The squared error of a probability, the Brier score, is the mean squared error and needs no function here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["accuracy", "area_under_curve", "classification_figures", "kolmogorov_smirnov", "log_loss"]


def log_loss(probabilities: NDArray[Any], labels: NDArray[Any]) -> float:
    """Mean of -log(probability of the true label), in nats; NaN without labels.

    probabilities: of label 1, any shape; clipped to [eps, 1 - eps] with eps = 2^-52: a certain error costs
    36, not infinity.
    labels: 0 or 1, of the same shape.

    >>> round(log_loss(np.array([0.5, 0.75]), np.array([0.0, 1.0])), 6)
    0.490415
    """
    given = np.where(np.asarray(labels) > 0.5, probabilities, 1.0 - np.asarray(probabilities))
    spacing = float(np.finfo(np.float64).eps)
    return float(-np.log(np.clip(given, spacing, 1.0 - spacing)).mean()) if given.size else float("nan")


def accuracy(probabilities: NDArray[Any], labels: NDArray[Any]) -> float:
    """Share of samples whose more probable label is right; NaN without labels.

    probabilities: of label 1, any shape; from 0.5 upward label 1 is predicted.
    labels: 0 or 1, of the same shape.
    """
    right = (np.asarray(probabilities) >= 0.5) == (np.asarray(labels) > 0.5)
    return float(right.mean()) if right.size else float("nan")


def area_under_curve(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """How often a sample of label 1 scores higher than one of label 0, ties counted half; NaN if one of the
    labels is missing, or a score is NaN.

    AUC = U / (n_1 n_0),  U = sum of the ranks of label 1 - n_1 (n_1 + 1) / 2   (Mann and Whitney 1947; ties
    share their rank)

    scores: any numbers that grow with the probability of label 1, any shape.
    labels: 0 or 1, of the same shape.

    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    ones = np.ravel(labels) > 0.5
    positive = int(ones.sum())
    negative = ones.size - positive
    if not positive or not negative:
        return float("nan")
    values, places, counts = np.unique(np.ravel(scores), return_inverse=True, return_counts=True)
    if np.isnan(values[-1]):
        return float("nan")
    # Equal scores share the mean of their ranks. scipy.stats does it too, and takes half a second to load.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return float((ranks[ones].sum() - positive * (positive + 1) / 2) / (positive * negative))


def kolmogorov_smirnov(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """KS: the largest distance between the distributions of the two labels' scores; NaN if one of the labels
    is missing.

    max over c of |share of label 0 with a score of at most c - share of label 1 with a score of at most c|

    scores: any numbers, any shape.
    labels: 0 or 1, of the same shape.

    >>> kolmogorov_smirnov(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.5
    """
    flat, ones = np.ravel(scores), np.ravel(labels) > 0.5
    positive, negative = np.sort(flat[ones]), np.sort(flat[~ones])
    if not len(positive) or not len(negative):
        return float("nan")
    shares = [np.searchsorted(own, flat, side="right") / len(own) for own in (negative, positive)]
    return float(np.abs(shares[0] - shares[1]).max())


def classification_figures(probabilities: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
    """``log_loss``, ``accuracy`` and ``auc`` over all samples together.

    probabilities: of label 1, any shape.
    labels: 0 or 1, of the same shape.
    """
    return {
        "log_loss": log_loss(probabilities, labels),
        "accuracy": accuracy(probabilities, labels),
        "auc": area_under_curve(probabilities, labels),
    }
