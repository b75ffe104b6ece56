"""Data sets to replay or to simulate with: CSV, JSON Lines, Parquet, npz, and River's data sets."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from streamfl.contract.role import DataError
from streamfl.records.csv_layout import guess_layout, with_point
from streamfl.records.json_lines import json_line

__all__ = ["ReplayTable", "read"]

# Lines of a CSV file that its layout is guessed from.
LOOKED_AT = 1_000


@dataclass(frozen=True)
class ReplayTable:
    """Columns by name, in order, each of shape (rows,): numbers where the data has numbers, objects
    elsewhere.

    matrix: the columns that the data itself declares to be its inputs, if it does.
    """

    columns: dict[str, NDArray[Any]]
    matrix: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def inputs(self, besides: Collection[str]) -> list[str]:
        """The columns to learn from by default: the data's own matrix, or all columns of numbers, without
        ``besides``."""
        names = self.matrix or [name for name, values in self.columns.items() if values.dtype.kind in "biuf"]
        return [name for name in names if name not in besides]


def read(location: str, columns: Sequence[str] | None = None) -> ReplayTable:
    """The data set at ``location``: a .csv, .jsonl, .parquet or .npz file, or 'river:NAME'; only ``columns``
    if given.

    JSON Lines: an object a line, as ``streamfl write`` takes them; a field of a nested object is called
    a.b. npz: a matrix X becomes the columns x0, x1, …, any array of one dimension a column with its name.
    River: the features by their names and the target as y. A gap is NaN among numbers and None elsewhere.
    DataError if it cannot be read, has no rows, or lacks a column, or if X is no matrix.
    """
    if location.startswith("river:"):
        table = _river(location.removeprefix("river:"))
    else:
        readers = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet, ".npz": _npz}
        path = Path(location)
        reader = readers.get(path.suffix.lower())
        if reader is None:
            raise DataError(f"{location}: a file ending in {', '.join(readers)} or river:NAME is expected")
        try:
            table = reader(path)
        except OSError as error:
            raise DataError(f"{location}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise DataError(f"{location}: is not text in UTF-8") from None
        except (ValueError, KeyError, zipfile.BadZipFile) as error:
            raise DataError(f"{location}: cannot be read: {error}") from None
    if columns is not None:
        missing = [name for name in columns if name not in table.columns]
        if missing:
            raise DataError(
                f"{location}: no column {', '.join(missing)} (there are: {', '.join(table.columns)})"
            )
        chosen = tuple(name for name in table.matrix if name in columns)
        table = ReplayTable({name: table.columns[name] for name in columns}, chosen)
    if not table.rows:
        raise DataError(f"{location}: has no rows")
    return table


def _frame(frame: pd.DataFrame) -> ReplayTable:
    columns = {}
    for name in frame.columns:
        values = frame[name].to_numpy()
        if values.dtype.kind not in "biuf":
            # pandas has several values for a gap; all become None.
            values = values.astype(object)
            values[frame[name].isna().to_numpy()] = None
        columns[str(name)] = _column(values)
    return ReplayTable(columns)


def _column(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers as numbers, with None as NaN; anything else as it is."""
    if values.dtype.kind in "biuf":
        return values
    try:
        present = [value for value in values.tolist() if value is not None]
        if present and all(isinstance(value, (int, float)) for value in present):
            return values.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    return values.astype(object)


def _csv(path: Path) -> ReplayTable:
    with path.open(encoding="utf-8-sig") as file:
        lines = [line.rstrip("\r\n") for line in islice(file, LOOKED_AT) if line.strip()]
    if not lines:
        raise DataError(f"{path}: has no lines")
    layout = guess_layout(lines)
    # Without a line of names the columns are called as `streamfl init` calls them.
    named: dict[str, Any] = (
        {} if layout.named else {"header": None, "names": layout.columns} if layout.headless else {}
    )
    frame = pd.read_csv(path, sep=layout.delimiter, decimal=layout.decimal, **named)
    if layout.named and len(frame.columns) == len(layout.columns):
        frame.columns = pd.Index(layout.columns)
    return _frame(frame if layout.decimal == "." else frame.apply(_with_points))


def _with_points(column: pd.Series[Any]) -> pd.Series[Any]:
    """Read numbers such as 1.234,5, which pandas takes for text."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    try:
        return column.map(with_point, na_action="ignore").astype(float)
    except (TypeError, ValueError):
        return column


def _json_lines(path: Path) -> ReplayTable:
    rows: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    rows.append(json_line(line, number, dict[str, Any]))
                except DataError as error:
                    raise DataError(f"{path}: {error}") from None
    return _frame(pd.json_normalize(rows))


def _parquet(path: Path) -> ReplayTable:
    """Reads one column after the other. Read at once, the file would take twice the memory of its columns."""
    try:
        from pyarrow import dataset
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow: pip install 'streamfl[parquet]'") from None
    schema = dataset.dataset(path, format="parquet", partitioning="hive").schema
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    columns: dict[str, NDArray[Any]] = {}
    for name in schema.names:
        if name not in index:
            columns |= _frame(pd.read_parquet(path, columns=[name])).columns
    return ReplayTable(columns)


def _npz(path: Path) -> ReplayTable:
    columns: dict[str, NDArray[Any]] = {}
    matrix: tuple[str, ...] = ()
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            array = archive[name]
            if name == "X" and (array.ndim not in (1, 2) or array.shape[-1] == 0):
                raise DataError(f"{path}: X must be 2-D with at least one column, its shape is {array.shape}")
            if array.ndim == 1:
                columns[name] = array
            elif array.ndim == 2:
                names = tuple(f"{'x' if name == 'X' else name}{index}" for index in range(array.shape[1]))
                columns.update(zip(names, array.T, strict=True))
                matrix = names if name == "X" else matrix
    # Archives also hold names, test sets and so on. The table has the arrays with as many rows as the matrix,
    # or the longest array.
    rows = len(columns[matrix[0]]) if matrix else max((len(values) for values in columns.values()), default=0)
    return ReplayTable(
        {name: _column(values) for name, values in columns.items() if len(values) == rows}, matrix
    )


def _river(name: str) -> ReplayTable:
    # Imported here, because other data do not need River.
    from river import datasets
    from river.datasets import base

    known = {
        attribute: value
        for attribute, value in vars(datasets).items()
        if isinstance(value, type) and issubclass(value, base.Dataset)
    }
    if name not in known:
        raise DataError(f"river:{name}: River has no such data set (known: {', '.join(sorted(known))})")
    try:
        dataset = known[name]()
    except TypeError as error:
        raise DataError(f"river:{name}: needs parameters and cannot be named alone: {error}") from None
    if isinstance(dataset, base.RemoteDataset) and not dataset.is_downloaded:
        raise DataError(f"river:{name}: is not on this machine: run river.datasets.{name}().download() once")
    rows: list[dict[str, Any]] = []
    for features, target in dataset:
        targets = target if isinstance(target, dict) else {"y": target}
        rows.append({**features, **targets})
    return _frame(pd.DataFrame(rows))
