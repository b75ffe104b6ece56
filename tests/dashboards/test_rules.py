"""The dashboards obey the rules, and each rule finds a dashboard that breaks it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from board_rules import RULES

from streamfl.monitoring.service_health import DASHBOARD

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "dashboards").glob("*.json"))


def panel(board: Any, kind: str) -> Any:
    return next(one for one in board["panels"] if one["type"] == kind)


def variable(board: Any, name: str) -> Any:
    return next(one for one in board["templating"]["list"] if one["name"] == name)


def ask(board: Any, expression: str, kind: str = "timeseries") -> None:
    panel(board, kind)["targets"][0]["expr"] = expression


def without(board: Any, matcher: str) -> None:
    for one in board["panels"]:
        for target in one["targets"]:
            target["expr"] = target["expr"].replace(matcher, "")


CHOSEN = ",".join(
    f'{name}=~"${name}"' for name in ("system", "job", "federation", "role", "group", "instance")
)
BROKEN: dict[str, Callable[[Any], Any]] = {
    "template-datasource-rule": lambda board: variable(board, "datasource").update(label="Prometheus"),
    "template-job-rule": lambda board: variable(board, "job").update(allValue=".*"),
    "template-instance-rule": lambda board: board["templating"]["list"].remove(variable(board, "instance")),
    "template-label-promql-rule": lambda board: variable(board, "role")["query"].update(
        query="label_values(ready{, role)"
    ),
    "template-on-time-change-reload-rule": lambda board: variable(board, "role").update(refresh=1),
    "panel-datasource-rule": lambda board: panel(board, "timeseries")["targets"][0]["datasource"].update(
        uid="prometheus-1"
    ),
    "panel-title-description-rule": lambda board: panel(board, "stat").pop("description"),
    "panel-units-rule": lambda board: panel(board, "stat")["fieldConfig"]["defaults"].update(unit="furlongs"),
    "panel-no-targets-rule": lambda board: panel(board, "stat")["targets"].clear(),
    "target-promql-rule": lambda board: ask(board, "sum by (rate(streamfl_commits_total[5m])"),
    "target-rate-interval-rule": lambda board: ask(board, f"rate(streamfl_commits_total{{{CHOSEN}}}[5m])"),
    "target-job-rule": lambda board: without(board, 'job=~"$job",'),
    "target-instance-rule": lambda board: without(board, ',instance=~"$instance"'),
    "target-counter-agg-rule": lambda board: ask(board, f"sum(streamfl_commits_total{{{CHOSEN}}})"),
    "uneditable-dashboard": lambda board: board.update(editable=True),
    "chosen by all": lambda board: without(board, 'federation=~"$federation",'),
    "says what it is for": lambda board: board.update(description=""),
    "says what to do": lambda board: panel(board, "stat").update(description="Workers that run."),
    "range in tiles alone": lambda board: ask(
        board, f"increase(streamfl_commits_total{{{CHOSEN}}}[$__range])"
    ),
    "tiles show now": lambda board: panel(board, "stat")["targets"][0].update(instant=False),
    "tiles first": lambda board: panel(board, "timeseries")["gridPos"].update(y=0),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_rule_is_broken(path: Path) -> None:
    """Protects new users of a dashboard: workers are chosen in the same way on all, and every panel says what
    to do."""
    board = json.loads(path.read_text(encoding="utf-8"))
    assert {name: found for name, rule in RULES.items() if (found := list(rule(board)))} == {}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_finds_what_breaks_it(name: str) -> None:
    """Protects the test above from rules that nothing can break."""
    board = copy.deepcopy(json.loads((ROOT / "dashboards" / DASHBOARD.filename).read_text(encoding="utf-8")))
    BROKEN[name](board)
    assert list(RULES[name](board)) != []
