"""What the worker's metrics and log say of a step."""

from __future__ import annotations

from streamfl.runtime.health import Health
from streamfl.runtime.journal import Journal
from streamfl.runtime.metrics import Metrics
from streamfl.runtime.pending_step import PendingStep

__all__ = ["StepCounts"]


class StepCounts:
    """Counts what a step took, refused and wrote."""

    def __init__(self, metrics: Metrics, journal: Journal, health: Health) -> None:
        self._metrics = metrics
        self._journal = journal
        self._health = health

    def committed(self, pending: PendingStep) -> None:
        """Count a step that was committed, or had nothing to commit."""
        self._metrics.taken(pending.records, pending.repeated, pending.passed_over)
        for record, error in pending.dead_letters:
            self._metrics.refused(error.reason, of_table=False)
            self._journal.refused(record, error, dead_letter=True)
        for moved in pending.moved:
            self._journal.moved(moved)
            self._metrics.moved(moved)
        self.tables(pending)
        if pending.step:
            self._health.committed()
            self._metrics.committed(pending.output_bytes, pending.changelog_bytes)

    def tables(self, pending: PendingStep) -> None:
        """Count the refused table records.

        Apart: after a refused step its input records are read again, and its table records are not.
        """
        for record, error in pending.table_rejections:
            self._metrics.refused(error.reason, of_table=True)
            self._journal.refused(record, error, dead_letter=False)
