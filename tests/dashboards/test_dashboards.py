"""The dashboards: what Grafana would refuse or leave empty without a word."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import run_command

from streamfl.dashboard import CHOICES, Dashboard
from streamfl.reference.metrics import role_metrics, worker_metrics
from streamfl.runtime.metrics import Described
from streamfl.system import System, load, systems_with

SYSTEMS = systems_with("dashboard")
USED = re.compile(r"\bstreamfl_[a-z0-9_]+\b")
# What Prometheus itself says of everything that it scrapes.
PROMETHEUS_OWN = re.compile(r"\bup\{")
HISTOGRAM_SERIES = ("_bucket", "_sum", "_count")
GRID_COLUMNS = 24

Metrics = dict[str, Described]


@cache
def metrics_of(name: str) -> Metrics:
    """The metrics that a system's dashboard may show: of its roles and of the worker, by name."""
    found = dict(worker_metrics())
    for metrics in role_metrics(SYSTEMS[name]).values():
        found |= metrics
    return found


def metric_of(series: str, names: Metrics) -> str:
    """The metric that a series belongs to: a histogram is queried by its three series."""
    for suffix in HISTOGRAM_SERIES:
        base = series.removesuffix(suffix)
        if base in names and names[base].kind == "histogram":
            return base
    return series


@pytest.fixture(params=SYSTEMS.values(), ids=SYSTEMS)
def system(request: pytest.FixtureRequest) -> System:
    chosen: System = request.param
    return chosen


@pytest.fixture
def described(system: System) -> Dashboard:
    found: Dashboard = load(system.dashboard or "")
    return found


@pytest.fixture
def dashboard(described: Dashboard) -> dict[str, Any]:
    """As Grafana reads it."""
    content: dict[str, Any] = json.loads(described.to_json())
    return content


def test_dashboards_have_names_of_their_own() -> None:
    """Protects provisioning: of two dashboards with one uid Grafana shows only one, and of two with one file only one is there."""
    boards = [load(system.dashboard or "") for system in SYSTEMS.values()]
    assert boards
    for names in ([board.uid for board in boards], [board.filename for board in boards]):
        assert len(set(names)) == len(names)


def test_the_command_prints_what_the_repository_has(
    system: System, described: Dashboard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Protects whoever imports a dashboard without this repository: the command prints the same file, or writes it."""
    code, shown, _ = run_command(monkeypatch, capsys, "dashboard", system.name)
    assert (code, shown) == (0, described.to_json())
    path = tmp_path / described.filename
    code, shown, told = run_command(monkeypatch, capsys, "dashboard", system.name, "--out", str(path))
    assert (code, shown) == (0, "")
    assert str(path) in told
    assert path.read_text(encoding="utf-8") == described.to_json()


def test_a_system_without_a_dashboard_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Protects whoever mistypes a name: the message names those that there are."""
    code, _, told = run_command(monkeypatch, capsys, "dashboard", "nobodys")
    assert code == 2
    assert all(name in told for name in SYSTEMS)


def test_panels_are_complete_and_unique(dashboard: dict[str, Any]) -> None:
    """Protects rendering: Grafana drops a panel whose id is taken, and shows nothing for one without type or query."""
    fields = {"uid": str, "title": str, "schemaVersion": int, "panels": list, "templating": dict, "time": dict}
    for key, kind in fields.items():
        assert isinstance(dashboard[key], kind), key
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["type"] in {"timeseries", "stat", "table", "row", "gauge", "bargauge"}, panel["title"]
        assert panel["description"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert references, panel["title"]
        assert len(set(references)) == len(references), panel["title"]
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    """Protects the layout: Grafana moves overlapping panels about, differently at every load."""
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
    """Protects every panel at once: an unknown $variable makes a query match nothing."""
    known = {item["name"] for item in dashboard["templating"]["list"]} | {"__rate_interval", "__interval", "__range"}
    used = {a or b for a, b in re.findall(r"\$(?:\{(\w+)\}|(\w+))", json.dumps(dashboard["panels"]))}
    assert used <= known


def test_queries_name_metrics_that_exist(system: System, described: Dashboard) -> None:
    """Protects panels from staying empty: a misspelt or renamed metric is no error to Prometheus."""
    names = metrics_of(system.name)
    for expression in described.expressions:
        found = USED.findall(expression)
        assert found or PROMETHEUS_OWN.search(expression), expression
        for series in found:
            assert metric_of(series, names) in names, f"{series} in {expression}"


def test_queries_are_well_formed(system: System, described: Dashboard) -> None:
    """Protects panels from an error in place of a graph: brackets pair up, counters are read as rates, labels exist."""
    names = metrics_of(system.name)
    for expression in described.expressions:
        for opening, closed in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closed), expression
        for series in re.findall(r"rate\((\w+)", expression):
            assert names[metric_of(series, names)].kind in {"counter", "histogram"}, f"{series} is no counter in {expression}"
        own = [names[metric_of(series, names)].labels for series in USED.findall(expression)]
        allowed = {"job", "instance", *CHOICES}.union(*own)
        allowed |= {"le"} if "_bucket" in expression else set()
        for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert {label.strip() for label in grouping.split(",")} <= allowed, expression
