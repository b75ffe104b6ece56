"""A worker pool in virtual time. The seed decides how long work takes, and the worker may crash meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from streamfl.contract.role import Work
from streamfl.testing.faults.cluster import FaultyBus

__all__ = ["SlowPool"]

# Mean virtual seconds of a piece of work: during faults, and without them.
TROUBLED_SECONDS, CALM_SECONDS = 0.2, 0.01


class SlowPool:
    """Runs one piece of work after another."""

    def __init__(self, bus: FaultyBus) -> None:
        self.done = 0
        self._bus = bus
        self._work: Sequence[Work] = ()
        self._ends: list[float] = []
        self._taken: list[float] = []

    def start(self, work: Sequence[Work]) -> None:
        fault_draws, now = self._bus.fault_draws, self._bus.scheduler.now
        self.done, self._work, self._ends = 0, work, []
        self._taken = [
            float(fault_draws.draws.exponential(TROUBLED_SECONDS)) if fault_draws.faulty else CALM_SECONDS
            for _ in work
        ]
        for taken in self._taken:
            now += taken
            self._ends.append(now)
        self._bus.history.note(
            self._bus.scheduler.now, self._bus.who, f"begins {len(work)} pieces of work, until {now:.3f}"
        )

    def wait(self, seconds: float) -> bool:
        scheduler = self._bus.scheduler
        scheduler.sleep(min(seconds, self._ends[-1] - scheduler.now))
        if self._bus.fault_draws.happens(self._bus.rates.crash):
            self._bus.crash("during work")
        self.done = sum(end <= scheduler.now for end in self._ends)
        return self.done == len(self._work)

    def results(self) -> Sequence[bytes]:
        return [work.function(work.content) for work in self._work]

    def seconds(self) -> Sequence[float]:
        return self._taken

    def give_up(self) -> None:
        if self._work and self.done < len(self._work):
            self._bus.history.note(
                self._bus.scheduler.now, self._bus.who, f"gives up work, {self.done} pieces were done"
            )
        self._work = ()

    def close(self) -> None:
        """There is nothing to release."""
