"""The files for monitoring a federation: dashboards for Grafana, rules for Prometheus, and the pages that
rules link to.

The text of our own dashboards is part of this package, so that running streamfl does not need Grafana's
builders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import System
from streamfl.monitoring.alerts import WORKER_ALERTS, Alert, rules, runbook
from streamfl.monitoring.dashboard import Dashboard
from streamfl.monitoring.derived import alerts_of, dashboards_of_system
from streamfl.monitoring.pages import EVERY_WORKER, RUNBOOK, page
from streamfl.monitoring.service_health import DASHBOARD as HEALTH

__all__ = ["alert_files", "dashboard_text", "dashboards_of"]

PACKAGE = Path(__file__).parents[1]
BUILDERS = "grafana_foundation_sdk"


def dashboards_of(systems: Iterable[System]) -> list[Dashboard]:
    """The dashboard of service health and those of these systems; ConfigurationError if two have the same
    name or uid."""
    found = [HEALTH, *(board for system in systems for board in dashboards_of_system(system))]
    for names in ([board.name for board in found], [board.uid for board in found]):
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigurationError(
                f"two dashboards have the name or uid {', '.join(sorted(twice))}: rename one of them"
            )
    return found


def dashboard_text(board: Dashboard) -> str:
    """The dashboard's JSON: as shipped, or else built. ConfigurationError if it cannot be built; it says what
    to install."""
    for folder in (PACKAGE / "dashboards", PACKAGE.parent / "dashboards"):
        # Another package's dashboard with the name of one of ours has another uid.
        if (path := folder / board.filename).is_file() and f'"uid": "{board.uid}"' in (
            text := path.read_text(encoding="utf-8")
        ):
            return text
    try:
        from streamfl.monitoring.grafana import to_json
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != BUILDERS:
            raise
        raise ConfigurationError(
            f"the dashboard {board.name} is not shipped with streamfl, and its builders are not installed: "
            "pip install 'streamfl[dashboards]'"
        ) from None
    return to_json(board)


def alert_files(
    systems: Iterable[System],
    note: str,
    pages: str = "",
    sections: Callable[[System | None], dict[str, str]] = lambda system: {},
) -> dict[str, str]:
    """The rules of every worker and of these systems, with the pages that they link to, by file name.

    note: who writes the pages.
    pages: the place of the pages for the rules: a folder or its URL, with a slash at the end, or a URL with
        ``{page}`` in place of a page's name without its ending.
    sections: what a system's page has before its runbook, by heading; for None, what the page of every worker
    has.
    """
    written: dict[str, str] = {}
    for system in (None, *systems):
        alerts: Sequence[Alert] = WORKER_ALERTS if system is None else alerts_of(system)
        name, suffix = (system.name, f"-{system.name}") if system else (EVERY_WORKER, "")
        if alerts:
            place = pages.replace("{page}", name) if "{page}" in pages else f"{pages}{name}.md"
            written[f"alerts{suffix}.yaml"] = rules(f"streamfl{suffix}", place, alerts)
        if found := {
            heading: text for heading, text in (sections(system) | {RUNBOOK: runbook(alerts)}).items() if text
        }:
            if f"{name}.md" in written:
                raise ConfigurationError(f"two pages have the name {name}: rename that system")
            written[f"{name}.md"] = page(system, note, found)
    return written
