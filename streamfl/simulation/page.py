"""A report of a run or a federation: one self-contained HTML page that needs no network and no script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from streamfl.configuration.settings import RoleSettings
from streamfl.simulation.system_tools import Report

__all__ = ["Arrays", "Chart", "FederationTopics", "Line", "Page", "ReadRecord", "Reports", "Table"]

Arrays = Mapping[str, NDArray[Any]]
"""The arrays of ``trace.npz``, by name."""


@dataclass(frozen=True)
class Line:
    """A quantity over the horizontal axis: ``x`` and ``y``, both (points,). A value that is not finite is a
    gap.

    level: a bound, a budget or a value to compare with. It is drawn thinner and dashed.
    rest: the sum of everything without a line of its own.
    """

    name: str
    x: NDArray[Any]
    y: NDArray[Any]
    level: bool = False
    rest: bool = False


@dataclass(frozen=True)
class Chart:
    """One picture of lines.

    title: what it shows.
    says: how to read it, and what to do when it looks bad.
    horizontal, vertical: labels of the axes, with the unit.
    logarithmic: whether the vertical axis is; values that are not above zero are gaps.
    stacked: lines are shares of a whole, drawn on top of each other.
    bars: lines have one point each, drawn as bars.
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
    """A table of texts with a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Page:
    """title: heading of the report.
    said: what it reports on.
    figures: name and value of the most important numbers.
    notes: what is missing or shortened, and why.
    """

    title: str
    said: str
    figures: Sequence[tuple[str, str]] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = field(default_factory=list)


class ReadRecord(NamedTuple):
    """A record that was read. time: its timestamp, in seconds since 1970. size: in bytes. says: its value,
    plain or decoded."""

    time: float
    partition: int
    size: int
    says: Any


class FederationTopics(Protocol):
    """What can be read from a federation's topics, whether it still runs or not."""

    settings: RoleSettings

    def said(self, name: str) -> Sequence[ReadRecord]:
        """The newest records of a topic by its short name, such as "predictions", oldest first; none if there
        is no such topic.

        Records that cannot be read are left out.
        """

    def messages(self, channel: str) -> Sequence[ReadRecord]:
        """The newest messages on one of the role's inputs, decoded by the role; none if it has no such input.

        Messages that the role would refuse are left out.
        """

    def remembered(self) -> Report | None:
        """What ``streamfl inspect`` shows about the role; None if that cannot be read."""


@dataclass(frozen=True)
class Reports:
    """A system's functions that make reports.

    of_trace: from the arrays of a simulation.
    of_topics: from the records in a federation's topics.
    """

    of_trace: Callable[[Arrays], Page] | None = None
    of_topics: Callable[[FederationTopics], Page] | None = None
