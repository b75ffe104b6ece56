"""Scales columns as they come, each by its own mean and deviation so far, so that nobody has to know them
beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.encoding.changelog_checks import check_within
from streamfl.learning.online_scaling import bounded, moments_with, standardised

__all__ = ["RunningScale"]

Floats = NDArray[np.float64]
# Limit of sums of squares of the numbers that a record may hold, however many.
LARGEST_MOMENT = 1e300


class RunningScale:
    """clip((x - mean) / deviation, +-3) / sqrt(columns that vary), so that a row has a norm of about 1, and 3
    at most.

    A row is included in the moments that it is scaled by. There it is clipped to ``reach``, so that one wrong
    number does not ruin the scale.

    columns: how many a row has.
    """

    def __init__(self, columns: int) -> None:
        # Rows seen, then the means, then the summed squared deviations: one array, which is stored whole.
        self._moments = np.zeros(1 + 2 * columns)
        self._means, self._squares = self._moments[1 : 1 + columns], self._moments[1 + columns :]

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """The state by name; restored in place."""
        return {"moments": self._moments}

    @property
    def rows(self) -> int:
        """Number of rows seen."""
        return int(self._moments[0])

    def see(self, row: Floats) -> Floats:
        """Include a row in the moments, and return it scaled: (columns,)."""
        seen = self._moments[:1]
        near = bounded(seen, self._means, self._squares, row)
        seen += 1
        means, squares = moments_with(
            seen, self._means[np.newaxis], self._squares[np.newaxis], near[np.newaxis]
        )
        self._means[:], self._squares[:] = means[0], squares[0]
        scaled: Floats = self.scaled(row[np.newaxis])[0]
        return scaled

    def scaled(self, rows: Floats) -> Floats:
        """Rows scaled by the moments so far: (rows, columns)."""
        variances = self._squares / max(self.rows, 1)
        return standardised(rows, self._means[np.newaxis], variances[np.newaxis])

    @staticmethod
    def check(name: str, numbers: NDArray[np.float64]) -> None:
        """BadRecord if ``numbers`` cannot be the state's array."""
        check_within(numbers, -LARGEST_MOMENT, LARGEST_MOMENT, name)
