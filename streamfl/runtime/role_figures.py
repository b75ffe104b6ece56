"""A role's figures, for threads beside the worker's loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from streamfl.contract.measurement import Measurement
from streamfl.contract.role import Role

__all__ = ["RoleFigures"]

# The longest wait for a step. The thread that waits for the figures of a scrape answers probes, too.
WAIT_SECONDS = 1.0


class RoleFigures:
    """What a role measures, read between two uses of it.

    lock: held while the role is used.
    clock: the role's time.
    """

    def __init__(self, role: Role, lock: threading.Lock, clock: Callable[[], float]) -> None:
        self._role, self._lock, self._clock = role, lock, clock
        self._latest: Sequence[Measurement] = ()

    def measure(self) -> Sequence[Measurement]:
        """The figures; the latest ones if the role is in use for long, as while its state is restored."""
        if self._lock.acquire(timeout=WAIT_SECONDS):
            try:
                now = self._clock()
                self._latest = [one.at(now) for one in self._role.measure()]
            finally:
                self._lock.release()
        return self._latest
