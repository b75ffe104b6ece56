"""Compares a model's loss with that of the labels' mean, which needs nobody's columns."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from streamfl.terminal.console import say

__all__ = ["mean_loss", "running_mean_loss", "running_means", "say_where_useless"]

Floats = NDArray[np.float64]


def running_means(labels: Floats, classes: int = 1) -> Floats:
    """Running mean before each label, shape (n, classes). It starts from one pseudo-label that is uniform
    over the classes.

    labels: (n,), numbers from 0 to 1, or 0 .. classes - 1.
    classes: 2 or more: the means are class shares; 1: labels are numbers.
    """
    shown = np.eye(classes)[labels.astype(np.intp)] if classes > 1 else labels[:, np.newaxis]
    before = np.cumsum(shown, axis=0) - shown
    return np.asarray((before + 1 / max(2, classes)) / np.arange(1, len(labels) + 1)[:, np.newaxis])


def running_mean_loss(labels: Floats, classes: int = 1) -> float:
    """Loss of predicting the running mean: mean squared error of numbers, mean log loss of classes in nats.
    NaN without labels."""
    return _loss(running_means(labels, classes), labels, classes)


def mean_loss(labels: Floats, classes: int = 1) -> float:
    """Loss of predicting the mean of all these labels, or their class shares. No constant prediction has a
    smaller loss."""
    if not len(labels):
        return math.nan
    mean = (
        np.bincount(labels.astype(np.intp), minlength=classes) / len(labels)
        if classes > 1
        else labels.mean(keepdims=True)
    )
    return _loss(np.broadcast_to(mean, (len(labels), classes)), labels, classes)


def say_where_useless(measured: Iterable[tuple[str, float | None, float | None]], remedy: str) -> None:
    """Warn of each loss that is above the mean's.

    measured: (what was predicted, the model's loss, the mean's loss). A loss of None or NaN was not measured.
    remedy: what a user of this system can do.
    """
    for what, loss, of_mean in measured:
        if loss is not None and of_mean is not None and loss > of_mean:
            told = f"the loss of {what}, {loss:.4g}, is above that of the labels' mean, {of_mean:.4g}"
            say(f"{told}: this model is worse than none. {remedy}")


def _loss(means: Floats, labels: Floats, classes: int) -> float:
    if not len(labels):
        return math.nan
    if classes == 1:
        return float(np.square(means[:, 0] - labels).mean())
    return float(-np.log(means[np.arange(len(labels)), labels.astype(np.intp)]).mean())
