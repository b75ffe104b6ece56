"""When a role gets a tick: at its ``wake_at``, after partitions were opened, and after the clock was set
back.

No tick comes while records that lay in a partition when it was opened are unread. So a role that was away
reads what came meanwhile before time passes for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from streamfl.contract.role import Role
from streamfl.runtime.bus import Session, TopicPartition
from streamfl.runtime.log import logger
from streamfl.runtime.tasks import Tasks

__all__ = ["Ticks"]

log = logger(__name__)


class Ticks:
    """Decides when time passes for the role.

    paused: gives the inputs that the role does not want to be read now.
    patience_seconds: how long a partition from which nothing comes may hold ticks back.
    monotonic: the clock for this.
    """

    def __init__(
        self,
        role: Role,
        tasks: Tasks,
        paused: Callable[[], Collection[TopicPartition]],
        patience_seconds: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._role = role
        self._tasks = tasks
        self._paused = paused
        self._patience_seconds = patience_seconds
        self._monotonic = monotonic
        # Inputs that had unread records when they were opened, with the end of these.
        self._draining: dict[TopicPartition, float] = {}
        # How far these inputs were read, and since when they were read no further.
        self._drained: dict[TopicPartition, int] = {}
        self._drained_since = 0.0
        self._just_opened = False
        # The latest time that the role was given.
        self._latest = -math.inf

    def opened(self, ends: Mapping[TopicPartition, float]) -> None:
        """A partition was opened. ends: the end offsets of its inputs."""
        self._draining.update(ends)
        self._just_opened = True

    def dropped(self, partition: int) -> None:
        self._draining = {place: end for place, end in self._draining.items() if place[1] != partition}

    def passed(self, now: float) -> None:
        """The role was given messages at this time."""
        self._latest = max(self._latest, now)

    def ticked(self, now: float) -> None:
        """The role was given a tick at this time."""
        self._just_opened = False
        self._latest = now

    def until(self, timeout: float, now: float) -> float:
        """Seconds to wait for records: ``timeout``, or less if a tick falls due before."""
        wake_at = self._role.wake_at
        return timeout if wake_at is None or self._are_withheld() else max(0.0, min(timeout, wake_at - now))

    def is_due(self, session: Session, now: float) -> bool:
        wake_at = self._role.wake_at
        asked_for = wake_at is not None and wake_at <= now
        # If the clock was set back, the role would wait until the times that it noted come again.
        if not (asked_for or self._just_opened or now < self._latest):
            return False
        if self._are_withheld():
            lag = session.lag()
            # If a transaction's marker is last, no record comes to move the position to the end; then the lag
            # is 0.
            unread = {place: end for place, end in self._draining.items() if self._read(place) < end}
            self._draining = {place: end for place, end in unread.items() if lag.get(place) != 0}
            self._wait_no_longer()
        return not self._are_withheld()

    def _wait_no_longer(self) -> None:
        """Give up partitions that cannot be read any more, so that they do not stop time for the worker's
        other partitions."""
        read = {place: self._read(place) for place in self._draining}
        now = self._monotonic()
        if read != self._drained:
            self._drained, self._drained_since = read, now
        elif read and now - self._drained_since >= self._patience_seconds:
            places = ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(self._draining))
            log.warning(
                "inputs cannot be read to the end that they had at the start: timeouts go on without them",
                inputs=places,
            )
            self._draining = {}

    def _are_withheld(self) -> bool:
        return bool(self._draining) and not self._draining.keys() <= set(self._paused())

    def _read(self, place: TopicPartition) -> int:
        return self._tasks.positions.get(place, 0)
