"""The wait for the work that a role asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from streamfl.contract.role import Received, Work
from streamfl.runtime.health import Health
from streamfl.runtime.metrics import Metrics, WorkerMetrics
from streamfl.runtime.pool import Pool, WorkEnded

__all__ = ["GivenUp", "RoleWork"]

# Between two polls while the role waits for work: they keep the worker in its group.
BEAT_SECONDS = 0.1
# The longest time that a signal to a process group takes to reach all its processes.
SIGNAL_SECONDS = 0.5


class GivenUp(Exception):
    """The worker gives up the work that its role waits for: a partition was revoked meanwhile, or the worker
    has to stop."""


class RoleWork:
    """Has a role's work done by a pool."""

    def __init__(self, pool: Pool, health: Health, metrics: Metrics) -> None:
        self._pool = pool
        self._health = health
        self._metrics = metrics

    def results(
        self, work: Sequence[Work], beat: Callable[[], None], stop: threading.Event
    ) -> list[Received]:
        """The results, in the order of the work. Meanwhile the worker reads no records and stays in its
        group.

        beat: called while the work goes on; whatever it raises ends the work. GivenUp if the work ends
        because the worker has to stop.
        """
        try:
            self._pool.start(work)
            done = 0
            while not self._pool.wait(BEAT_SECONDS):
                beat()
                if self._pool.done > done:
                    done = self._pool.done
                    self._health.progressed()
            for one, seconds in zip(work, self._pool.seconds(), strict=True):
                self._metrics.seconds(
                    WorkerMetrics.work_seconds, getattr(one.function, "__name__", "")
                ).observe(seconds)
            results = self._pool.results()
            return [
                one.received(number, result)
                for number, (one, result) in enumerate(zip(work, results, strict=True))
            ]
        except BaseException as error:
            self._pool.give_up()
            # The signal that ended a process of the pool may be meant to stop the worker, and reach the
            # worker a moment later.
            if isinstance(error, WorkEnded) and stop.wait(SIGNAL_SECONDS):
                raise GivenUp from None
            raise
