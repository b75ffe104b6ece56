"""Weight of evidence: replaces a number by how much more often its bin has label 1. For the guest, which has
the labels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streamfl.quasi_newton.rows.bins import lower_ends
from streamfl.quasi_newton.rows.preprocessing import EVIDENCE, Preprocessing

__all__ = ["fit_weight_of_evidence"]

Floats = NDArray[np.float64]


def fit_weight_of_evidence(
    rows: Floats, labels: Floats, *, bins: int = 10, least: int = 50, standardise: bool = True
) -> Preprocessing:
    """log((n_1b + 1/2) / (n_1 + 1/2)) - log((n_0b + 1/2) / (n_0 + 1/2)) in place of each number of bin b of a
    column.

    Neighbouring bins are merged until each has enough rows of both labels. A bin that cannot get enough has
    the weight 0.

    rows: (rows, columns). Numbers that are not finite have a bin of their own.
    labels: -1 and +1, (rows,).
    bins: most bins of a column, of about equally many rows.
    least: fewest rows of each label in a bin: with fewer, a published model would reveal something about
    them.
    standardise: whether columns of weights get mean 0 and deviation 1. They are in one unit as they are, but
    a step's bound is not.
    """
    rows, ones = np.asarray(rows, dtype=np.float64), np.asarray(labels) > 0
    edges, values = [], []
    for column in rows.T:
        seen = np.isfinite(column)
        cuts = lower_ends(column[seen], bins, least)
        counts = _counts(column[seen], ones[seen], cuts)
        cuts, counts = _together(cuts, counts, least)
        missing = np.array([[(~ones[~seen]).sum(), ones[~seen].sum()]])
        counts = np.vstack([counts, missing]).astype(np.float64)
        shares = np.log((counts + 0.5) / (np.array([(~ones).sum(), ones.sum()]) + 0.5))
        enough = (counts >= least).all(axis=1)
        edges.append(cuts)
        values.append(np.where(enough, shares[:, 1] - shares[:, 0], 0.0))
    zeros = np.zeros(rows.shape[1])
    found = Preprocessing(EVIDENCE, zeros, zeros, zeros + 1, edges=edges, values=values)
    return found.standardised(rows) if standardise else found


def _counts(column: Floats, ones: NDArray[np.bool_], cuts: Floats) -> NDArray[np.intp]:
    """Rows of label -1 and +1 in each bin, (bins, 2)."""
    numbers = np.searchsorted(cuts, column, side="right")
    return np.column_stack(
        [np.bincount(numbers[ones == label], minlength=len(cuts) + 1) for label in (False, True)]
    )


def _together(cuts: Floats, counts: NDArray[np.intp], least: int) -> tuple[Floats, NDArray[np.intp]]:
    """Merges bins from below. Each is closed once it has ``least`` rows of both labels; the remainder joins
    the last one."""
    ends, total = [0], np.zeros(2)
    for number, bin_counts in enumerate(counts):
        total = total + bin_counts
        if (total >= least).all():
            ends.append(number + 1)
            total = np.zeros(2)
    if len(ends) == 1:
        ends.append(len(counts))
    ends[-1] = len(counts)
    merged = np.array([counts[first:end].sum(axis=0) for first, end in pairwise(ends)])
    return cuts[np.array(ends[1:-1], dtype=int) - 1], merged
