"""Columns are cut at the range of the rows that are not far out, so that few rows of a batch have to be left out of its gradient.

A few values far out widen a column's deviation until all other rows are alike in it, and they are left out in the batches in which
they are rare. Cut to the range of the rest they are neither.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from streamfl.quasi_newton.batches import far_rows
from streamfl.quasi_newton.fixed_point import FixedPoint
from streamfl.quasi_newton.own_columns import rounded
from streamfl.quasi_newton.preprocessing import Preprocessing

__all__ = ["TOLERANCE", "cut_at_near_rows", "far_from_all"]

Floats = NDArray[np.float64]
TOLERANCE = 1e-10
"""Directions of columns, each of mean square 1, whose share of the largest one's sum of squares is no larger count as none."""


def cut_at_near_rows(
    preprocessing: Preprocessing,
    raw: Floats,
    kind: FixedPoint,
    batch: int,
    largest: float,
    *,
    intercept: bool = False,
    left_out: Collection[int] = (),
) -> Preprocessing:
    """The same, with columns cut at the range of the rows that stay; mean and deviation are those after the cut.

    Rows go that are far out among the rows of all batches together, and then those that still are in their batch.

    raw: a party's own rows in the order of its batches, (rows, columns), as they came. kind: that columns are rounded to.
    batch: rows of each. largest: leverage that a row may have in a batch; at 1 nothing is cut. intercept: as of :func:`far_rows`.
    left_out: columns of the result that are not learnt from: nobody is far out by them.
    """
    if largest >= 1 or preprocessing.is_bounded:
        return preprocessing
    columns = rounded(kind, preprocessing.apply(raw))[1]
    columns[:, list(left_out)] = 0.0
    far = far_from_all(columns, len(raw) // batch, largest, intercept=intercept)
    columns[far] = 0.0
    pieces = [columns[at : at + batch] for at in range(0, len(columns), batch)]
    far |= np.concatenate([far_rows(piece, largest, intercept=intercept) for piece in pieces])
    return preprocessing if far.all() else preprocessing.cut(raw, ~far)


def far_from_all(columns: Floats, batches: int, largest: float, *, intercept: bool = False) -> NDArray[np.bool_]:
    """Rows whose leverage in a batch like all of them is above the largest: x_i (X'X / batches)^+ x_i' > largest, (rows,).

    Without them it is computed again, until there is none. What this leaves decides where columns are cut, and protects nobody:
    so X'X will do, and the tolerance :data:`TOLERANCE` of its pseudo-inverse.

    columns: (rows, columns) of all batches. intercept: whether a column of ones is beside them.
    """
    left = np.hstack([columns, np.ones((len(columns), 1))]) if intercept else np.array(columns)
    sizes = np.sqrt(np.mean(left**2, axis=0))
    left /= np.where(sizes > 0, sizes, 1.0)
    far = np.zeros(len(left), dtype=np.bool_)
    while True:
        values, directions = np.linalg.eigh(left.T @ left / batches)
        known = values > TOLERANCE * values.max(initial=0.0)
        leverages = np.sum((left @ (directions[:, known] / np.sqrt(values[known]))) ** 2, axis=1)
        # Processors differ in the last bits.
        found = (np.round(leverages, 6) > largest) & ~far
        if not found.any():
            return far
        far |= found
        left[found] = 0.0
