"""A Grafana dashboard, described in a few words and written as the JSON that Grafana reads.

A system describes its own in its laboratory. Grafana lays panels out on a grid of 24 columns; here they stand in rows, from left to
right, in the order in which they are named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Literal

__all__ = ["Dashboard", "Panel", "Query", "rate", "series", "worker_panels"]

HEIGHT = 8
SCHEMA = 41
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN_JOBS = '{job=~"$job"}'

PanelKind = Literal["timeseries", "stat", "gauge", "bargauge", "table"]
Unit = Literal["short", "ops", "Bps", "s", "bytes", "percentunit"]


def series(metric: str) -> str:
    """The series of one of streamfl's metrics, of the jobs that the viewer has chosen.

    >>> series("labels_total")
    'streamfl_labels_total{job=~"$job"}'
    """
    return f"streamfl_{metric}{CHOSEN_JOBS}"


def rate(counter: str) -> str:
    """How fast one of streamfl's counters grows, a second.

    >>> rate("labels_total")
    'rate(streamfl_labels_total{job=~"$job"}[$__rate_interval])'
    """
    return f"rate({series(counter)}[$__rate_interval])"


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

    title: what it shows; no other panel of the dashboard has the same.
    description: what to make of it, for whoever sees it the first time.
    unit: of its axis, as Grafana names units.
    queries: its lines.
    minimum, maximum: the ends of the axis; None: Grafana chooses.
    kind: how it is drawn.
    width: columns, of the 24 that a row has.
    id: a number of its own, which links to the panel carry; None: its place in the dashboard, from 1.
    """

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    minimum: float | None = 0
    maximum: float | None = None
    kind: PanelKind = "timeseries"
    width: int = 8
    id: int | None = None


def worker_panels(first: int | None = None) -> tuple[Panel, ...]:
    """The row of what every worker has, whatever its system: refused records, lag, and whether it is up.

    first: number of the first panel, the others follow; None: their places in the dashboard.
    """
    own = [None] * 3 if first is None else range(first, first + 3)
    return (
        Panel(
            "Dead letters",
            "Records that were refused and went to the dead-letter topics, by reason. It should be empty.",
            "ops",
            (Query(f"sum by (job, instance, reason) ({rate('dead_letters_total')})", "{{job}} {{instance}} {{reason}}"),),
            id=own[0],
        ),
        Panel(
            "Consumer lag",
            "Records not read yet, by topic and partition. It should return to zero.",
            "short",
            (Query(f"sum by (topic, partition) ({series('consumer_lag_records')})", "{{topic}} {{partition}}"),),
            id=own[1],
        ),
        Panel(
            "Workers up",
            "1 while Prometheus reaches a worker, and the commits a second of each, which show that it goes round.",
            "short",
            (
                Query('min by (job, instance) (up{job=~"$job"})', "up, {{job}} {{instance}}"),
                Query(f"sum by (job, instance) ({rate('commits_total')})", "commits a second, {{job}} {{instance}}"),
            ),
            id=own[2],
        ),
    )


@dataclass(frozen=True)
class Dashboard:
    """One page of panels about every federation of a system.

    name: of its file, without ".json".
    uid: by what Grafana knows it; no other dashboard has the same.
    title: its heading.
    jobs_with: a metric that every worker of the system has: Prometheus jobs that have it can be chosen.
    rows: panels from top to bottom, and from left to right.
    all_jobs: the regular expression of the choice "All"; None: the jobs that were found.
    """

    name: str
    uid: str
    title: str
    jobs_with: str
    rows: tuple[tuple[Panel, ...], ...]
    all_jobs: str | None = None

    @property
    def filename(self) -> str:
        """Of the file in ``dashboards/``."""
        return f"{self.name}.json"

    @property
    def expressions(self) -> list[str]:
        """Every query, the one that finds the jobs included."""
        panels = [panel for row in self.rows for panel in row]
        return [query.expression for panel in panels for query in panel.queries] + [self._jobs]

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(self.content(), indent=2, ensure_ascii=False) + "\n"

    def content(self) -> dict[str, Any]:
        """What Grafana is given."""
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["streamfl"],
            "schemaVersion": SCHEMA,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "refresh": "5s",
            "time": {"from": "now-15m", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": []},
            "links": [],
            "templating": {"list": [_DATA_SOURCES, self._choice_of_jobs()]},
            "panels": list(self._panels()),
        }

    @property
    def _jobs(self) -> str:
        return f"label_values(streamfl_{self.jobs_with}, job)"

    def _choice_of_jobs(self) -> dict[str, Any]:
        return {
            "name": "job",
            "label": "Job",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": self._jobs, "refId": "job"},
            "definition": self._jobs,
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            **({} if self.all_jobs is None else {"allValue": self.all_jobs}),
            "current": {"text": "All", "value": "$__all"},
            "sort": 1,
        }

    def _panels(self) -> Iterator[dict[str, Any]]:
        count = 0
        for number, row in enumerate(self.rows):
            column = 0
            for panel in row:
                count += 1
                place = {"x": column, "y": number * HEIGHT, "w": panel.width, "h": HEIGHT}
                yield _panel(panel, panel.id or count, place)
                column += panel.width


_DATA_SOURCES = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "current": {"text": "Prometheus", "value": "streamfl-prometheus"},
    "hide": 0,
}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    ends = {"min": panel.minimum, "max": panel.maximum}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, **{name: end for name, end in ends.items() if end is not None}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": name, "expr": query.expression, "legendFormat": query.legend, "datasource": SOURCE}
            for name, query in zip(ascii_uppercase, panel.queries, strict=False)
        ],
    }
