"""Rows of numbers with different owners in one array, so that one operation covers many of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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

    def give_back(self, rows: Sequence[int]) -> None:
        """Take these rows back, and set them to 0."""
        self.numbers[rows] = 0.0
        self._free += rows
