"""The features of a sample, and the columns that a learner has for them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FeatureColumns", "Sample", "number_of", "sample_of", "shown"]

Sample = dict[Hashable, float]


class FeatureColumns:
    """Maps features to columns. Room for new features is doubled, so that it rarely has to grow.

    A column that is added later holds differences from its first value: all samples before that value have 0
    there.
    """

    def __init__(self) -> None:
        self.room = 0
        self._places: dict[Hashable, int] = {}
        # Lists: for Python, reading one number of an array takes longer than adding to it.
        self._origins: list[float] = []
        self._sums: list[float] = []
        self._counts: list[int] = []

    def new(self, x: Iterable[Hashable]) -> list[Hashable]:
        # Sorted, so that the order of the features within a sample does not matter.
        return sorted((name for name in x if name not in self._places), key=repr)

    def add(self, names: list[Hashable], x: Sample) -> None:
        """Give each of these features of a sample a column, with more room if there is too little."""
        first = not self.room
        # A learner needs at least one column, even if the first sample has no feature.
        needed = max(1, len(self._places) + len(names))
        if needed > self.room:
            self.room = needed if first else max(needed, 2 * self.room)
        for name in names:
            self._places[name] = len(self._places)
            self._origins.append(0.0 if first else x[name])
            self._sums.append(0.0)
            self._counts.append(0)

    def row(self, x: Sample) -> NDArray[np.float64]:
        """The sample as (1, room); a missing feature is replaced by its mean so far."""
        row = np.zeros((1, self.room))
        row[0, : len(self._sums)] = [
            x[name] - self._origins[place] if name in x else self._sums[place] / max(self._counts[place], 1)
            for name, place in self._places.items()
        ]
        return row

    def see(self, x: Sample) -> None:
        """Add the sample to the means."""
        for name, value in x.items():
            place = self._places[name]
            self._sums[place] += value - self._origins[place]
            self._counts[place] += 1


def sample_of(x: Mapping[Hashable, Any]) -> Sample:
    """The features that have a value."""
    if not hasattr(x, "items"):
        raise ValueError(f"the sample is {shown(x)}: a dictionary of features is expected")
    sample = {}
    for name, value in x.items():
        # A fast path, as most are plain numbers. A NaN fails the comparison.
        number = (
            value
            if type(value) is float and -math.inf < value < math.inf
            else number_of(value, f"the feature {name!r}")
        )
        if number is not None:
            sample[name] = number
    return sample


def number_of(value: Any, what: str) -> float | None:
    # pandas marks gaps with objects of its own, which are no numbers.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, str):
        raise ValueError(f"{what} is the text {shown(value)}: a number is expected")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{what} is {shown(value)}…, too large: change its unit") from None
    except (TypeError, ValueError):
        raise ValueError(
            f"{what} is {shown(value)}, a {type(value).__name__}: a number is expected"
        ) from None
    if math.isinf(number):
        raise ValueError(f"{what} is infinite: a finite number is expected")
    return None if math.isnan(number) else number


def shown(value: Any) -> str:
    return repr(value)[:60]
