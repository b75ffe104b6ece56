"""Bins of about equally many rows, also for columns that mostly have one value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["bin_numbers", "lower_ends"]

Floats = NDArray[np.float64]


def lower_ends(values: NDArray[Any], bins: int, least: int) -> Floats:
    """The smallest number of each bin but the first, ascending, (bins - 1,) or fewer.

    Each bin takes its share of the rows that are left. So if most rows have one value, the other values still
    get bins of their own. Quantiles would put all these into one bin.

    values: finite, (rows,).
    bins: most bins.
    least: fewest rows of a bin.

    >>> lower_ends(np.array([0.0] * 90 + [1.0] * 6 + [2.0] * 3 + [3.0]), 4, 3)
    array([1., 2.])
    """
    distinct, counts = np.unique(values, return_counts=True)
    below, ends, taken = np.cumsum(counts), [], 0
    for left in range(bins, 1, -1):
        wanted = taken + max(least, (len(values) - taken) / left)
        place = int(np.searchsorted(below, wanted))
        if place + 1 >= len(distinct) or len(values) - below[place] < least:
            break
        taken = int(below[place])
        ends.append(float(distinct[place + 1]))
    return np.array(ends)


def bin_numbers(rows: Floats, ends: list[Floats]) -> NDArray[np.intp]:
    """The bin of each number, from 0 on, (rows, columns). A missing number gets the number after the last
    bin's.

    ends: by column, from :func:`lower_ends`.
    """
    numbers = np.empty(rows.shape, dtype=np.intp)
    for column, own in enumerate(ends):
        found = np.searchsorted(own, rows[:, column], side="right")
        numbers[:, column] = np.where(np.isfinite(rows[:, column]), found, len(own) + 1)
    return numbers
