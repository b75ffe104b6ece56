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

from streamfl.promql import lag_by_partition

__all__ = ["CHOICES", "Dashboard", "Panel", "Query", "lag", "mean_over_time", "rate", "series", "worker_panels"]

HEIGHT = 8
SCHEMA = 41
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# What the viewer chooses workers by: labels that each of their series has, and what is written beside the choice.
CHOICES = {"federation": "Federation", "role": "Role", "group": "Consumer group", "instance": "Worker"}
# The system is fixed: federations of several systems have metrics of one name.
CHOSEN = ",".join(['system="$system"', *(f'{name}=~"${name}"' for name in CHOICES)])

PanelKind = Literal["timeseries", "stat", "gauge", "bargauge", "table"]
Unit = Literal["short", "ops", "Bps", "s", "bytes", "percentunit"]


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
            (Query(f"sum by (group, reason) ({rate('dead_letters_total')}) > 0", "{{group}} {{reason}}"),),
            id=own[0],
        ),
        Panel(
            "Consumer lag",
            "Records not read yet, by topic and partition, whether a worker has the partition or not. It should return to zero.",
            "short",
            (Query(lag(), "{{group}} {{topic}} {{partition}}"),),
            id=own[1],
        ),
        Panel(
            "Workers up",
            "1 while Prometheus reaches a worker that it has seen within the last hour, and the commits a second of each, which "
            "show that it goes round.",
            "short",
            (
                Query(f"min by (instance) (up and on (job, instance) last_over_time({series('ready')}[1h]))", "up, {{instance}}"),
                Query(f"sum by (group, instance) ({rate('commits_total')})", "commits a second, {{group}} {{instance}}"),
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
    system: whose workers it shows.
    rows: panels from top to bottom, and from left to right.
    """

    name: str
    uid: str
    title: str
    system: str
    rows: tuple[tuple[Panel, ...], ...]

    @property
    def filename(self) -> str:
        """Of the file in ``dashboards/``."""
        return f"{self.name}.json"

    @property
    def expressions(self) -> list[str]:
        """Every query, those that find what can be chosen included."""
        panels = [panel for row in self.rows for panel in row]
        return [query.expression for panel in panels for query in panel.queries] + [self._values(name) for name in CHOICES]

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
            "templating": {"list": [_DATA_SOURCES, self._own_system(), *(self._choice(name) for name in CHOICES)]},
            "panels": list(self._panels()),
        }

    def _own_system(self) -> dict[str, Any]:
        chosen = {"text": self.system, "value": self.system}
        return {"name": "system", "type": "constant", "query": self.system, "current": chosen, "hide": 2, "skipUrlSync": True}

    def _values(self, name: str) -> str:
        """What finds the values of a label. Each choice narrows those after it."""
        before = [f'{other}=~"${other}"' for other in list(CHOICES)[: list(CHOICES).index(name)]]
        chosen = ",".join(['system="$system"', *before])
        return f"label_values(streamfl_ready{{{chosen}}}, {name})"

    def _choice(self, name: str) -> dict[str, Any]:
        query = self._values(name)
        return {
            "name": name,
            "label": CHOICES[name],
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
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
