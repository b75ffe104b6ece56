"""Interfaces between a system's tools and the commands ``streamfl simulate``, ``demo`` and ``replay``.

A simulation is a function of :class:`SimulationOptions`, a source is a function of :class:`Replayed`. Both
also take, by name, the options that they add to the command. Such a parameter is annotated as a
:class:`typer.Option`. Its default, None or False, means that the option was not given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.further_interfaces import Waits
from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import Bus, Outgoing

if TYPE_CHECKING:
    # Listing a command's options does not need this import, and it takes long to load.
    from streamfl.configuration.settings import GivenSettings, RoleSettings
    from streamfl.simulation.tables import DataSource

__all__ = [
    "SYSTEM_ARRAY",
    "Demo",
    "Inspection",
    "Readers",
    "Replayed",
    "Report",
    "Rows",
    "Simulation",
    "SimulationOptions",
    "Source",
    "Standing",
    "Standings",
    "what_learning_waits_for",
    "write_arrays",
]


SYSTEM_ARRAY = "system"
"""Name of the trace's array that holds the name of the simulated system."""


@dataclass(frozen=True)
class SimulationOptions:
    """Arguments of every simulation.

    config: the settings file of any role of the federation, or the settings themselves.
    data: the location of the data set, or the data set itself.
    label: the column with the label.
    seed: None: federation.seed.
    trace: whether the report needs its arrays.
    """

    config: Path | GivenSettings
    data: DataSource
    label: str
    seed: int | None
    trace: bool


@dataclass(frozen=True)
class Report:
    """The result of a run.

    title, columns, rows: a table for people.
    figures: the same for programs, as one JSON object.
    arrays: what is needed to compute a traced run again.
    notes: sentences for people, beneath the table.
    predictions: by sample, in columns of equal length: "row" (of the data), "prediction" (in the label's own
    unit) and others.
    draw: draws the run into a matplotlib Axes.
    interrupted: how far the run got before it was interrupted; the report covers that part. Empty: the run is
    complete."""

    title: str
    rows: Sequence[Sequence[str]]
    figures: Mapping[str, Any]
    columns: Sequence[str] = ("measure", "value")
    notes: Sequence[str] = ()
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    predictions: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    draw: Callable[[Any], None] | None = None
    interrupted: str = ""

    def heading(self) -> str:
        """The title, and how far the run got if it was interrupted."""
        return f"{self.title}, interrupted at {self.interrupted}" if self.interrupted else self.title

    def as_json(self) -> dict[str, Any]:
        """The figures, and how far the run got if it was interrupted."""
        return {**self.figures, **({"interrupted": self.interrupted} if self.interrupted else {})}


@dataclass(frozen=True)
class Replayed:
    """Arguments of every source.

    config: the settings file.
    settings: its contents.
    data: the location of the data set.
    """

    config: Path
    settings: RoleSettings
    data: str


class Rows(Protocol):
    """The rows of a data set as records.

    topics: the topics that are written to. Every row has a record in the first one.
    usable: the numbers of the complete rows.
    dropped: the number of incomplete rows.
    """

    topics: list[str]
    usable: NDArray[np.intp]
    dropped: int

    def records(self, total: int) -> Iterator[list[Outgoing]]:
        """The records of each of the first ``total`` usable rows."""


class Inspection(Protocol):
    """Describes a restored role for ``streamfl inspect``: a table for people, figures for programs."""

    def __call__(self, role: Any, settings: Any, client: str | None) -> Report:
        """client: show only this client; ConfigurationError if the role does not know it."""


@dataclass(frozen=True)
class Standing:
    """One aspect of a role's state towards its peers.

    respect: the aspect.
    text: its state.
    remedy: what to do; empty: nothing.
    fails: whether a worker would not be ready, so that a check fails.
    """

    respect: str
    text: str
    remedy: str = ""
    fails: bool = False


class Standings(Protocol):
    """Describes a role's state for ``streamfl check``, ``inspect`` and ``top``."""

    def __call__(
        self, settings: Any, bus: Bus, unread: Mapping[str, int], role: Any | None
    ) -> Sequence[Standing]:
        """unread: number of records after the last processed one, by input topic. role: the restored role;
        None: use the topics alone.
        """


def what_learning_waits_for(
    settings: Any, bus: Bus, unread: Mapping[str, int], role: Any | None
) -> Sequence[Standing]:
    """What a role waits for before it learns, in its own words; nothing once it has learnt."""
    waits = role.backlog if isinstance(role, Waits) else None
    return [] if waits is None else [Standing("learning", waits)]


Readers = Callable[[Any], Callable[[Record], Mapping[str, Any]]]
"""From a role's settings, returns a reader of a record's plain values for ``streamfl read``; BadRecord if it
cannot be read."""

Simulation = Callable[..., Report]
"""Runs a federation on a data set: ``simulate(asked, *, own options)``."""

Demo = Callable[[Path, int], Report]
"""Runs a federation on data from a package, by seed, and draws a picture: ``demo(picture, seed)``."""

Source = Callable[..., Rows]
"""Yields the records that a role reads from its users: ``source(asked, *, own options)``."""


def write_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write ``trace.npz`` into a folder; ConfigurationError if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "trace.npz", allow_pickle=False, **arrays)
    except OSError as error:
        raise ConfigurationError(f"--trace {folder}: cannot be written: {error.strerror or error}") from None
