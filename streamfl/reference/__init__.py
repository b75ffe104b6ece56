"""What is written from the code: a page of each system and one of every worker, dashboards, and alert rules.

``python -m streamfl.reference`` writes them. A test compares the repository's files with what would be
written.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.contract.system import System
from streamfl.monitoring.files import alert_files, dashboards_of
from streamfl.monitoring.grafana import to_json
from streamfl.monitoring.pages import METRICS, REASONS, SETTINGS, STATE
from streamfl.reference.metrics import metrics_section
from streamfl.reference.reasons import reasons_section
from streamfl.reference.settings import settings_section
from streamfl.reference.state import state_section

__all__ = ["pages"]

PAGES, BOARDS = "docs/reference", "dashboards"
NOTE = "Written from the code by `make reference`: a change belongs there."


def pages(systems: Iterable[System]) -> dict[str, str]:
    """Maps each file's path in a repository to its text: the files about these systems and about every
    worker."""
    systems = list(systems)
    written = alert_files(systems, NOTE, f"{PAGES}/", _sections)
    written |= {board.filename: to_json(board) for board in dashboards_of(systems)}
    return {f"{PAGES if name.endswith('.md') else BOARDS}/{name}": text for name, text in written.items()}


def _sections(system: System | None) -> dict[str, str]:
    of_system = {SETTINGS: settings_section(system), STATE: state_section(system)} if system else {}
    return of_system | {METRICS: metrics_section(system), REASONS: reasons_section(system)}
