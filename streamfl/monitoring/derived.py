"""The dashboard and the alerts of a system that describes none: they are made from the metrics that its roles
declare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamfl.contract.measurement import Counted, Histogram, Metric, declared
from streamfl.contract.system import System, load
from streamfl.monitoring.alerts import Alert, alert_when_stopped
from streamfl.monitoring.dashboard import Dashboard, Panel, Query, rate, series
from streamfl.monitoring.worker_panels import by_worker, lag_tile, refused_tile, worker_panels, workers_tile
from streamfl.roles.role_kind import RoleKind

__all__ = ["alerts_of", "dashboards_of_system"]

IN_A_ROW = 3
UNUSUAL = (
    "If it is not as usual: look at the lag, at /readyz of the workers, at their log, and at the records "
    "that they read."
)


def dashboards_of_system(system: System) -> Sequence[Dashboard]:
    """The system's dashboards: its own, or else one with a panel for each declared metric."""
    if system.dashboards is not None:
        own: Sequence[Dashboard] = load(system.dashboards)
        return own
    panels = [_panel(metric) for metric in _each_once(_metrics(system))]
    rows = [tuple(panels[begin : begin + IN_A_ROW]) for begin in range(0, len(panels), IN_A_ROW)]
    tiles = workers_tile(width=8), refused_tile(width=8), lag_tile(width=8)
    about = f"Whether the workers of {system.name} are up, and all that its roles measure."
    return [
        Dashboard(system.name, system.name, system.name, system.name, (tiles, *rows, worker_panels()), about)
    ]


def alerts_of(system: System) -> Sequence[Alert]:
    """The system's alerts: its own, or else one for each headline counter, which tells that it has
    stopped."""
    if system.alerts is not None:
        own: Sequence[Alert] = load(system.alerts)
        return own
    headlines = [one for one in _metrics(system) if isinstance(one, Counted) and one.headline]
    return [_alert(system, one) for one in _each_once(headlines)]


def _metrics(system: System) -> list[Metric]:
    kinds: Mapping[str, RoleKind[Any]] = load(system.roles)
    return [one for kind in system.kinds for one in declared(*kinds[kind].metrics)]


def _each_once(metrics: Sequence[Metric]) -> list[Metric]:
    """Two roles may have a metric of one name."""
    return [*{one.name: one for one in metrics}.values()]


def _panel(metric: Metric) -> Panel:
    title, label = metric.name.replace("_", " ").capitalize(), next(iter(metric.labels), "")
    if isinstance(metric, Histogram):
        total, count = rate(metric.part("sum")), rate(metric.part("count"))
        mean = f"sum by (group) ({total}) / (sum by (group) ({count}) > 0)"
        return Panel(
            title, f"{_sentence(metric)} The mean.", "short", (Query(mean, "{{group}}"),), remedy=UNUSUAL
        )
    if metric.kind == "counter":
        query = by_worker(rate(metric), label=label)
        return Panel(f"{title} a second", _sentence(metric), "ops", (query,), remedy=UNUSUAL)
    query = by_worker(series(metric), label=label, of="max")
    return Panel(title, _sentence(metric), "short", (query,), minimum=None, remedy=UNUSUAL)


def _alert(system: System, counter: Metric) -> Alert:
    words = [*system.name.replace("-", "_").split("_"), *counter.name.split("_"), "stopped"]
    name = "".join(word.capitalize() for word in words)
    return alert_when_stopped(
        name,
        counter,
        [],
        "warning",
        f"{{{{ $labels.group }}}} counts nothing any more: {counter.name}.",
        f"{_sentence(counter)} It grew until now. The alert fires after three times the usual "
        "interval: 15 minutes, three hours or three days.",
        "Check whether records still come, and what /readyz and the log of the workers say. If the records "
        "have ended as planned, nothing is wrong: stop the workers. The alert stays while they run and the "
        "counter stands.",
    )


def _sentence(metric: Metric) -> str:
    return f"{metric.help.rstrip('.')}."
