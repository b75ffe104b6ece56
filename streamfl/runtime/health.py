"""Whether a worker's loop goes round, and whether the worker serves, for HTTP and for a watchdog.

``/healthz`` answers 503 if the loop has not completed a round for the stated time. ``/readyz`` answers 503 if
the worker does not serve at present. Both list the reasons, one a line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from streamfl.contract.measurement import Measurement, gauge

__all__ = ["REASONS", "Health", "HealthMetrics", "Watchdog"]

# The reasons why a worker may not serve, with their meanings; they label a metric.
REASONS = {
    "starting": "the worker loop has not completed a round yet",
    "bus": "the cluster does not answer, or a partition brings nothing although it has records",
    "topics": "a topic that it reads or writes is gone, or was deleted and made again. If it does not come "
    "back within bus.connect_timeout_seconds, or is another one, the worker ends with exit code 2",
    "partitions": "the worker has no partition, although there are not more workers than partitions",
    "restoring": "a partition's state is being restored from its changelog",
    "commits": "records that were read have waited 30 seconds for their commit (less if "
    "bus.stall_timeout_seconds is less), or the last three commits or more were refused",
    "role": "the role cannot work and says why, for example because updates go out and no model comes",
    "transactions": "a transaction of another producer has been open for more than two minutes: nothing "
    "behind it can be read",
    "records": "a schema registry does not answer, so records of a partition cannot be read, or predictions "
    "cannot be written; records wait in their topic",
    "keys": "the key file or the members' file has changed and cannot be used; what was read before is used",
    "loop": "the worker loop has not completed a round for 30 seconds (less if bus.stall_timeout_seconds is "
    "less)",
}
# This many refused commits in a row are trouble. A rebalance refuses only one or two.
REFUSALS = 3
CALM_SECONDS = 60.0
# The worker is not ready after so long without a round, or with records that wait for their commit.
PATIENCE_SECONDS = 30.0
# The longest time without an answer of the cluster. The worker asks it every few seconds.
SILENT_SECONDS = 25.0


class HealthMetrics:
    """Metrics of whether a worker serves."""

    ready = gauge("1 while the worker serves.", headline=True)
    standby = gauge("1 while there are more workers than partitions and this one is a standby.")
    not_ready = gauge("1 while the worker does not serve for this reason.", reason=tuple(REASONS))


class Health:
    """The state that the loop reports. Any thread may read it.

    stall_seconds: seconds without a round after which the worker is not alive.
    clock: seconds that never run backwards.
    standby: why the worker has no partition although nothing is wrong; None: it is not on standby.
    backlog: what the role works off while the worker serves; None: nothing.

    >>> seconds = iter([0.0, 5.0, 500.0])
    >>> health = Health(stall_seconds=120, clock=lambda: next(seconds))
    >>> health.alive, health.alive
    (True, False)
    """

    def __init__(
        self,
        stall_seconds: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stall_seconds = stall_seconds
        self.patience_seconds = min(PATIENCE_SECONDS, stall_seconds)
        self.standby: str | None = None
        self.backlog: str | None = None
        self._clock = clock
        self._last_round = clock()
        self._noted: dict[str, str] = {"starting": REASONS["starting"]}
        self._stuck_since: float | None = None
        self._refusals = 0
        self._last_refusal = 0.0
        # When the cluster last answered a question, None if nobody asks; and the error of the last question.
        self._heard: float | None = None
        self._unheard = ""

    def heard(self) -> None:
        """The cluster answered one of the questions that it is asked every few seconds, independent of the
        loop."""
        self._unheard, self._heard = "", self._clock()

    def unheard(self, cause: str) -> None:
        """The cluster did not answer such a question."""
        self._unheard = cause

    def begin(self) -> None:
        """Records have been taken and wait for their commit."""
        self._stuck_since = self._clock()

    def progressed(self) -> None:
        """A part of a step that takes long is done: the loop does not hang."""
        self._last_round = self._stuck_since = self._clock()

    def completed(self) -> None:
        """A round is over and the cluster answered."""
        self._last_round = self._clock()
        self._stuck_since = None
        self.note("starting", None)
        self.note("bus", None)

    def went_round(self) -> None:
        """The cluster answered while the role's work is still going on."""
        self._last_round = self._clock()

    def committed(self) -> None:
        """A step was committed."""
        self._refusals = 0

    def refused(self) -> None:
        """A step was refused."""
        self._refusals += 1
        self._last_refusal = self._clock()

    def failed(self, text: str) -> None:
        """A round is over, but nothing could be done."""
        self._stuck_since = None
        self.note("bus", text)

    def note(self, reason: str, text: str | None) -> None:
        """From now on the worker does not serve for this reason.

        reason: one of ``REASONS``.
        text: what is wrong; None: the reason is over.
        """
        # The dict is replaced as a whole: other threads may be reading it.
        noted = {**self._noted, reason: text or ""}
        self._noted = {name: told for name, told in noted.items() if told}

    @property
    def alive(self) -> bool:
        """A round was completed within ``stall_seconds``."""
        return self._clock() - self._last_round <= self.stall_seconds

    @property
    def reasons(self) -> dict[str, str]:
        """Why the worker does not serve at present, by reason; empty if it does."""
        found, now, since = dict(self._noted), self._clock(), self._stuck_since
        if self._heard is not None and now - self._heard > SILENT_SECONDS:
            # All other reasons follow from this one, or cannot be known.
            return {"bus": self._silence(now - self._heard)}
        if self.standby is not None:
            found.pop("partitions", None)
        if "restoring" in found:
            return found
        if since is not None and now - since > self.patience_seconds:
            found["commits"] = f"records have waited for a commit for {now - since:.0f} s"
        elif self._refusals >= REFUSALS and now - self._last_refusal <= CALM_SECONDS:
            found["commits"] = f"the last {self._refusals} commits were refused: the log says why"
        elif now - self._last_round > self.patience_seconds and not found:
            found["loop"] = f"the worker loop has completed no round for {now - self._last_round:.0f} s"
        return found

    def _silence(self, seconds: float) -> str:
        """Judged by elapsed time, not by a failed call: a call to a broker that hangs does not return for a
        long time."""
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        cause = f": {self._unheard}" if self._unheard else ""
        return f"no broker answers since {since:%Y-%m-%dT%H:%M:%SZ}, for {seconds:.0f} s{cause}"

    @property
    def trouble(self) -> str | None:
        """All reasons why the worker does not serve at present; None if it does."""
        return "\n".join(f"{reason}: {text}" for reason, text in self.reasons.items()) or None

    @property
    def without_partitions(self) -> bool:
        """The worker has no partition, for whatever reason."""
        return "partitions" in self._noted

    @property
    def stuck(self) -> bool:
        """Records have waited for their commit for longer than ``stall_seconds``: some call does not
        return."""
        since = self._stuck_since
        return since is not None and self._clock() - since > self.stall_seconds

    def measure(self) -> Iterator[Measurement]:
        """Whether the worker serves, and why not."""
        reasons = self.reasons
        yield HealthMetrics.ready(not reasons)
        yield HealthMetrics.standby(self.standby is not None)
        for reason in REASONS:
            yield HealthMetrics.not_ready(reason in reasons, reason)


class Watchdog:
    """Calls ``on_stall`` once, from its own thread, when the loop is stuck, so that a client library cannot
    hang for ever."""

    def __init__(self, health: Health, on_stall: Callable[[], None], every_seconds: float = 1.0) -> None:
        self._health = health
        self._on_stall = on_stall
        self._every_seconds = every_seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(self._every_seconds):
            if self._health.stuck:
                self._on_stall()
                return
