"""Rows and first weights of parties that learn without roles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.commands import Floats
from streamfl.quasi_newton.rows.batches import far_rows, secret_start


def muted(
    columns: Floats, batches: NDArray[np.intp], largest: float, intercept: bool = False
) -> NDArray[np.bool_]:
    """Rows that a party learns from with zeros, for they are far out in their batch: (rows,)."""
    far = np.zeros(len(columns), np.bool_)
    for rows in batches:
        far[rows] = far_rows(columns[rows], largest, intercept=intercept)
    return far


def first_weights(seed: int, **columns: int) -> list[Floats]:
    """By a secret of the seed. columns: by party, how many, the intercept included."""
    secret = (b"secret of seed %d" % seed).ljust(32)
    return [secret_start(secret, name.encode(), count) for name, count in columns.items()]
