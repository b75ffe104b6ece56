"""Nearest neighbours among a client's own latest samples: experts that need no server."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import normal

__all__ = ["NEIGHBOURS", "Projection", "neighbour_predictions"]

NEIGHBOURS = 3
LAG_WEIGHT = np.float32(0.25)
# Below this, the inverse may overflow single precision.
LEAST_VARIANCE = np.finfo(np.float32).tiny
# Indices of the kept samples, and of the metrics.
PLACES, METRICS = np.arange(256, dtype=np.uint32), np.arange(2)[:, None]
# With this many random directions, distances are within a fifth of the true ones, and a client's state stays
# below 64 KB.
WIDEST = 56

Floats = NDArray[np.float64]


class Projection:
    """Projects inputs of more than 56 columns onto 56 random directions. This keeps distances (Johnson and
    Lindenstrauss 1984)."""

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
        """Variances of the projected columns: (samples, d) to (samples, width). All random directions have
        the same."""
        if self._directions is None:
            return variances
        return np.repeat(variances.sum(axis=1, keepdims=True) / self.width, self.width, axis=1)


def neighbour_predictions(
    queries: NDArray[np.float32],
    lags: NDArray[np.float32],
    kept: NDArray[np.float32],
    kept_lags: NDArray[np.float32],
    labels: NDArray[np.float32],
    filled: NDArray[np.intp],
    variances: NDArray[np.float32],
) -> Floats:
    """Two predictions for each query, from the labels of its three nearest samples: by plain distance and by
    scaled distance.

    p = sum_j v_j y_j / sum_j v_j,  v_j = 1 / (d_j / mean of the d_j + .1) over the three nearest. The scaled
    distance divides each column by its deviation. The two labels before each sample, already standardised,
    enter it by half. Of equally near samples, the first in ``kept`` is taken.

    Parameters: queries (rows, p); lags (rows, 2); kept (rows, n, p); kept_lags (rows, 2, n); labels (rows,
    n), n at most 256; filled (rows,): how many of the n are in use, one at least; variances (rows, p).
    Returns (rows, 2).
    """
    rows, size = labels.shape
    by_deviation = np.zeros_like(variances)
    np.divide(1.0, variances, out=by_deviation, where=variances > LEAST_VARIANCE)
    # By metric, then by sample.
    distances = np.empty((rows, 2, size), np.float32)
    differences = kept - queries[:, None, :]
    np.square(differences, out=differences)
    # All numbers are finite. BLAS has been seen to raise the flag all the same, for lanes of a register that
    # it does not use.
    with np.errstate(invalid="ignore"):
        np.matmul(differences, np.ones(queries.shape[1], np.float32), out=distances[:, 0])
        np.matmul(differences, by_deviation[:, :, None], out=distances[:, 1, :, None])
    before = kept_lags - lags[:, :, None]
    np.square(before, out=before)
    distances[:, 1] += LAG_WEIGHT * (before[:, 0] + before[:, 1])
    fewest = int(np.minimum.reduce(filled))
    if fewest < size:
        unused = PLACES[:size] >= filled[:, None]
        np.copyto(distances, np.inf, where=unused[:, None, :])
    count = min(NEIGHBOURS, size)
    # Positive floats are ordered like their bits. The last 8 bits carry the place: partitioning numbers beats
    # finding places.
    marked = distances.view(np.uint32) & np.uint32(0xFFFFFF00) | PLACES[:size]
    marked.partition(count - 1, axis=2)
    nearest = (marked[..., :count] & np.uint32(0xFF)).astype(np.intp)
    of_row = np.arange(rows)[:, None, None]
    near = np.sqrt(distances[of_row, METRICS, nearest].astype(np.float64))
    used = np.isfinite(near)
    if not used.all():
        near[~used] = 0.0
        count = np.add.reduce(used, axis=2, keepdims=True, dtype=np.intp)
    means = np.add.reduce(near, axis=2, keepdims=True) / count
    shares = used / (near / np.where(means > 0, means, 1.0) + 0.1)
    return np.asarray(np.add.reduce(shares * labels[of_row, nearest], axis=2) / np.add.reduce(shares, axis=2))
