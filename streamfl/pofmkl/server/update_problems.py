"""Counts what happens to the updates of a server for the metrics, and reports the first of each kind to the operator."""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.contract.role import Measurement
from streamfl.pofmkl import SYSTEM
from streamfl.roles.notices import Notices

__all__ = ["UpdateProblems"]


class UpdateProblems:
    """Counts of all shards of a server since it was created. They are not stored.

    staleness: versions between the model of the last update and the newest.
    """

    def __init__(self) -> None:
        self.applied = self.superseded = self.timed_out_rounds = self.expired_clients = self.mended = self.bounded = 0
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
        yield Measurement("staleness", "gauge", "Versions between an update's model and the newest, last update", self.staleness)
        for reason, count in self._ignored.items():
            yield Measurement("ignored_updates", "counter", "Updates without effect", count, (("reason", reason),), True)
        text = "Updates with a number below one that came just before: two processes send for one client"
        yield Measurement("superseded_updates", "counter", text, self.superseded)
        text = (
            "Times that parameters grew beyond what clients accept, or a kernel's updates beyond a client's maximum, and were "
            "shortened"
        )
        yield Measurement("bounded_parameters", "counter", text, self.bounded)
        text = "Times that the model topic held records that the server had not published, and was repaired"
        yield Measurement("model_repairs", "counter", text, self.mended)
        timed_out = self.timed_out_rounds
        yield Measurement("timed_out_rounds", "counter", "Rounds closed without every client", timed_out, (), True)
        yield Measurement("expired_clients", "counter", "Clients forgotten to make room", self.expired_clients)
