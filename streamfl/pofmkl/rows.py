"""Numbers that belong to somebody each, in one array: one operation for many of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["Rows"]


class Rows:
    """Rows of ``width`` float64 numbers that are lent: ``numbers`` is (rows, width), and another array after it has grown."""

    def __init__(self, width: int) -> None:
        self.numbers = np.zeros((0, width))
        self._free: list[int] = []

    def borrow(self, count: int) -> list[int]:
        """Numbers of ``count`` rows of zeros."""
        held = len(self.numbers)
        if len(self._free) < count:
            more = max(64, held // 2, count)
            self.numbers = np.concatenate([self.numbers, np.zeros((more, self.numbers.shape[1]))])
            self._free = [*range(held + more - 1, held - 1, -1), *self._free]
        return [self._free.pop() for _ in range(count)]

    def give_back(self, rows: Sequence[int]) -> None:
        """Take these rows back, and forget what is in them."""
        self.numbers[rows] = 0.0
        self._free += rows
