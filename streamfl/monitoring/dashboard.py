"""A Grafana dashboard, described in a few words; :mod:`streamfl.monitoring.grafana` makes of it what Grafana reads.

A system describes its own in its laboratory. Grafana lays panels out on a grid of 24 columns; here they stand in rows, from left to
right, in the order in which they are named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamfl.monitoring.promql import lag_by_partition

__all__ = ["CHOICES", "SCRAPED", "Dashboard", "Panel", "PanelKind", "Query", "growth", "lag", "mean_over_time", "rate", "series"]

# What the viewer chooses workers by, and what is written beside the choice: the first and the last label are Prometheus' own.
CHOICES = {"job": "Job", "federation": "Federation", "role": "Role", "group": "Consumer group", "instance": "Instance"}
# On the board of one system it is fixed: federations of several systems have metrics of one name.
CHOSEN = ",".join(f'{name}=~"${name}"' for name in ("system", *CHOICES))
# Matchers for what Prometheus itself says of everything that it scrapes.
SCRAPED = 'job=~"$job",instance=~"$instance"'

PanelKind = Literal["timeseries", "stat", "bargauge"]
Unit = Literal["short", "ops", "Bps", "s", "bytes", "percentunit", "none"]


def series(metric: str, *roles: str) -> str:
    """The series of one of streamfl's metrics, of the workers that the viewer has chosen.

    roles: of workers with these roles alone; none: of any.

    >>> series("labels_total").partition("{")[0]
    'streamfl_labels_total'
    >>> series("labels_total", "vafl-coordinator").endswith(',role=~"vafl-coordinator"}')
    True
    """
    own = f',role=~"{"|".join(roles)}"' if roles else ""
    return f"streamfl_{metric}{{{CHOSEN}{own}}}"


def rate(counter: str, *roles: str) -> str:
    """How fast one of streamfl's counters grows, a second; roles as :func:`series`.

    >>> rate("labels_total").endswith("[$__rate_interval])")
    True
    """
    return f"rate({series(counter, *roles)}[$__rate_interval])"


def growth(counter: str, *roles: str) -> str:
    """How much one of streamfl's counters grew over the time that the viewer looks at; roles as :func:`series`.

    For tiles: they have one value. A counter itself begins anew with its process.

    >>> growth("labels_total").endswith("[$__range])")
    True
    """
    return f"increase({series(counter, *roles)}[$__range])"


def lag() -> str:
    """Records that wait for the chosen workers, by group, topic and partition, whether a worker has the partition or not."""
    return lag_by_partition("group", f"{{{CHOSEN}}}")


def mean_over_time(sums: str, counts: str, *roles: str) -> str:
    """The mean of what came within the latest interval, from two counters: of what was added up, and of how much of it came.

    It is right for any number of workers, after any restart, and over any time.
    """
    return f"sum({rate(sums, *roles)}) / sum({rate(counts, *roles)})"


@dataclass(frozen=True)
class Query:
    """One line of a panel.

    expression: in PromQL.
    legend: the line's name; ``{{label}}`` stands for a label's value.
    """

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture.

    title: what it shows; no other panel of the dashboard has the same, and links to the panel go by it.
    description: what is shown, for whoever sees it the first time.
    unit: of its axis, as Grafana names units.
    queries: its lines, or the numbers of its tile.
    minimum, maximum: the ends of the axis; None: Grafana chooses.
    kind: how it is drawn; a "stat" is a tile with the present value of each query.
    width: columns, of the 24 that a row has.
    remedy: what it looks like when something is wrong, and what to do then.
    bad_from: a tile is red from this value on.
    bad_below: a tile is red below this value.
    nothing: what it says while its queries find nothing; "": No data.
    """

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    minimum: float | None = 0
    maximum: float | None = None
    kind: PanelKind = "timeseries"
    width: int = 8
    remedy: str = ""
    bad_from: float | None = None
    bad_below: float | None = None
    nothing: str = ""


@dataclass(frozen=True)
class Dashboard:
    """One page of panels about every federation of a system, or of all systems.

    name: of its file, without ".json".
    uid: by what Grafana knows it; no other dashboard has the same.
    title: its heading.
    system: whose workers it shows; "": the viewer chooses.
    rows: panels from top to bottom, and from left to right.
    description: what the page is for, in a sentence.
    """

    name: str
    uid: str
    title: str
    system: str
    rows: tuple[tuple[Panel, ...], ...]
    description: str = ""

    @property
    def filename(self) -> str:
        """Of the file in ``dashboards/``."""
        return f"{self.name}.json"

    @property
    def panels(self) -> list[Panel]:
        """All of them, row by row."""
        return [panel for row in self.rows for panel in row]

    @property
    def choices(self) -> dict[str, str]:
        """What the viewer chooses workers by, and what is written beside it."""
        return CHOICES if self.system else {"job": CHOICES["job"], "system": "System", **CHOICES}

    @property
    def expressions(self) -> list[str]:
        """Every query, those that find what can be chosen included."""
        asked = [query.expression for panel in self.panels for query in panel.queries]
        return [*asked, *(self.values_of(name) for name in self.choices)]

    def values_of(self, label: str) -> str:
        """What finds the values of a label that the viewer chooses by. Each choice narrows those after it."""
        names = [*self.choices]
        before = ["system"] * bool(self.system) + names[: names.index(label)]
        chosen = ",".join(f'{name}=~"${name}"' for name in before)
        return f"label_values(streamfl_ready{{{chosen}}}, {label})"
