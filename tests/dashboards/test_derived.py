"""The dashboards and alerts of a system that describes none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from board_rules import RULES
from prometheus import promtool

from streamfl.contract.system import System, installed_systems
from streamfl.monitoring.derived import dashboards_of_system
from streamfl.monitoring.files import alert_files
from streamfl.monitoring.grafana import to_json
from streamfl.reference.metrics import role_metrics

BARE = {system.name: replace(system, dashboards=None, alerts=None) for system in installed_systems()}


@pytest.fixture(name="system", params=BARE.values(), ids=BARE)
def _system(request: pytest.FixtureRequest) -> System:
    found: System = request.param
    return found


def test_every_metric_has_a_panel_that_obeys_the_rules(system: System) -> None:
    """Protects operators of a new system: Grafana takes its dashboard, and each metric of its roles is on
    it."""
    (described,) = dashboards_of_system(system)
    board: dict[str, Any] = json.loads(to_json(described))
    assert [f"{rule}: {found}" for rule, look in RULES.items() for found in look(board)] == []
    assert len({panel["title"] for panel in board["panels"]}) == len(board["panels"])
    shown = " ".join(described.expressions)
    names = {name for metrics in role_metrics(system).values() for name in metrics}
    assert [name for name in names if name not in shown] == []


def test_prometheus_takes_the_alerts(system: System, tmp_path: Path) -> None:
    """Protects operators of a new system: an alert for each headline counter, in a file that Prometheus
    loads."""
    files = alert_files([system], "")
    declared = [one for metrics in role_metrics(system).values() for one in metrics.values()]
    headlines = {one.name for one in declared if one.headline and one.kind == "counter"}
    rules = files.get(f"alerts-{system.name}.yaml", "")
    assert rules.count("- alert:") == len(headlines)
    if rules:
        (tmp_path / "alerts.yaml").write_text(rules)
        checked = promtool("check", "rules", str(tmp_path / "alerts.yaml"))
        assert checked.returncode == 0, checked.stderr
