"""Regret of a run over time, and the bound that the paper proves for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.kernels import Loss
from streamfl.pofmkl.learning.log_weights import normalised
from streamfl.pofmkl.tools.sites import present
from streamfl.simulation.page import Arrays

__all__ = ["bound_over_time", "regret_over_time", "regularised_regret"]

Floats = NDArray[np.float64]


def regret_over_time(trace: Arrays, loss: Loss) -> Floats:
    """Regret (11) of the average client after each round, (T,): its loss so far minus that of its best kernel
    so far.

    trace: from :meth:`Outcome.trace` of a traced run.
    """
    labels = trace["labels"]
    there = ~np.isnan(labels)
    own = np.cumsum(np.where(there, loss.value(trace["predictions"], labels), 0.0), axis=0)
    lost = loss.value(trace["kernel_predictions"], labels[..., None])
    kernels = np.cumsum(np.where(there[..., None], lost, 0.0), axis=0)
    return np.asarray((own - kernels.min(axis=2)).mean(axis=1), dtype=np.float64)


def bound_over_time(rounds: NDArray[Any], kernels: int, rate: float | None) -> Floats:
    """R(t) <= ln N / eta + eta t / 2   (POF-MKL, Theorem 1), for losses from 0 to 1.

    rate: eta; None: for each t the eta with the lowest bound, sqrt(2 ln N / t), which gives sqrt(2 t ln N).
    """
    if rate is None:
        return np.sqrt(2.0 * rounds * math.log(kernels))
    return np.asarray(math.log(kernels) / rate + rate * rounds / 2.0, dtype=np.float64)


def regularised_regret(trace: Arrays, loss: Loss) -> Floats:
    """Regret (11) with the regularisation, after each round, (T,), the mean over clients; with preset
    "paper".

    sum_t [L(f) + sum_i w_bar_i lambda ||theta_i||^2] - min_i sum_t [L(f_i) + lambda ||theta_i||^2]. The
    kernels' regularised losses follow from their weights, -log(w_i(t + 1) / w_i(t)) / eta   (POF-MKL,
    equation 7), up to a number that is the same for all kernels, and so cancels.
    """
    labels, after = trace["labels"], trace["kernel_log_weights"]
    # The weights used for the predictions: uniform at first.
    before = np.concatenate([np.zeros_like(after[:1]), after[:-1]])
    lost = (before - after) / float(trace["rate"])
    penalties = lost - loss.value(trace["kernel_predictions"], labels[..., None])
    own = loss.value(trace["predictions"], labels) + (normalised(before) * penalties).sum(axis=2)
    there = present(labels)
    own, lost = np.where(there, own, 0.0), np.where(there[..., None], lost, 0.0)
    regret = np.cumsum(own, axis=0) - np.cumsum(lost, axis=0).min(axis=2)
    return np.asarray(regret.mean(axis=1), dtype=np.float64)
