"""``streamfl.simulate`` in Python: takes a data frame, and returns a result that a notebook displays."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
import typer
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from streamfl.configuration.settings import GivenSettings, load_kind
from streamfl.contract.role import ConfigurationError, DataError
from streamfl.contract.system import find_system, installed_systems, load
from streamfl.simulation.options import LabelOption, SeedOption, options_given
from streamfl.simulation.pictures import check_can_draw
from streamfl.simulation.system_tools import SimulationOptions
from streamfl.simulation.tables import DataSource, label_told

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Config", "Data", "FrameTable", "Result", "settings_given", "simulate", "table_given"]


class Frame(Protocol):
    """Columns by name: a pandas or polars DataFrame, or a dictionary of sequences."""

    def __getitem__(self, name: Any, /) -> Any: ...

    def __len__(self) -> int: ...


Data = str | Path | Frame
"""A file's path, ``river:NAME``, or columns by name."""
Config = Path | str | Mapping[str, Any] | None
"""A role's settings: a TOML file's path, or its sections as a dictionary."""


class FrameTable:
    """A frame as a :class:`streamfl.simulation.tables.DataTable`. DataError if it has no rows or is not a
    table."""

    def __init__(self, frame: Any) -> None:
        names = frame.keys() if isinstance(frame, Mapping) else None
        # A LazyFrame of polars has columns and no length: it has no values before it is collected.
        if names is None and hasattr(frame, "__len__"):
            names = getattr(frame, "columns", None)
        if names is None:
            raise DataError(
                "columns by name are expected, such as a DataFrame or a dictionary, not a "
                f"{type(frame).__name__}"
            )
        self._columns = {str(name): _column(frame[name], str(name)) for name in names}
        if len(self._columns) < len(names) or len({len(values) for values in self._columns.values()}) > 1:
            raise DataError("columns of equal length are expected, none of them twice")
        if not self.rows:
            raise DataError("the data has no rows")

    def __str__(self) -> str:
        return "the data"

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        return self._columns

    @property
    def rows(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def inputs(self, besides: Collection[str]) -> list[str]:
        """All columns of numbers, except ``besides``."""
        return [
            name
            for name, values in self._columns.items()
            if values.dtype.kind in "biuf" and name not in besides
        ]


def _column(values: Any, name: str) -> NDArray[Any]:
    """Numbers as float64 with NaN for a gap, anything else as objects with None for a gap."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"the column {name} has {array.ndim} dimensions, one is expected")
    if array.dtype.kind in "biuf":
        return array
    objects = array.astype(object)
    # pandas has several markers for a gap, and one of them cannot be compared.
    gaps = (
        np.asarray(values.isna())
        if hasattr(values, "isna")
        else np.array([one is None or one != one for one in objects], bool)
    )
    objects[gaps] = None
    present = objects[~gaps].tolist()
    if present and all(isinstance(one, (int, float, np.number)) for one in present):
        return np.array([np.nan if one is None else one for one in objects.tolist()], np.float64)
    return objects


@dataclass(frozen=True)
class Result:
    """The result of a run. A notebook shows it as a table; :meth:`plot` draws it.

    title, columns, rows: the table.
    notes: sentences beneath it.
    figures: the same for programs.
    predictions: by sample, in columns of equal length: "row" (of the data), "prediction" (in the label's own
    unit) and others.
    arrays: for a traced run, what is needed to compute it again.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Mapping[str, Any]
    notes: Sequence[str] = ()
    predictions: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    draw: Callable[[Any], None] | None = field(default=None, repr=False)

    def plot(self, axes: Any = None) -> Any:
        """Draw the run into a matplotlib Axes, or into a new one, and return it. ConfigurationError if the
        system has no picture."""
        if self.draw is None:
            raise ConfigurationError(f"{self.title}: this system has no picture of a run")
        if axes is None:
            check_can_draw()
            from matplotlib import pyplot

            axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")[1]
            axes.figure.suptitle(self.title)
        self.draw(axes)
        return axes

    def to_frame(self) -> pd.DataFrame:
        """The predictions as a pandas DataFrame with one row a sample. ConfigurationError if the system
        returns none."""
        if not self.predictions:
            raise ConfigurationError(f"{self.title}: this system gives no prediction for each row")
        import pandas as pd

        return pd.DataFrame(dict(self.predictions))

    def __str__(self) -> str:
        widths = [
            max(len(row[place]) for row in (self.columns, *self.rows)) for place in range(len(self.columns))
        ]
        table = (self.columns, *self.rows)
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        return "\n".join([self.title, *lines, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        head, body = line(self.columns, "th"), "".join(line(row, "td") for row in self.rows)
        caption = f"<caption>{html.escape(self.title)}</caption>"
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>{notes}"


def settings_given(config: Config) -> Path | GivenSettings:
    """The settings in the form that commands take.

    A dictionary without ``role.kind`` is for the first system that can be simulated. None: all of that
    system's defaults. ConfigurationError if ``config`` is neither a path nor a dictionary nor None.
    """
    if isinstance(config, (str, Path)):
        return Path(config)
    if config is not None and not isinstance(config, Mapping):
        raise ConfigurationError(
            f"config is a {type(config).__name__}: the path of a role's settings file, or its sections as a "
            "dictionary, is expected"
        )
    given = GivenSettings(config or {})
    for name in given:
        if not isinstance(name, str) or (
            name in ("role", "federation") and not isinstance(given[name], Mapping)
        ):
            raise ConfigurationError(
                f"{given}: {name!r} = {given[name]!r}: the name of a section, and its keys as a dictionary, "
                "are expected"
            )
    given["role"] = {"kind": _first_kind(), **given.get("role", {})}
    given["federation"] = {"name": "notebook", **given.get("federation", {})}
    return given


def _first_kind() -> str:
    return next(system.kinds[0] for system in installed_systems() if system.simulate is not None)


def table_given(data: Data) -> DataSource:
    """The data in the form that commands take."""
    return str(data) if isinstance(data, (str, Path)) else FrameTable(data)


def simulate(
    data: Data,
    config: Config = None,
    *,
    label: str | None = None,
    seed: int | None = None,
    trace: bool = False,
    **options: Any,
) -> Result:
    """Run a whole federation in this process, with the real roles and without a broker, like ``streamfl
    simulate``.

    >>> import streamfl
    >>> steps = {"x": [step % 10 / 10 for step in range(200)], "y": [step % 10 / 5 for step in range(200)]}
    >>> result = streamfl.simulate(steps, clients=2)
    >>> result.figures["rmse"] < result.figures["rmse_running_mean"]
    True

    Parameters
    ----------
    data
        A DataFrame, a dictionary of columns, or any value of ``--data``.
    config
        A role's settings: the path of its file, or its sections as a dictionary. Default: all defaults.
    label
        The column with the label. Default: the one that ``config`` names, or y.
    seed
        Seed of all random draws. Default: federation.seed.
    trace
        Whether the result has the arrays that are needed to compute the run again.
    options
        The command's further options that belong to the system, with ``_`` for ``-``: clients, rounds and
        client_column of a federation of clients with rows of their own, split and epochs of one whose parties
        have columns.
    """
    common = options_given(_common, {"label": label, "seed": seed, "trace": trace})
    settings, table = settings_given(config), table_given(data)
    kind = load_kind(settings)
    system = find_system(kind)
    if system.simulate is None:
        raise ConfigurationError(f"role.kind = {kind!r}: {system.name} cannot be simulated")
    function = load(system.simulate)
    options = _own_options(function, options, kind)
    with threadpool_limits(1):
        common["label"] = label_told(settings, table, common["label"])
        report = function(SimulationOptions(settings, table, **common), **options)
    if report.interrupted:
        # When the run was interrupted, the program must not go on with half of a result.
        raise KeyboardInterrupt
    return Result(
        report.title,
        report.columns,
        report.rows,
        report.figures,
        notes=report.notes,
        predictions=report.predictions,
        arrays=report.arrays,
        draw=report.draw,
    )


def _common(label: LabelOption, seed: SeedOption, trace: Annotated[bool, typer.Option()]) -> None:
    """Options that every simulation takes. Their annotations give the types."""


def _own_options(function: Callable[..., Any], options: Mapping[str, Any], kind: str) -> dict[str, Any]:
    known = [*inspect.signature(function).parameters][1:]
    wrong = [name for name in options if name not in known]
    if wrong:
        raise ConfigurationError(
            f"{wrong[0]} has no meaning with role.kind = {kind!r} (known: {', '.join(known)})"
        )
    return options_given(function, options)
