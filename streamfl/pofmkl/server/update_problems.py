"""Counts what happens to the updates of a server for the metrics, and reports the first of each kind to the
operator."""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.contract.role import Measurement
from streamfl.pofmkl import SYSTEM
from streamfl.pofmkl.metrics import ServerMetrics
from streamfl.roles.notices import Notices

__all__ = ["UpdateProblems"]


class UpdateProblems:
    """Counts of all shards of a server since it was created. They are not stored.

    staleness: versions between the model of the last update and the newest.
    """

    def __init__(self) -> None:
        self.applied = self.superseded = self.timed_out_rounds = self.expired_clients = self.mended = (
            self.bounded
        ) = 0
        self.staleness = 0.0
        self.notices = Notices(SYSTEM.notices)
        self._ignored = dict.fromkeys(("late", "duplicate", "empty"), 0)

    def say(self, reason: str, text: str | None = None) -> None:
        self.notices.say(reason, text)

    def ignore(self, reason: str, text: str) -> None:
        """Count an update that changed nothing."""
        self._ignored[reason] += 1
        self.say(f"{reason}_update", text)

    def measure(self) -> Iterable[Measurement]:
        yield ServerMetrics.staleness(self.staleness)
        for reason, count in self._ignored.items():
            yield ServerMetrics.ignored_updates(count, reason)
        yield ServerMetrics.superseded_updates(self.superseded)
        yield ServerMetrics.bounded_parameters(self.bounded)
        yield ServerMetrics.model_repairs(self.mended)
        yield ServerMetrics.timed_out_rounds(self.timed_out_rounds)
        yield ServerMetrics.expired_clients(self.expired_clients)
