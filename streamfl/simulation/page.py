"""A report of a run or a federation: one page of HTML that needs nothing beside it, neither a network nor a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from streamfl.settings import RoleSettings
from streamfl.simulation.system_tools import Report

__all__ = ["Arrays", "Chart", "Line", "Page", "Reports", "Seen", "Table", "Topics"]

Arrays = Mapping[str, NDArray[Any]]
"""What ``trace.npz`` has, by name."""


@dataclass(frozen=True)
class Line:
    """A quantity over the horizontal axis: at ``x`` (points,) it is ``y`` (points,). What is no finite number is a gap.

    level: a bound, a budget or a yardstick: it is drawn thinner, in broken strokes.
    rest: all that has no line of its own.
    """

    name: str
    x: NDArray[Any]
    y: NDArray[Any]
    level: bool = False
    rest: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines in one picture.

    title: what is seen. says: how to read it, and what to do where it looks bad.
    horizontal, vertical: what the axes count, with the unit.
    logarithmic: the vertical axis; what is not above zero is a gap.
    stacked: lines are shares of a whole, and lie on one another.
    bars: lines have one point each, and are bars.
    times: the horizontal axis is seconds since 1970.
    """

    title: str
    says: str
    lines: Sequence[Line]
    horizontal: str
    vertical: str
    logarithmic: bool = False
    stacked: bool = False
    bars: bool = False
    times: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of texts under a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Page:
    """title: whose report. said: what it is of. figures: name and value, the first to be looked at.

    notes: what is missing or cut short, and why.
    """

    title: str
    said: str
    figures: Sequence[tuple[str, str]] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = field(default_factory=list)


class Seen(NamedTuple):
    """A record that was read. time: its own, in seconds since 1970. size: its bytes. says: its value, plain or decoded."""

    time: float
    partition: int
    size: int
    says: Any


class Topics(Protocol):
    """What of a federation that runs, or ran, can be read."""

    settings: RoleSettings

    def said(self, name: str) -> Sequence[Seen]:
        """The newest records of a topic that people call so, such as "predictions", oldest first; none if there is no such topic.

        What nobody can read is left out.
        """

    def messages(self, channel: str) -> Sequence[Seen]:
        """The newest messages on an input of the role, as it decodes them; none if it has no such input.

        What the role would refuse is left out.
        """

    def remembered(self) -> Report | None:
        """What ``streamfl inspect`` shows of the role; None where that cannot be read."""


@dataclass(frozen=True)
class Reports:
    """What a system knows to report.

    of_trace: from the arrays of a simulation. of_topics: from what lies in a federation's topics.
    """

    of_trace: Callable[[Arrays], Page] | None = None
    of_topics: Callable[[Topics], Page] | None = None
