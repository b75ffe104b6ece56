"""Data sets for commands, through whatever is installed in the entry-point group ``streamfl.datasets``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from streamfl.role import ConfigurationError
from streamfl.samples import DataError

__all__ = ["DataTable", "numbers", "read_data"]


class DataTable(Protocol):
    """A data set: columns by name, each of shape (rows,)."""

    @property
    def columns(self) -> dict[str, NDArray[Any]]: ...

    @property
    def rows(self) -> int: ...

    def inputs(self, besides: Collection[str]) -> list[str]:
        """The columns to learn from where nothing else is said."""


def read_data(location: str) -> DataTable:
    """The data set at ``location``; DataError if it cannot be read."""
    for point in entry_points(group="streamfl.datasets", name="replay"):
        return cast(Callable[[str], DataTable], point.load())(location)
    raise ConfigurationError("no reader of data sets is installed: the entry point 'replay' in the group 'streamfl.datasets'")


def numbers(table: DataTable, names: Sequence[str], location: str) -> NDArray[np.float64]:
    """The columns ``names`` as a matrix (rows, len(names)); DataError if one is missing or holds no numbers."""
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise DataError(f"{location}: no column {', '.join(missing)} (there are: {', '.join(table.columns)})")
    for name in names:
        if table.columns[name].dtype.kind not in "biuf":
            raise DataError(f"{location}: the column {name} does not hold numbers")
    return np.column_stack([table.columns[name].astype(np.float64) for name in names])
