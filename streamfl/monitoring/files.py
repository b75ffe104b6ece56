"""The files that a federation is watched with: dashboards for Grafana, rules for Prometheus, and pages that say what to do.

The text of our own dashboards lies in this package, so that nobody who runs streamfl needs Grafana's builders.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from streamfl.monitoring.alerts import WORKER_ALERTS, Alert, rules, runbook
from streamfl.monitoring.dashboard import Dashboard
from streamfl.monitoring.service_health import DASHBOARD as HEALTH
from streamfl.role import ConfigurationError
from streamfl.system import System, load

__all__ = ["alert_files", "dashboard_text", "dashboards_of"]

PACKAGE = Path(__file__).parents[1]
BUILDERS = "grafana_foundation_sdk"


def dashboards_of(systems: Iterable[System]) -> list[Dashboard]:
    """That of no system, and all that these systems have; ConfigurationError where two have one name."""
    found = [HEALTH, *(board for system in systems if system.dashboards for board in load(system.dashboards))]
    for names in ([board.name for board in found], [board.uid for board in found]):
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigurationError(f"two dashboards have the name or uid {', '.join(sorted(twice))}: rename one of them")
    return found


def dashboard_text(board: Dashboard) -> str:
    """What Grafana reads: as it was shipped, or else built; ConfigurationError says what to install for that."""
    for folder in (PACKAGE / "dashboards", PACKAGE.parent / "dashboards"):
        # A package that is called as one of ours has another uid.
        if (path := folder / board.filename).is_file() and f'"uid": "{board.uid}"' in (text := path.read_text(encoding="utf-8")):
            return text
    try:
        from streamfl.monitoring.grafana import to_json
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != BUILDERS:
            raise
        raise ConfigurationError(
            f"the dashboard {board.name} is not shipped with streamfl, and what builds it is not installed: "
            "pip install 'streamfl[dashboards]'"
        ) from None
    return to_json(board)


def alert_files(systems: Iterable[System], note: str, pages: str = "") -> dict[str, str]:
    """Rules of every worker and of these systems, and the page of each, by file name.

    note: what stands above a page.
    pages: where the rules say that the pages are: a folder or its URL, with a slash at the end, or a URL with ``{page}`` in place
        of a page's name without its ending.
    """
    groups: list[tuple[str, str, tuple[Alert, ...]]] = [("", "every worker", WORKER_ALERTS)]
    groups += [(f"-{system.name}", system.name, load(system.alerts)) for system in systems if system.alerts]
    written = {}
    for suffix, whose, alerts in groups:
        page = f"runbook{suffix}.md"
        place = pages.replace("{page}", f"runbook{suffix}") if "{page}" in pages else pages + page
        written[f"alerts{suffix}.yaml"] = rules(f"streamfl{suffix}", place, alerts)
        written[page] = runbook(whose, note, alerts)
    return written
