"""Pages that are written from the code: every setting and every metric of a system, its dashboard, and the alerts.

``python -m streamfl.reference`` writes them. A test compares the repository's files with what would be written.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.monitoring.files import alert_files, dashboards_of
from streamfl.monitoring.grafana import to_json
from streamfl.reference.metrics import role_metrics_page, worker_metrics_page
from streamfl.reference.settings import settings_page
from streamfl.reference.tables import NOTE
from streamfl.system import System
from streamfl.testing.proof import installed_proofs

__all__ = ["pages"]

PAGES, BOARDS = "docs/reference", "dashboards"


def pages(systems: Iterable[System]) -> dict[str, str]:
    """Maps each file's path in a repository to its text: the files about these systems and about the worker.

    A system without roles that the fuzzer can run has no page of metrics.
    """
    systems = list(systems)
    fuzzed = {name for name, proof in installed_proofs().items() if proof.fuzz}
    written = {f"{PAGES}/metrics-worker.md": worker_metrics_page()}
    for system in systems:
        written[f"{PAGES}/settings-{system.name}.md"] = settings_page(system)
        if system.name in fuzzed:
            written[f"{PAGES}/metrics-{system.name}.md"] = role_metrics_page(system)
    for name, text in alert_files(systems, NOTE, f"{PAGES}/").items():
        written[f"{PAGES if name.endswith('.md') else BOARDS}/{name}"] = text
    return written | {f"{BOARDS}/{board.filename}": to_json(board) for board in dashboards_of(systems)}
