"""The bins of Algorithm 1: kernels are sorted by weight and cut into bins of M; one bin is drawn for each
upload."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.pofmkl.learning.log_weights import bin_probabilities, heaviest_first, normalised

__all__ = ["DrawnBin", "draw_bins"]


DrawnBin = tuple[int, float, tuple[int, ...]]
"""Number of the bin, 0 for the heaviest kernels; the probability that it was drawn with; its kernels,
ascending."""


def draw_bins(
    log_weights: NDArray[np.float64],
    sizes: NDArray[np.intp],
    uniforms: NDArray[np.float64],
    exploration: float,
) -> tuple[list[DrawnBin], NDArray[Any]]:
    """Draw a bin for each upload   (POF-MKL, Algorithm 1 and eq. 8).

    q_j = (1 - xi) u_j / sum(u) + xi / m,  u_j the weights of the kernels in bin j, m the number of bins

    log_weights (uploads, kernels): before the upload's first label.
    sizes (uploads,): M; 0 draws a bin without kernels.
    uniforms (uploads,): random numbers from 0 to 1.
    exploration: xi.

    Returns the bins, and the kernels of each upload by falling weight, (uploads, kernels).
    """
    orders = heaviest_first(log_weights)
    weights = np.take_along_axis(normalised(log_weights), orders, axis=1)
    bins: list[DrawnBin] = [(0, 1.0, ())] * len(orders)
    for size in np.unique(sizes).tolist():
        chosen = np.flatnonzero(sizes == size)
        probabilities = bin_probabilities(weights[chosen], max(size, 1), exploration)
        cumulated = np.cumsum(probabilities, axis=1)
        # The sum may end below 1 by rounding: the last bin takes what is left.
        drawn = np.minimum((cumulated <= uniforms[chosen, None]).sum(axis=1), cumulated.shape[1] - 1)
        probability = np.take_along_axis(probabilities, drawn[:, None], axis=1)[:, 0]
        for upload, order, number, chance in zip(
            chosen.tolist(), orders[chosen].tolist(), drawn.tolist(), probability.tolist(), strict=True
        ):
            bins[upload] = number, chance, tuple(sorted(order[number * size : (number + 1) * size]))
    return bins, orders
