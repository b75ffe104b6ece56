"""Tables of pandas, polars or NumPy: rows for an estimator, and its results in the same library's form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["columns_like", "name_of", "numbers_or_labels", "rows_of", "values_like"]

EXPECTED = "a DataFrame of pandas or polars or a NumPy array with a row for each sample is expected"
ONE_COLUMN = "a series, a list or an array of one dimension is expected"


def rows_of(table: Any) -> Iterator[dict[Hashable, Any]]:
    """The samples of a table, in order. The columns of an array are 0, 1, 2 …, as with
    ``river.stream.iter_array``."""
    names = _names(table)
    if isinstance(table, np.ndarray):
        return (dict(zip(names, row, strict=True)) for row in table.tolist())
    columns = [table[name].to_list() for name in names]
    return (
        (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        if names
        else ({} for _ in range(len(table)))
    )


def numbers_or_labels(values: Any) -> list[Any]:
    """The labels of a series, an array or a list. ValueError if they are a table."""
    if hasattr(values, "columns"):
        raise ValueError(f"the labels are a {type(values).__name__}: {ONE_COLUMN}")
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise ValueError(f"the labels are an array of {values.ndim} dimensions: {ONE_COLUMN}")
        return [*values.tolist()]
    return [*(values.to_list() if hasattr(values, "to_list") else values)]


def name_of(values: Any) -> Hashable:
    """The name of a series; None if it has none."""
    name: Hashable = getattr(values, "name", None)
    return name


def values_like(table: Any, values: Sequence[Any], name: Hashable, dtype: Any = None) -> Any:
    """One value a row: a series of pandas with the frame's index, a series of polars, or an array."""
    if isinstance(table, np.ndarray):
        return np.array(values, dtype)
    if _is_polars(table):
        import polars as pl

        return pl.Series("" if name is None else str(name), values, strict=False)
    import pandas as pd

    return pd.Series(values, index=table.index, name=name, dtype=dtype)


def columns_like(table: Any, rows: Sequence[dict[Any, float]], names: Sequence[Hashable]) -> Any:
    """Several numbers a row as a frame like ``table``, with a column for each name; an array's columns are in
    the names' order."""
    if isinstance(table, np.ndarray):
        return np.array([[row[name] for name in names] for row in rows], np.float64).reshape(
            len(rows), len(names)
        )
    if _is_polars(table):
        import polars as pl

        return pl.DataFrame(
            {str(name): [row[name] for row in rows] for name in names},
            schema=dict.fromkeys(map(str, names), pl.Float64),
        )
    import pandas as pd

    return pd.DataFrame(rows, index=table.index, columns=[*names], dtype=np.float64)


def _names(table: Any) -> list[Hashable]:
    if isinstance(table, np.ndarray):
        if table.ndim != 2:
            raise ValueError(f"the array has {table.ndim} dimensions: {EXPECTED}")
        return [*range(table.shape[1])]
    # A LazyFrame of polars has columns and no length: it has no values before it is collected.
    if not (hasattr(table, "__len__") and hasattr(table, "columns")):
        raise ValueError(f"the samples are a {type(table).__name__}: {EXPECTED}")
    names = [*table.columns]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{len(names)} columns have {len(set(names))} names: {twice[0]!r} names several")
    return names


def _is_polars(table: Any) -> bool:
    return type(table).__module__.partition(".")[0] == "polars"
