"""Cuts columns at the range of the rows that are not far out, so that few rows of a batch have to be left out
of its gradient.

A few values far out widen a column's deviation until all other rows are alike in it. Batches in which such
values are rare leave their rows out. Cut to the range of the rest, the values do neither.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from streamfl.quasi_newton.encryption.fixed_point import FixedPoint
from streamfl.quasi_newton.learning.own_columns import rounded
from streamfl.quasi_newton.rows.batches import far_rows
from streamfl.quasi_newton.rows.preprocessing import Preprocessing

__all__ = ["TOLERANCE", "cut_at_near_rows", "far_from_all"]

Floats = NDArray[np.float64]
TOLERANCE = 1e-10
"""Eigenvalues of X'X of at most this share of the largest one count as 0. Columns are scaled to mean square 1
before."""


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
    """The same preprocessing with columns cut at the range of the rows that stay. Mean and deviation are
    those after the cut.

    Rows that are far out among the rows of all batches together do not stay, nor do rows that then still are
    far out in their batch.

    raw: a party's own rows in the order of its batches, as they came, (rows, columns).
    kind: that columns are rounded to.
    batch: rows of each.
    largest: largest leverage of a row in a batch; at 1 nothing is cut.
    intercept: as for :func:`far_rows`.
    left_out: columns of the result that are not learnt from. They make no row far out.
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


def far_from_all(
    columns: Floats, batches: int, largest: float, *, intercept: bool = False
) -> NDArray[np.bool_]:
    """Rows whose leverage in an average batch is above ``largest``: x_i (X'X / batches)^+ x_i' > largest,
    (rows,).

    Leverages are computed again without these rows until no further row is above. The result only decides
    where columns are cut, and protects no labels, so X'X and the tolerance :data:`TOLERANCE` of its
    pseudo-inverse are precise enough.

    columns: (rows, columns) of all batches.
    intercept: whether a column of ones is beside them.
    """
    left = np.hstack([columns, np.ones((len(columns), 1))]) if intercept else np.array(columns)
    sizes = np.sqrt(np.mean(left**2, axis=0))
    left /= np.where(sizes > 0, sizes, 1.0)
    far = np.zeros(len(left), dtype=np.bool_)
    while True:
        values, directions = np.linalg.eigh(left.T @ left / batches)
        known = values > TOLERANCE * values.max(initial=0.0)
        leverages = np.sum((left @ (directions[:, known] / np.sqrt(values[known]))) ** 2, axis=1)
        # Rounded, because processors differ in the last bits.
        found = (np.round(leverages, 6) > largest) & ~far
        if not found.any():
            return far
        far |= found
        left[found] = 0.0
