"""Pages that are written from the code: every setting and every metric of a system, its dashboard, and the alerts.

``python -m streamfl.reference`` writes them. A test compares what lies in the repository with what would be written.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.alerts import WORKER_ALERTS, Alert, rules, runbook
from streamfl.dashboard import Dashboard
from streamfl.reference.metrics import role_metrics_page, worker_metrics_page
from streamfl.reference.settings import settings_page
from streamfl.reference.tables import NOTE
from streamfl.system import System, load

__all__ = ["pages"]

PAGES, BOARDS = "docs/reference", "dashboards"


def pages(systems: Iterable[System]) -> dict[str, str]:
    """The text of every file about these systems and about the worker, by its path in a repository.

    A system without roles that the fuzzer can run has no page of metrics, and one without a dashboard no file of that.
    """
    written = {f"{PAGES}/metrics-worker.md": worker_metrics_page(), **_alerts("", "every worker", WORKER_ALERTS)}
    for system in systems:
        written[f"{PAGES}/settings-{system.name}.md"] = settings_page(system)
        if system.fuzz:
            written[f"{PAGES}/metrics-{system.name}.md"] = role_metrics_page(system)
        if system.dashboard:
            described: Dashboard = load(system.dashboard)
            written[f"{BOARDS}/{described.filename}"] = described.to_json()
        if system.alerts:
            written |= _alerts(f"-{system.name}", system.name, load(system.alerts))
    return written


def _alerts(suffix: str, whose: str, alerts: tuple[Alert, ...]) -> dict[str, str]:
    page = f"{PAGES}/runbook{suffix}.md"
    return {f"{BOARDS}/alerts{suffix}.yaml": rules(f"streamfl{suffix}", page, alerts), page: runbook(whose, NOTE, alerts)}
