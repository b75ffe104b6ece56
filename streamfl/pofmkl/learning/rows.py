"""Rows of numbers with different owners in one array, so that one operation covers many of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowPool"]


class RowPool:
    """Lends rows of ``width`` float64 numbers. ``numbers`` is (rows, width), and another array after it has
    grown."""

    def __init__(self, width: int) -> None:
        self.numbers = np.zeros((0, width))
        self._free: list[int] = []

    def borrow(self, count: int) -> list[int]:
        """Lend ``count`` rows of zeros. Returns their indices."""
        held = len(self.numbers)
        if len(self._free) < count:
            more = max(64, held // 2, count)
            self.numbers = np.concatenate([self.numbers, np.zeros((more, self.numbers.shape[1]))])
            self._free = [*range(held + more - 1, held - 1, -1), *self._free]
        lent = self._free[: -count - 1 : -1]
        del self._free[len(self._free) - count :]
        return lent

    def add(self, rows: NDArray[np.intp], terms: NDArray[np.floating[Any]]) -> None:
        """Add each of these terms, (terms, width), to its row; terms of one row in order, one after another.

        So it does not matter how they are cut into calls.
        """
        if len(set(rows.tolist())) == len(rows):
            self.numbers[rows] += terms
            return
        order = np.argsort(rows, kind="stable")
        starts = np.flatnonzero(np.diff(rows[order], prepend=-1))
        counts = np.diff(starts, append=len(rows))
        longest = int(counts.max())
        if longest > len(starts):
            for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
                own = order[start : start + count]
                row = rows[own[0]]
                self.numbers[row] = np.cumsum(np.vstack([self.numbers[row], terms[own]]), axis=0)[-1]
        else:
            # The first terms of all rows, then the second ones: the same additions in fewer calls.
            for number in range(longest):
                chosen = order[starts[counts > number] + number]
                self.numbers[rows[chosen]] += terms[chosen]

    def give_back(self, rows: Sequence[int]) -> None:
        """Take these rows back, and set them to 0."""
        self.numbers[rows] = 0.0
        self._free += rows
