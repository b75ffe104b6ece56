"""Samples of clients with different numbers of samples: T rounds of K clients. A client's samples are in its
first rounds."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["InputArray", "Sites", "present", "samples_of"]


class InputArray(Protocol):
    """Inputs of samples, (T, K, d): an array, or :class:`Sites`. They are read only where there are
    samples."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, K, d)."""

    def __getitem__(self, place: Any, /) -> NDArray[Any]:
        """Inputs of some rounds and clients, (..., d)."""

    def __truediv__(self, unit: float, /) -> Any:
        """The inputs divided by a unit."""


class Sites:
    """Inputs in the rows of a table, so that one client with many samples does not lengthen all others.

    numbers: (rows, d).
    rows: (T, K), the row of each sample; -1 where a client has none.
    """

    def __init__(self, numbers: NDArray[Any], rows: NDArray[np.intp], unit: float = 1.0) -> None:
        self._numbers, self._rows, self._unit = numbers, rows, unit

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self._rows.shape, self._numbers.shape[1])

    def __getitem__(self, place: Any, /) -> NDArray[Any]:
        found: NDArray[Any] = self._numbers[self._rows[place]]
        return found if self._unit == 1.0 else found / self._unit

    def __truediv__(self, unit: float, /) -> Sites:
        return Sites(self._numbers, self._rows, self._unit * unit)


def present(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Where there are samples, (T, K): labels are NaN elsewhere."""
    return np.asarray(~np.isnan(labels))


def samples_of(labels: NDArray[Any]) -> NDArray[np.intp]:
    """How many samples each client has, (K,); labels as for :func:`present`."""
    return np.asarray(present(labels).sum(axis=0))
