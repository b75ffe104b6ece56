"""The columns of samples that name their features one by one, and may have others every time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Columns"]

Floats = NDArray[np.float64]


class Columns:
    """Which feature is which column. Room for new features is made by doubling, so that making room stays rare.

    A column that is added later is told from its first value: before that value, all samples have 0 there.
    """

    def __init__(self) -> None:
        self.room = 0
        self._places: dict[Hashable, int] = {}
        # Lists: a number of an array takes Python longer than the sum that it is for.
        self._origins: list[float] = []
        self._sums: list[float] = []
        self._counts: list[int] = []

    def new(self, x: Iterable[Hashable]) -> list[Hashable]:
        # Sorted, so that the order of the features within a sample does not matter.
        return sorted((name for name in x if name not in self._places), key=repr)

    def add(self, names: list[Hashable], x: dict[Hashable, float]) -> None:
        """Give these features of a sample a column each. More room is made where there is too little."""
        first = not self.room
        # A learner has a column at least, where the first sample has no feature.
        needed = max(1, len(self._places) + len(names))
        if needed > self.room:
            self.room = needed if first else max(needed, 2 * self.room)
        for name in names:
            self._places[name] = len(self._places)
            self._origins.append(0.0 if first else x[name])
            self._sums.append(0.0)
            self._counts.append(0)

    def row(self, x: dict[Hashable, float]) -> Floats:
        """The sample as (1, room); what it lacks is the mean of what came so far."""
        row = np.zeros((1, self.room))
        row[0, : len(self._sums)] = [
            x[name] - self._origins[place] if name in x else self._sums[place] / max(self._counts[place], 1)
            for name, place in self._places.items()
        ]
        return row

    def see(self, x: dict[Hashable, float]) -> None:
        """Count the sample among what came so far."""
        for name, value in x.items():
            place = self._places[name]
            self._sums[place] += value - self._origins[place]
            self._counts[place] += 1
