"""Curvature pairs, and the step H g of the BFGS inverse Hessian as coefficients of vectors that the parties
keep.

The recursion needs only inner products of s, v and g (Chen, Wang and Zhou, "Large-scale L-BFGS using
MapReduce", 2014). Each party has its own columns of these vectors, so an inner product is a sum over the
parties, and the coefficients are the same for all."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

__all__ = ["IterateMeans", "OwnPairs", "is_usable", "two_loop"]

Floats = NDArray[np.float64]
LEAST, LARGEST = 1e-4, 1e6


class IterateMeans:
    """A party's part of s: the mean of the last L iterates minus the mean of the L before   (5).

    every: L.
    columns: number of the party's columns.
    """

    def __init__(self, every: int, columns: int) -> None:
        self._every = every
        self._sum = np.zeros(columns)
        self._count = 0
        self._last: Floats | None = None

    @property
    def sum(self) -> Floats:
        """Sum of the iterates that are in no mean yet."""
        return self._sum

    @property
    def last(self) -> Floats | None:
        """The latest mean."""
        return self._last

    def restore(self, total: Floats, count: int, last: Floats | None) -> None:
        """Continue from the sum of ``count`` iterates and the mean before."""
        self._sum, self._count, self._last = total, count, last

    def add(self, weights: Floats) -> Floats | None:
        """Take an iterate, (columns,). Returns s after the first 2 L iterates and after each L more, else
        None."""
        self._sum = self._sum + weights
        self._count += 1
        if self._count < self._every:
            return None
        mean, last = self._sum / self._every, self._last
        self._last, self._sum, self._count = mean, np.zeros_like(self._sum), 0
        return None if last is None else mean - last


class OwnPairs:
    """A party's columns of the latest pairs (s, v), oldest first.

    memory: M, how many are kept.
    columns: number of the party's columns.
    """

    def __init__(self, memory: int, columns: int) -> None:
        self._steps: deque[Floats] = deque(maxlen=memory)
        self._curvatures: deque[Floats] = deque(maxlen=memory)
        self._columns = columns

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def pairs(self) -> Floats:
        """All of them, oldest first, (pairs, 2, columns)."""
        return np.array([*zip(self._steps, self._curvatures, strict=True)]).reshape(-1, 2, self._columns)

    def keep(self, step: Floats, curvature: Floats) -> None:
        """Keep s and v, each (columns,). When there are too many pairs the oldest is dropped."""
        self._steps.append(step)
        self._curvatures.append(curvature)

    def basis(self, gradient: Floats) -> Floats:
        """Rows s of each pair, then v of each pair, then g: (2 pairs + 1, columns)."""
        return np.array([*self._steps, *self._curvatures, gradient]).reshape(-1, self._columns)


def is_usable(ss: float, sv: float, vv: float) -> bool:
    """Whether a pair has curvature to learn from: s'v >= LEAST s's, v'v <= LARGEST s'v, and all are finite.

    With s'v <= 0 the update would lose positive definiteness; with s'v next to nothing its inverse would be
    noise.

    ss, sv, vv: s's, s'v and v'v, summed over the parties.
    """
    return bool(np.isfinite([ss, sv, vv]).all() and ss > 0 and sv >= LEAST * ss and vv <= LARGEST * sv)


def two_loop(gram: Floats, scale: float) -> Floats:
    """Coefficients c with H g = sum_j c_j b_j over the basis b of :class:`OwnPairs`: (2 pairs + 1,).

    H is the BFGS update (8) of scale I by each pair, oldest first, H <- (I - s v'/s'v) H (I - v s'/s'v) + s
    s'/s'v.

    gram: b_i'b_j, summed over the parties, (2 pairs + 1, 2 pairs + 1).
    scale: factor of the identity in the first H.
    """
    pairs = len(gram) // 2
    coefficients = np.zeros(len(gram))
    coefficients[-1] = 1.0
    alphas = np.zeros(pairs)
    for newest in reversed(range(pairs)):
        alphas[newest] = coefficients @ gram[newest] / gram[newest, pairs + newest]
        coefficients[pairs + newest] -= alphas[newest]
    coefficients *= scale
    for oldest in range(pairs):
        beta = coefficients @ gram[pairs + oldest] / gram[oldest, pairs + oldest]
        coefficients[oldest] += alphas[oldest] - beta
    return coefficients
