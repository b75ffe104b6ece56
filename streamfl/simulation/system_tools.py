"""What a system's tools are asked, and what they answer: the parts of ``streamfl simulate``, ``demo`` and ``replay``.

A simulation is a function of :class:`Asked`, a source one of :class:`Replayed`; each takes besides, by name, the options that it
contributes to the command. Such a parameter is annotated as a :class:`typer.Option` and defaults to None or False, which mean that
the option was not given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.role import ConfigurationError, Record, Waits
from streamfl.runtime.bus import Bus, Outgoing

if TYPE_CHECKING:
    # For what options a command has, nothing of this is needed, and it takes long to load.
    from streamfl.settings import GivenSettings, RoleSettings
    from streamfl.simulation.tables import DataSource

__all__ = [
    "SYSTEM_ARRAY",
    "Asked",
    "Demo",
    "Inspection",
    "Readers",
    "Replayed",
    "Report",
    "Rows",
    "Simulation",
    "Source",
    "Standing",
    "Standings",
    "what_learning_waits_for",
    "write_arrays",
]


SYSTEM_ARRAY = "system"
"""The array of a trace that names the system whose run it is."""


@dataclass(frozen=True)
class Asked:
    """What every simulation is asked.

    config: the settings file of a role of the federation, whichever; or the settings themselves.
    data: where the data set is, or the data set.
    label: its column with the label.
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
    """What came of a run.

    title, columns, rows: a table for people.
    figures: the same for programs, as one JSON object.
    arrays: what is needed to compute a traced run again.
    notes: sentences for people, beneath the table.
    predictions: by sample, in columns of equal length: "row", of the data, "prediction", in the label's own unit, and others.
    draw: draws the run into a matplotlib Axes.
    interrupted: how far the run had come when it was told to end, and this is of what was there; empty: it came to its end.
    """

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
        """The title, and that the run did not come to its end."""
        return f"{self.title}, interrupted at {self.interrupted}" if self.interrupted else self.title

    def as_json(self) -> dict[str, Any]:
        """The figures, and where the run did not come to its end, how far it came."""
        return {**self.figures, **({"interrupted": self.interrupted} if self.interrupted else {})}


@dataclass(frozen=True)
class Replayed:
    """What every source is asked.

    config: the settings file. settings: what it says. data: where the data set is.
    """

    config: Path
    settings: RoleSettings
    data: str


class Rows(Protocol):
    """The rows of a data set as records.

    topics: those that are written to, the first of them for every row.
    usable: the numbers of the rows that are complete.
    dropped: how many are not.
    """

    topics: list[str]
    usable: NDArray[np.intp]
    dropped: int

    def records(self, total: int) -> Iterator[list[Outgoing]]:
        """The records of each of the first ``total`` usable rows."""


class Inspection(Protocol):
    """A role that took its state back, for ``streamfl inspect``: a table for people, figures for programs."""

    def __call__(self, role: Any, settings: Any, client: str | None) -> Report:
        """client: only this one; ConfigurationError if the role does not know it."""


@dataclass(frozen=True)
class Standing:
    """How a role stands with its peers, in one respect.

    respect: which. text: how. remedy: what to do; empty: nothing.
    """

    respect: str
    text: str
    remedy: str = ""


class Standings(Protocol):
    """How a role stands, for ``streamfl check``, ``inspect`` and ``top``."""

    def __call__(self, settings: Any, bus: Bus, unread: Mapping[str, int], role: Any | None) -> Sequence[Standing]:
        """unread: records behind the last processed one, by input topic. role: that took its state back; None: topics alone."""


def what_learning_waits_for(settings: Any, bus: Bus, unread: Mapping[str, int], role: Any | None) -> Sequence[Standing]:
    """The standing of a role that waits before it learns, in its own words; nothing once it has learnt."""
    waits = role.backlog if isinstance(role, Waits) else None
    return [] if waits is None else [Standing("learning", waits)]


Readers = Callable[[Any], Callable[[Record], Mapping[str, Any]]]
"""Of a role's settings: what a record says in plain values, for ``streamfl read``; PeerError where it says nothing."""

Simulation = Callable[..., Report]
"""Runs a federation on a data set: ``simulate(asked, *, own options)``."""

Demo = Callable[[Path, int], Report]
"""Runs a federation on data that a package carries, by seed, and draws a picture: ``demo(picture, seed)``."""

Source = Callable[..., Rows]
"""The records that a role reads from its users: ``source(asked, *, own options)``."""


def write_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write ``trace.npz`` into a folder; ConfigurationError if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "trace.npz", allow_pickle=False, **arrays)
    except OSError as error:
        raise ConfigurationError(f"--trace {folder}: cannot be written: {error.strerror or error}") from None
