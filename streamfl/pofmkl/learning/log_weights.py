"""A client's kernel weights, kept as logarithms.

The plain product of (7), w_i <- w_i exp(-eta l_i), underflows within a few thousand samples, to 0/0 or to
denormals that never move again. Its logarithm is a sum, and only differences of log-weights ever matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["bin_probabilities", "heaviest_first", "normalised"]


def normalised(log_weights: NDArray[Any]) -> NDArray[np.float64]:
    """Weights that sum to one: w_bar_i = exp(log w_i) / sum_j exp(log w_j)   (POF-MKL, eq. 6).

    Parameters: log_weights (..., kernels), finite. Returns float64 of the same shape. At least one weight of
    each row is 1 / kernels or more, however far the others fall.

    >>> normalised(np.array([-5000.0, -5000.0]))
    array([0.5, 0.5])
    """
    shifted = np.asarray(log_weights, dtype=np.float64)
    weights = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float64)


def heaviest_first(log_weights: NDArray[Any]) -> NDArray[np.intp]:
    """Kernel numbers by falling weight, equal weights by kernel number: (..., kernels) to (..., kernels).

    >>> heaviest_first(np.array([0.0, 1.0, 0.0]))
    array([1, 0, 2])
    """
    return np.argsort(np.negative(log_weights), axis=-1, kind="stable")


def bin_probabilities(
    sorted_weights: NDArray[Any], kernels_per_bin: int, exploration: float
) -> NDArray[np.float64]:
    """The probability with which each bin is drawn.

    q_j = (1 - xi) u_j / sum(u) + xi / m, with u_j the weights of bin j added up   (POF-MKL, eq. 8)

    Parameters: sorted_weights (..., kernels), heaviest first, not necessarily normalised; exploration xi in
    [0, 1]. Returns (..., m), m = ceil(kernels / kernels_per_bin), summing to one. xi = 1 gives 1 / m exactly,
    whatever the weights.

    >>> bin_probabilities(np.array([0.5, 0.25, 0.25]), 2, exploration=0.5)
    array([0.625, 0.375])
    """
    weights = np.asarray(sorted_weights, dtype=np.float64)
    bin_weights = np.add.reduceat(weights, np.arange(0, weights.shape[-1], kernels_per_bin), axis=-1)
    shares = bin_weights / bin_weights.sum(axis=-1, keepdims=True)
    return np.asarray((1.0 - exploration) * shares + exploration / bin_weights.shape[-1], dtype=np.float64)
