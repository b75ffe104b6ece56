"""A member's partitions and positions, in one way for every client library."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from streamfl.runtime.bus import Polled, Step, TopicPartition
from streamfl_connectors.positions import Beginnings, Positions
from streamfl_connectors.reading import Logs
from streamfl_connectors.silence import Silence

__all__ = ["GroupMember"]

# Shorter than any session that a broker allows by default. After it the group may have gone on without this
# member.
STANDSTILL_SECONDS = 5.0


class GroupMember:
    """What every membership in a consumer group knows, and how it reports changes.

    logs: asked whether a partition has records although none come.
    decision_seconds: how long a transaction may stay undecided.
    """

    def __init__(self, logs: Logs, decision_seconds: float) -> None:
        self.positions = Positions()
        self.beginnings = Beginnings(decision_seconds)
        # Partition numbers: those reported to the caller, and those revoked since the last poll.
        self.reported: set[int] = set()
        self._lost: set[int] = set()
        self._paused: set[TopicPartition] = set()
        # The group's metadata of which the cluster accepts offsets; None: of no generation.
        self.group: Any = None
        self._silence = Silence(logs)
        self._stood_still = False
        self._went_on = time.monotonic()

    def went_on(self) -> None:
        """Note whether the worker stood still. A process that was stopped learns it only by the clock."""
        now = time.monotonic()
        self._stood_still = self._stood_still or now - self._went_on > STANDSTILL_SECONDS
        self._went_on = now

    def make_sure(self, commit: Callable[[Mapping[TopicPartition, int]], None]) -> None:
        """Before something is written without a transaction: if the worker stood still, have ``commit``
        commit an offset that changes nothing. The cluster refuses it if the group has gone on without this
        member; it would not refuse the records."""
        self.went_on()
        if self._stood_still and (known := self.fence(Step())):
            commit(known)
        self._stood_still = False

    def may_commit(self, places: Iterable[TopicPartition]) -> bool:
        """Whether the member may commit offsets of these partitions, as far as it knows."""
        return self.group is not None and {partition for _, partition in places} <= self.reported

    def fence(self, step: Step) -> dict[TopicPartition, int]:
        """Offsets that change nothing, by which the cluster checks that this is still a member; see
        :meth:`Positions.fence`."""
        return {} if self.group is None else self.positions.fence(step, self.reported)

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Bring no records of exactly these partitions until the next call."""
        self._paused = set(places)
        self._silence.forget(self._paused)

    def _report(self, owned: set[int], polled: Polled) -> tuple[set[int], set[int]]:
        """Report assigned and revoked partitions to the caller, and forget the positions of both. Returns the
        numbers that are gone, and those that were added.

        owned: the numbers that the member has.
        """
        # What is lost meanwhile is reported by the next poll.
        lost = set(self._lost)
        self._lost -= lost
        gone = {p for p in self.reported if p in lost or p not in owned}
        added = owned - (self.reported - gone)
        if gone or added:
            polled.revoked = sorted({*polled.revoked, *gone})
            polled.assigned = sorted(added)
            kept = self.reported - gone
            polled.records = [record for record in polled.records if record.partition in kept]
            polled.epochs = {place: epoch for place, epoch in polled.epochs.items() if place[1] in kept}
            self.reported = owned
            self.positions.keep(owned - added)
        return gone, added
