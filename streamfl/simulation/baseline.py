"""Whether what was learnt is worth more than the mean of the labels, which needs nobody's columns."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from streamfl.console import say

__all__ = ["mean_loss", "running_mean_loss", "running_means", "say_where_useless"]

Floats = NDArray[np.float64]


def running_means(labels: Floats, classes: int = 1) -> Floats:
    """Before each label, the mean of those before it and of one that is no class more than another: (n, classes).

    labels: (n,), numbers from 0 to 1, or 0 .. classes - 1.
    classes: with 2 and more, shares of them; 1: labels are numbers.
    """
    shown = np.eye(classes)[labels.astype(np.intp)] if classes > 1 else labels[:, np.newaxis]
    before = np.cumsum(shown, axis=0) - shown
    return np.asarray((before + 1 / max(2, classes)) / np.arange(1, len(labels) + 1)[:, np.newaxis])


def running_mean_loss(labels: Floats, classes: int = 1) -> float:
    """What that loses: squared error of numbers, log loss of classes in nats; on average, NaN without labels."""
    return _loss(running_means(labels, classes), labels, classes)


def mean_loss(labels: Floats, classes: int = 1) -> float:
    """What the mean of these very labels would have lost, or the classes' shares among them: no constant loses less."""
    if not len(labels):
        return math.nan
    mean = np.bincount(labels.astype(np.intp), minlength=classes) / len(labels) if classes > 1 else labels.mean(keepdims=True)
    return _loss(np.broadcast_to(mean, (len(labels), classes)), labels, classes)


def say_where_useless(measured: Iterable[tuple[str, float | None, float | None]], remedy: str) -> None:
    """Warn of each loss that is above the mean's.

    measured: of what, the model's loss there, and the mean's; None and NaN: nothing was measured.
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
