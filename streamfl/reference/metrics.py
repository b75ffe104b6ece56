"""The metrics on the pages, from what role kinds and a worker declare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.measurement import Metric, declared
from streamfl.contract.system import System, load
from streamfl.monitoring.pages import table
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.metrics import EVERY_WORKER

__all__ = ["metrics_section", "role_metrics", "worker_metrics"]

HEADING = ("metric", "kind", "labels", "meaning")


def role_metrics(system: System) -> dict[str, dict[str, Metric]]:
    """The metrics of each role of a system, by role kind and name."""
    kinds: Mapping[str, RoleKind[RoleSettings]] = load(system.roles)
    return {name: _by_name(kinds[name].metrics) for name in system.kinds}


def worker_metrics() -> dict[str, Metric]:
    """The metrics of a worker of any role, by name."""
    return _by_name(EVERY_WORKER)


def metrics_section(system: System | None) -> str:
    """The metrics of a system by role, or no text if its roles declare none. None: those of every worker."""
    if system is None:
        return _table(worker_metrics())
    return "\n\n".join(
        f"### Metrics of {kind}\n\n{_table(metrics)}"
        for kind, metrics in role_metrics(system).items()
        if metrics
    )


def _by_name(groups: Iterable[type]) -> dict[str, Metric]:
    return {str(one): one for one in declared(*groups)}


def _table(found: Mapping[str, Metric]) -> str:
    rows = [
        (f"`{name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help)
        for name, one in found.items()
    ]
    return table(HEADING, rows)
