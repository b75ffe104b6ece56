"""Descriptions of Grafana dashboards; :mod:`streamfl.monitoring.grafana` turns them into Grafana's JSON.

A system describes its own dashboards in its tools. Grafana lays panels out on a grid of 24 columns; here they
are in rows, from left to right, in the order in which they are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamfl.contract.measurement import Metric
from streamfl.monitoring.promql import lag_by_partition
from streamfl.runtime.health import HealthMetrics

__all__ = [
    "CHOICES",
    "SCRAPED",
    "Dashboard",
    "Panel",
    "PanelKind",
    "Query",
    "growth",
    "lag",
    "mean_over_time",
    "rate",
    "series",
    "within_the_hour",
]

# The labels by which the viewer chooses workers, with their captions. The first and the last label are
# Prometheus' own.
CHOICES = {
    "job": "Job",
    "federation": "Federation",
    "role": "Role",
    "group": "Consumer group",
    "instance": "Instance",
}
# The system is fixed on a system's own dashboard, because several systems have metrics of the same name.
CHOSEN = ",".join(f'{name}=~"${name}"' for name in ("system", *CHOICES))
# Matchers for metrics that Prometheus itself makes for every target.
SCRAPED = 'job=~"$job",instance=~"$instance"'

PanelKind = Literal["timeseries", "stat", "bargauge"]
Unit = Literal["short", "ops", "Bps", "s", "bytes", "percentunit", "none"]


def series(metric: Metric, *roles: str, **labels: str | tuple[str, ...]) -> str:
    """The series of a metric, for the workers that the viewer has chosen.

    roles: only workers with these roles; none: all. labels: only series with these values of the metric's own
    labels.

    >>> from streamfl.monitoring.shared_metrics import SharedMetrics
    >>> series(SharedMetrics.labels).partition("{")[0]
    'streamfl_labels_total'
    >>> series(SharedMetrics.labels, "vafl-coordinator").endswith(',role=~"vafl-coordinator"}')
    True
    """
    own = [f'role=~"{"|".join(roles)}"'] if roles else []
    return metric.where(CHOSEN, *own, **labels)


def rate(counter: Metric, *roles: str, **labels: str | tuple[str, ...]) -> str:
    """The growth of a counter per second; roles and labels as in :func:`series`."""
    return f"rate({series(counter, *roles, **labels)}[$__rate_interval])"


def growth(counter: Metric, *roles: str, **labels: str | tuple[str, ...]) -> str:
    """How much a counter grew over the time range of the dashboard; roles and labels as in :func:`series`.

    For tiles, which have one value. The counter itself would not do: it starts again at 0 with its process.
    """
    return f"increase({series(counter, *roles, **labels)}[$__range])"


def within_the_hour(counter: Metric) -> str:
    """How much a counter grew within the last hour. For rare events, a rate per second says little."""
    return f"increase({series(counter)}[1h])"


def lag() -> str:
    """Unread records of the chosen workers' groups, by group, topic and partition. Partitions without a
    worker count too."""
    return lag_by_partition("group", CHOSEN)


def mean_over_time(sums: Metric, counts: Metric, *roles: str) -> str:
    """Mean of the values in the latest interval, from two counters: the sum of the values and their number.

    It is correct for any number of workers, across restarts and over any time range.
    """
    return f"sum({rate(sums, *roles)}) / sum({rate(counts, *roles)})"


@dataclass(frozen=True)
class Query:
    """One line of a panel.

    expression: in PromQL.
    legend: the line's name; ``{{label}}`` is replaced by a label's value.
    """

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel.

    title: what it shows. It is unique within the dashboard, because links to the panel depend on it.
    description: what is shown, for a viewer who sees it for the first time.
    unit: the unit of its axis, as Grafana names units.
    queries: its lines, or the numbers of its tile.
    minimum, maximum: the ends of the axis; None: Grafana chooses.
    kind: how it is drawn; a "stat" is a tile with the present value of each query.
    width: columns, of the 24 in a row.
    remedy: what it looks like when something is wrong, and what to do then.
    bad_from: a tile is red from this value on.
    bad_below: a tile is red below this value.
    nothing: the text while its queries find nothing; "": No data.
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

    name: the name of its file, without ".json".
    uid: Grafana's identifier; no other dashboard has the same.
    title: its heading.
    system: the system whose workers it shows; "": the viewer chooses.
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
        """The file's name in ``dashboards/``."""
        return f"{self.name}.json"

    @property
    def panels(self) -> list[Panel]:
        """All panels, row by row."""
        return [panel for row in self.rows for panel in row]

    @property
    def choices(self) -> dict[str, str]:
        """The labels by which the viewer chooses workers, with their captions."""
        return CHOICES if self.system else {"job": CHOICES["job"], "system": "System", **CHOICES}

    @property
    def expressions(self) -> list[str]:
        """Every query, including those that list the values to choose from."""
        asked = [query.expression for panel in self.panels for query in panel.queries]
        return [*asked, *(self.values_of(name) for name in self.choices)]

    def values_of(self, label: str) -> str:
        """The query for the values of a label that the viewer can choose. Each choice narrows the following
        ones."""
        names = [*self.choices]
        before = ["system"] * bool(self.system) + names[: names.index(label)]
        chosen = ",".join(f'{name}=~"${name}"' for name in before)
        return f"label_values({HealthMetrics.ready}{{{chosen}}}, {label})"
