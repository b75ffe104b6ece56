"""Data sets for commands. The reader comes from the entry-point group ``streamfl.datasets``."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from streamfl.configuration.settings import SettingsSource, text_of
from streamfl.contract.role import ConfigurationError, DataError
from streamfl.encoding.wire import LONGEST_NAME
from streamfl.records.fields import number_of_text, shown
from streamfl.records.inputs import InputSection
from streamfl.records.paths import path_of
from streamfl.terminal.console import say

__all__ = [
    "DEFAULT_LABEL",
    "DataSource",
    "DataTable",
    "client_names",
    "column_of",
    "input_fields",
    "input_names",
    "label_told",
    "named_column",
    "numbers",
    "placed",
    "read_data",
    "unread_columns",
]


DEFAULT_LABEL = "y"
"""The default label column. River's data sets use this name."""


class DataTable(Protocol):
    """A data set: columns by name, each of shape (rows,)."""

    @property
    def columns(self) -> dict[str, NDArray[Any]]: ...

    @property
    def rows(self) -> int: ...

    def inputs(self, besides: Collection[str]) -> list[str]:
        """The columns to learn from by default."""


DataSource = str | DataTable
"""The location of a data set, or the data set itself. Its text is the name that messages use."""


def read_data(location: DataSource) -> DataTable:
    """The data set at ``location``; DataError if it cannot be read."""
    if not isinstance(location, str):
        return location
    for point in entry_points(group="streamfl.datasets", name="replay"):
        return cast(Callable[[str], DataTable], point.load())(location)
    raise ConfigurationError(
        "no reader of data sets is installed: the entry point 'replay' in the group 'streamfl.datasets'"
    )


def input_names(
    table: DataTable, features: Sequence[str] | None, besides: Sequence[str | None], location: DataSource
) -> list[str]:
    """The columns to learn from: ``features``, or all that the data offers except ``besides``; DataError if
    there is none."""
    others = [name for name in besides if name is not None]
    names = list(features or table.inputs(others))
    if not names:
        raise DataError(
            f"{location}: no numeric column" + (f" besides {', '.join(others)}" if others else "")
        )
    return names


def input_fields(
    inputs: Sequence[InputSection], table: DataTable, location: DataSource
) -> tuple[list[str], list[list[Any]]]:
    """The fields that ``[[samples.inputs]]`` reads, and their values in each row; DataError if the table
    lacks one."""
    names = [*dict.fromkeys(name for one in inputs for name in (one.field, one.since_field) if name)]
    read = [column_of(table, name) for name in names]
    if absent := [name for name in read if name not in table.columns]:
        raise DataError(f"{location}: no column {', '.join(absent)} (there are: {', '.join(table.columns)})")
    return names, [list(row) for row in zip(*(table.columns[name].tolist() for name in read), strict=True)]


def placed(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """A record with each value at its path. NaN becomes null, because JSON has no NaN."""
    content: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        path_of(name).put(content, None if value != value else value)
    return content


def unread_columns(table: DataTable, offered: Sequence[str], besides: Sequence[str | None]) -> list[str]:
    """The columns that are not offered as inputs because they hold no numbers. Prints a warning on stderr if
    there are any."""
    unread = [name for name in table.columns if name not in offered and name not in besides]
    if unread:
        say(
            f"not learnt from, because they are not numbers: {', '.join(unread)}. Write them as numbers (one "
            "column of 0 and 1 for each value, say), or name the columns to learn from"
        )
    return unread


def column_of(table: DataTable, field: str) -> str:
    """The column that a settings field names. A name with dots of its own is in backticks. The field itself
    if no column matches."""
    if field not in table.columns:
        with suppress(ValueError):
            name = path_of(field).name
            if name in table.columns:
                return str(name)
    return field


def named_column(table: DataTable, *fields: str | None) -> str | None:
    """The first column of the data that one of these settings fields names; None if there is none."""
    named = (column_of(table, field) for field in fields if field is not None)
    return next((name for name in named if name in table.columns), None)


def label_told(config: SettingsSource, data: DataSource, label: str | None) -> str:
    """``label``, or if it is None the column that ``config`` names, whichever role it describes, or ``y``.
    Errors as :func:`read_data`.
    """
    if label is not None:
        return label
    return (
        named_column(
            read_data(data), *(text_of(config, section, "label") for section in ("labels", "samples"))
        )
        or DEFAULT_LABEL
    )


def client_names(table: DataTable, column: str, location: DataSource) -> list[str | None]:
    """Each row's client, None where the row has none; DataError if there is no such column or its values
    cannot be names."""
    if column not in table.columns:
        raise DataError(f"{location}: no column {column} (there are: {', '.join(table.columns)})")
    values = table.columns[column].tolist()
    try:
        found = {value: _client_name(value) for value in values}
    except TypeError:
        raise DataError(f"{location}: the column {column} does not hold names") from None
    names = [name for name in found.values() if name is not None]
    for name in names:
        if len(name) > LONGEST_NAME:
            raise DataError(
                f"{location}: {column} holds a name of {len(name)} characters, at most {LONGEST_NAME} are "
                "accepted"
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(
            f"{location}: {column} holds different values that are both written {twice}: which client is "
            "meant?"
        )
    return [found[value] for value in values]


def _client_name(value: Any) -> str | None:
    if isinstance(value, float):
        if math.isnan(value):
            return None
        # A gap in a column of whole numbers makes all of them floats. Client 3 must still be called 3, not
        # 3.0.
        return str(int(value)) if value.is_integer() else str(value)
    return None if value is None else str(value) or None


def _is_gap(value: Any) -> bool:
    """Whether it is None, an empty text or NaN. Other values may be arrays: lists of a Parquet file."""
    return value is None or (isinstance(value, (str, float)) and (value == "" or value != value))


def _instead(column: NDArray[Any]) -> str:
    """What a column holds in place of numbers, as the end of a sentence."""
    values = [value for value in column.tolist() if not _is_gap(value)]
    texts = list(dict.fromkeys(one for one in values if isinstance(one, str) and number_of_text(one) is None))
    if not texts:
        return ""
    only_two = len(texts) == 2 and all(isinstance(value, str) and value in texts for value in values)
    two = f"; write {shown(texts[0])} and {shown(texts[1])} as 1 and 0" if only_two else ""
    return f", but {shown(texts[0])}{two}"


def numbers(table: DataTable, names: Sequence[str], location: DataSource) -> NDArray[np.float64]:
    """The columns ``names`` as a matrix (rows, len(names)); DataError if one is missing or holds no
    numbers."""
    names = [column_of(table, name) for name in names]
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise DataError(f"{location}: no column {', '.join(missing)} (there are: {', '.join(table.columns)})")
    for name in names:
        column = table.columns[name]
        if column.dtype.kind not in "biuf":
            raise DataError(f"{location}: the column {name} does not hold numbers{_instead(column)}")
    return np.column_stack([table.columns[name].astype(np.float64, copy=False) for name in names])
