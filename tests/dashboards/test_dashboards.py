"""The dashboards: errors that Grafana would refuse, or show silently as empty panels."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from board_rules import parsed, selectors
from prometheus import promtool

from streamfl.contract.measurement import Metric
from streamfl.contract.system import installed_systems, systems_with
from streamfl.monitoring.dashboard import CHOICES, Dashboard
from streamfl.monitoring.files import dashboards_of
from streamfl.monitoring.grafana import to_json
from streamfl.reference.metrics import role_metrics, worker_metrics

SYSTEMS = systems_with("dashboards")
BOARDS = {board.name: board for board in dashboards_of(installed_systems())}
LABELS = re.compile(r"\b(?:by|on) \(([^)]*)\)")
HISTOGRAM_SERIES = ("_bucket", "_sum", "_count")
GRID_COLUMNS = 24

Metrics = dict[str, Metric]


@cache
def measured(system: str) -> Metrics:
    """The metrics of a system's roles, by name; "": those of every worker."""
    if not system:
        return worker_metrics()
    return {name: one for metrics in role_metrics(SYSTEMS[system]).values() for name, one in metrics.items()}


def metrics_of(system: str) -> Metrics:
    """The metrics that a dashboard may show, by name: of a system's roles, or of all systems', and of the
    worker."""
    found = dict(measured(""))
    for name in [system] if system else SYSTEMS:
        found |= measured(name)
    return found


def metric_of(series: str, names: Metrics) -> str:
    """The metric of a series: a histogram has three series."""
    for suffix in HISTOGRAM_SERIES:
        base = series.removesuffix(suffix)
        if base in names and names[base].kind == "histogram":
            return base
    return series


def asked(board: Dashboard) -> list[str]:
    """Every query in the form that Prometheus gets."""
    return [re.sub(r"^label_values\((.+), \w+\)$", r"\1", expression) for expression in board.expressions]


def asked_of_prometheus(expression: str) -> str:
    """A query with a duration in place of Grafana's variables."""
    return expression.replace("$__rate_interval", "5m").replace("$__range", "1h")


@pytest.fixture(params=BOARDS.values(), ids=BOARDS)
def described(request: pytest.FixtureRequest) -> Dashboard:
    chosen: Dashboard = request.param
    return chosen


@pytest.fixture
def dashboard(described: Dashboard) -> dict[str, Any]:
    """In the form that Grafana reads."""
    content: dict[str, Any] = json.loads(to_json(described))
    return content


def test_every_system_has_an_overview_and_one_is_of_none() -> None:
    """Protects an operator from a system that cannot be monitored."""
    assert {board.system for board in BOARDS.values()} == {
        "",
        *(system.name for system in installed_systems()),
    }


def test_panels_are_complete_and_unique(dashboard: dict[str, Any]) -> None:
    """Protects rendering and links: Grafana drops a panel with a duplicate id, and shows nothing for one
    without a query."""
    panels = dashboard["panels"]
    for name in ("id", "title"):
        assert len({panel[name] for panel in panels}) == len(panels), name
    for panel in panels:
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    """Protects the layout: Grafana moves overlapping panels, differently at every load."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        rows = range(place["y"], place["y"] + place["h"])
        assert set(columns) <= set(range(GRID_COLUMNS)), panel["title"]
        cells = {(column, row) for column in columns for row in rows}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_variables_exist(dashboard: dict[str, Any]) -> None:
    """Protects every panel: an unknown $variable makes a query match nothing."""
    known = {item["name"] for item in dashboard["templating"]["list"]} | {
        "__rate_interval",
        "__interval",
        "__range",
    }
    used = {a or b for a, b in re.findall(r"\$(?:\{(\w+)\}|(\w+))", json.dumps(dashboard["panels"]))}
    assert used <= known


def test_queries_name_metrics_that_exist(described: Dashboard) -> None:
    """Protects panels from staying empty: for Prometheus a misspelt or renamed metric is not an error."""
    names = metrics_of(described.system)
    for expression in asked(described):
        found = {selector.name for selector, _ in selectors(expression)}
        assert found, expression
        # Prometheus itself reports whether it reaches its targets.
        assert {metric_of(series, names) for series in found} <= {*names, "up"}, expression


def test_queries_ask_for_labels_and_kinds_that_are_there(described: Dashboard) -> None:
    """Protects panels from a single line for all, and from rates of non-counters: Prometheus refuses
    neither."""
    names = metrics_of(described.system)
    for expression in asked(described):
        of = [
            names[metric_of(selector.name, names)]
            for selector, _ in selectors(expression)
            if selector.name != "up"
        ]
        for selector, above in selectors(expression):
            growing = {one.func.name for one in above if hasattr(one, "func")} & {"rate", "irate", "increase"}
            if growing:
                assert names[metric_of(selector.name, names)].kind in {"counter", "histogram"}, expression
        allowed = {"job", "instance", "system", *CHOICES}.union(*(one.labels for one in of))
        allowed |= {"le"} if "_bucket" in expression else set()
        for grouping in LABELS.findall(expression):
            assert {label.strip() for label in grouping.split(",")} <= allowed, expression


def test_a_choice_narrows_the_next(described: Dashboard) -> None:
    """Protects users who choose a federation from seeing other federations' workers."""
    for before, name in enumerate(described.choices):
        [(selector, _)] = selectors(re.sub(r"^label_values\((.+), \w+\)$", r"\1", described.values_of(name)))
        narrowed = {one.value.removeprefix("$") for one in selector.matchers.matchers}
        assert narrowed == {*list(described.choices)[:before], *(["system"] if described.system else [])}


@pytest.mark.long
def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    """Protects panels from an error in place of a graph: promtool reads each query as a recording rule."""
    queries = [asked_of_prometheus(expression) for board in BOARDS.values() for expression in asked(board)]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    done = promtool("check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout


def test_what_is_no_query_is_found() -> None:
    """Protects the tests above: they read queries as Prometheus does."""
    with pytest.raises(ValueError, match=r".+"):
        parsed("sum by (rate(streamfl_labels_total[5m])")
