"""Rules for dashboards: those of Grafana's dashboard-linter, written again in Python, and streamfl's own.

A rule takes a dashboard as Grafana reads it, and yields what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import promql_parser as promql

__all__ = ["RULES", "parsed", "selectors"]

Board = dict[str, Any]
Rule = Callable[[Board], Iterator[str]]

SOURCES = ("${datasource}", "$datasource")
# The units of Grafana that these dashboards use.
UNITS = {"none", "short", "percentunit", "bytes", "Bps", "s", "ops"}
# Choices by scrape label: Prometheus' own metrics about targets have only these labels.
SCRAPE = {"job", "instance"}
CHOICES = {*SCRAPE, "system", "federation", "role", "group"}
TILES = {"stat", "bargauge"}
RATES, GROWTHS = {"rate", "irate"}, {"rate", "irate", "increase"}
INTERVAL, RANGE = "7777s", "8888s"


def parsed(expression: str) -> Any:
    """The syntax tree of a query, with a duration in place of Grafana's variables for one. ValueError if the
    query is invalid."""
    return promql.parse(expression.replace("$__rate_interval", INTERVAL).replace("$__range", RANGE))


def walked(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every node of a query, with the nodes that contain it, the nearest last."""
    yield node, above
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        if (part := getattr(node, name, None)) is not None:
            yield from walked(part, (*above, node))
    for part in getattr(node, "args", ()):
        yield from walked(part, (*above, node))


def selectors(expression: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every selector of series in a query, with the nodes that contain it."""
    for node, above in walked(parsed(expression)):
        if isinstance(node, promql.VectorSelector):
            yield node, above


def variables(board: Board, kind: str) -> list[Any]:
    return [one for one in board["templating"]["list"] if one["type"] == kind]


def targets(board: Board) -> Iterator[tuple[Any, Any]]:
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel, target


def readable(board: Board) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Every selector of every valid query, with its panel's title."""
    for panel, target in targets(board):
        try:
            found = list(selectors(target["expr"]))
        except ValueError:
            continue
        for selector, above in found:
            yield panel["title"], selector, above


def template_datasource(board: Board) -> Iterator[str]:
    found = variables(board, "datasource")
    if [(one["name"], one["label"], one["query"]) for one in found] != [
        ("datasource", "Data source", "prometheus")
    ]:
        yield f"one data source to choose is expected, not {found}"


def choice(name: str, label: str) -> Rule:
    def rule(board: Board) -> Iterator[str]:
        found = [one for one in variables(board, "query") if one["name"] == name]
        if not found:
            yield f"there is no {name} to choose"
        for one in found:
            wanted = {"label": label, "multi": True, "allValue": ".+"}
            if {key: one.get(key) for key in wanted} != wanted or one["datasource"]["uid"] not in SOURCES:
                yield f"{name} is not chosen as it should be: {one}"

    return rule


def template_label_promql(board: Board) -> Iterator[str]:
    for one in variables(board, "query"):
        query = one["query"]["query"]
        asked = re.fullmatch(r"label_values\((.+), *(\w+)\)", query)
        if asked is None:
            yield f"{one['name']} is not chosen from label_values: {query}"
            continue
        try:
            parsed(asked[1])
        except ValueError as error:
            yield f"{one['name']}: {error}"


def template_on_time_change_reload(board: Board) -> Iterator[str]:
    for one in variables(board, "query"):
        if one["refresh"] != 2:
            yield f"{one['name']} is not asked anew when the time changes"


def panel_datasource(board: Board) -> Iterator[str]:
    for panel in board["panels"]:
        for one in (panel, *panel["targets"]):
            if one["datasource"]["uid"] not in SOURCES:
                yield f"{panel['title']} has a data source of its own"


def panel_title_description(board: Board) -> Iterator[str]:
    for panel in board["panels"]:
        if not panel["title"] or not panel.get("description"):
            yield f"panel {panel['id']} has no title or no description"


def panel_units(board: Board) -> Iterator[str]:
    for panel in board["panels"]:
        if panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
            yield f"{panel['title']} has no unit"


def panel_no_targets(board: Board) -> Iterator[str]:
    for panel in board["panels"]:
        if not panel["targets"]:
            yield f"{panel['title']} asks nothing"


def target_promql(board: Board) -> Iterator[str]:
    for panel, target in targets(board):
        try:
            parsed(target["expr"])
        except ValueError as error:
            yield f"{panel['title']}: {error}"


def target_rate_interval(board: Board) -> Iterator[str]:
    for title, _, above in readable(board):
        calls = [one for one in above if isinstance(one, promql.Call) and one.func.name in RATES]
        if (
            calls
            and isinstance(above[-1], promql.MatrixSelector)
            and str(above[-1].range.total_seconds()) != INTERVAL[:-1] + ".0"
        ):
            yield f"{title}: a rate is over $__rate_interval"


def matched(label: str) -> Rule:
    def rule(board: Board) -> Iterator[str]:
        for title, selector, _ in readable(board):
            chosen = [(str(one.op), one.value) for one in selector.matchers.matchers if one.name == label]
            if ("MatchOp.Re", f"${label}") not in chosen:
                yield f"{title}: {selector.name} is not chosen by {label}"

    return rule


def target_counter_agg(board: Board) -> Iterator[str]:
    for title, selector, above in readable(board):
        if not selector.name.endswith("_total"):
            continue
        within = (
            isinstance(above[-1], promql.MatrixSelector) and isinstance(above[-2], promql.Call)
            if len(above) > 1
            else False
        )
        if not within or above[-2].func.name not in GROWTHS:
            yield f"{title}: {selector.name} begins anew with its process, so ask its growth"


def uneditable_dashboard(board: Board) -> Iterator[str]:
    if board["editable"]:
        yield "it can be edited, and loses that when it is provisioned again"


def chosen_by_all(board: Board) -> Iterator[str]:
    for title, selector, _ in readable(board):
        names = {one.name for one in selector.matchers.matchers}
        if missing := (SCRAPE if selector.name == "up" else CHOICES) - names:
            yield f"{title}: {selector.name} is not chosen by {sorted(missing)}"


def says_what_it_is_for(board: Board) -> Iterator[str]:
    if not board.get("description", "").endswith("."):
        yield "nobody says what the dashboard is for"


def says_what_to_do(board: Board) -> Iterator[str]:
    for panel in board["panels"]:
        shown, _, remedy = panel.get("description", "").partition("\n\n")
        if not (shown.endswith(".") and remedy.startswith("If ") and ": " in remedy and remedy.endswith(".")):
            yield f"{panel['title']} does not say what to do when it looks bad"


def range_in_tiles_alone(board: Board) -> Iterator[str]:
    for panel, target in targets(board):
        if "$__range" in target["expr"] and panel["type"] not in TILES:
            yield f"{panel['title']}: a line over all that is shown is flat"


def tiles_show_now(board: Board) -> Iterator[str]:
    for panel, target in targets(board):
        if (panel["type"] in TILES) != target["instant"]:
            yield f"{panel['title']}: a tile asks what is now, and a line what was"


def tiles_first(board: Board) -> Iterator[str]:
    first = [panel for panel in board["panels"] if panel["gridPos"]["y"] == 0]
    if {panel["type"] for panel in first} != {"stat"}:
        yield "the first row is not of tiles"


RULES: dict[str, Rule] = {
    "template-datasource-rule": template_datasource,
    "template-job-rule": choice("job", "Job"),
    "template-instance-rule": choice("instance", "Instance"),
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
    "target-promql-rule": target_promql,
    "target-rate-interval-rule": target_rate_interval,
    "target-job-rule": matched("job"),
    "target-instance-rule": matched("instance"),
    "target-counter-agg-rule": target_counter_agg,
    "uneditable-dashboard": uneditable_dashboard,
    "chosen by all": chosen_by_all,
    "says what it is for": says_what_it_is_for,
    "says what to do": says_what_to_do,
    "range in tiles alone": range_in_tiles_alone,
    "tiles show now": tiles_show_now,
    "tiles first": tiles_first,
}
