"""Nearest neighbours among a client's own latest samples: experts that need no server."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.seeding import normal

__all__ = ["NEIGHBOURS", "Projection", "neighbour_predictions"]

NEIGHBOURS = 5
# Distances in so many random directions are within a fifth of the true ones, and a client's state stays below 64 KB.
WIDEST = 56

Floats = NDArray[np.float64]


class Projection:
    """Inputs of more than 56 columns onto 56 random directions, which keeps distances (Johnson and Lindenstrauss 1984)."""

    def __init__(self, dimension: int, seed: int) -> None:
        self.width = min(dimension, WIDEST)
        self._directions: Floats | None = None
        if dimension > WIDEST:
            drawn = normal(dimension * WIDEST, seed, "neighbours").reshape(dimension, WIDEST)
            self._directions = drawn / np.sqrt(WIDEST)

    def __call__(self, inputs: Floats) -> Floats:
        """(samples, d) to (samples, width)."""
        return inputs if self._directions is None else inputs @ self._directions

    def variances(self, variances: Floats) -> Floats:
        """Of the columns of what was projected: (samples, d) to (samples, width). All directions of a random one are alike."""
        if self._directions is None:
            return variances
        return np.repeat(variances.sum(axis=1, keepdims=True) / self.width, self.width, axis=1)


def neighbour_predictions(
    queries: NDArray[Any],
    lags: NDArray[Any],
    kept: NDArray[Any],
    kept_lags: NDArray[Any],
    labels: NDArray[Any],
    filled: NDArray[np.intp],
    variances: NDArray[Any],
) -> Floats:
    """Two predictions of each query: labels of the five nearest samples by plain distance, and by distance of what is scaled.

    p = sum_j v_j y_j / sum_j v_j,  v_j = 1 / (d_j / mean of the d_j + .1) over the five nearest; scaled are the columns by their
    deviations, and the two labels before each sample, already standardised, count by half.

    Parameters: queries (rows, p); lags (rows, 2); kept (rows, n, p); kept_lags (rows, n, 2); labels (rows, n); filled (rows,): how
    many of the n are in use, one at least; variances (rows, p). Returns (rows, 2).
    """
    rows, size = labels.shape
    squares = np.square(kept - queries[:, None, :])
    varying = variances > 0
    weights = np.empty((rows, queries.shape[1], 2), squares.dtype)
    weights[..., 0] = 1.0
    weights[..., 1] = np.where(varying, 1.0 / np.where(varying, variances, 1.0), 0.0)
    distances = np.matmul(squares, weights)
    distances[..., 1] += 0.25 * np.square(kept_lags - lags[:, None, :]).sum(axis=2)
    # By metric, then by sample.
    distances = np.sqrt(distances.transpose(0, 2, 1))
    unused = np.arange(size) >= filled[:, None]
    distances[np.broadcast_to(unused[:, None, :], distances.shape)] = np.inf
    count = min(NEIGHBOURS, size)
    nearest = np.argpartition(distances, count - 1, axis=2)[..., :count]
    near = np.take_along_axis(distances, nearest, axis=2).astype(np.float64)
    used = np.isfinite(near)
    near[~used] = 0.0
    means = near.sum(axis=2, keepdims=True) / used.sum(axis=2, keepdims=True)
    shares = used / (near / np.where(means > 0, means, 1.0) + 0.1)
    chosen = np.take_along_axis(np.broadcast_to(labels[:, None, :], distances.shape), nearest, axis=2)
    return np.asarray((shares * chosen).sum(axis=2) / shares.sum(axis=2))
