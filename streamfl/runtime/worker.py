"""The worker: moves messages between a bus and a role, and commits each step whole.

The loop is :meth:`Worker.step`. Everything that a step consumed, sends and remembers becomes visible together
or not at all. If it does not, the worker closes its partitions and restores them from the changelog.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import cast

from streamfl.contract.batch import Batch
from streamfl.contract.channels import Channels
from streamfl.contract.measurement import Measurement
from streamfl.contract.role import NotYetReadable, Received, Rejection, Role, Send, Work
from streamfl.runtime.backlog import Backlog
from streamfl.runtime.bus import (
    Bus,
    BusUnavailable,
    CommitRefused,
    Polled,
    Session,
    Step,
    Subscription,
    TopicPartition,
    Unreadable,
)
from streamfl.runtime.health import Health
from streamfl.runtime.inputs import Inputs
from streamfl.runtime.journal import Journal
from streamfl.runtime.lag import Lag, SessionMetrics
from streamfl.runtime.log import logger
from streamfl.runtime.metrics import Metrics, WorkerMetrics
from streamfl.runtime.open_files import check_files
from streamfl.runtime.outputs import Outputs
from streamfl.runtime.pending_step import PendingStep
from streamfl.runtime.pool import Inline, Pool
from streamfl.runtime.progress import ProgressLine
from streamfl.runtime.role_figures import RoleFigures
from streamfl.runtime.role_work import GivenUp, RoleWork
from streamfl.runtime.step_counts import StepCounts
from streamfl.runtime.tasks import Tasks
from streamfl.runtime.ticks import Ticks
from streamfl.state.state_settings import StateSettings

__all__ = ["Worker"]

RETRY_SECONDS = 1.0
NO_PARTITION = "this worker has no partition: its group is rebalancing, or other workers have all of them"

log = logger(__name__)


class Worker:
    """One role object on one session.

    clock: the ``now`` that the role gets, in seconds.
    commit_interval: seconds for which records are gathered for one commit.
    max_records: the most input records in one commit.
    restore_seconds: how long a changelog may lag behind the group's offsets before the cluster counts as
    unavailable.
    progress_seconds: between two lines of progress, 0 for none.
    monotonic, sleep: the clock and the sleep for the worker's own waiting.
    state_settings: the settings that are remembered beside the role's state.
    pool: does the role's work.
    metrics: the worker's counters. All but :meth:`measure` and ``health`` belong to one thread."""

    def __init__(
        self,
        role: Role,
        channels: Channels,
        bus: Bus,
        subscription: Subscription,
        dead_letter_topic: str,
        clock: Callable[[], float] = time.time,
        commit_interval: float = 0.1,
        max_records: int = 4000,
        restore_seconds: float = 30.0,
        stall_seconds: float = 120.0,
        progress_seconds: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        state_settings: StateSettings | None = None,
        pool: Pool | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.role = role
        self.lock = threading.Lock()
        self.health = Health(stall_seconds, monotonic)
        self.metrics = metrics or Metrics()
        self.metrics.measure = self.measure
        self.lag = Lag(bus, subscription)
        self._journal = Journal(log.warning, monotonic, refusals=self.metrics.refusals)
        self._counts = StepCounts(self.metrics, self._journal, self.health)
        self._progress = ProgressLine(progress_seconds, monotonic)
        self._channels, self._bus, self._subscription = channels, bus, subscription
        self._outputs = Outputs(channels)
        self._clock, self._commit_interval = clock, commit_interval
        self._figures = RoleFigures(role, self.lock, clock)
        self._restore_seconds = restore_seconds
        self._monotonic, self._sleep = monotonic, sleep
        self._pool: Pool = pool or Inline()
        self._work = RoleWork(self._pool, self.health, self.metrics)
        made = state_settings or StateSettings()
        waiting = (restore_seconds, monotonic, self._wait, self.health.progressed)
        self._tasks = Tasks(role, channels, bus, subscription, made, *waiting)
        self._inputs = Inputs(channels, bus, self._tasks, dead_letter_topic, monotonic)
        self._ticks = Ticks(role, self._tasks, self._paused, restore_seconds, monotonic)
        self._backlog = Backlog(role, max_records)
        self._session: Session | None = None
        self._stop = threading.Event()
        # What the next step takes: one that is done again, and what polls brought meanwhile.
        self._meanwhile = Polled()
        # What the worker waits for before it can write what its role sends, and before it restores its state.
        self._unwritten: NotYetReadable | None = None

    def run(self, stop: threading.Event) -> None:
        """Take steps until ``stop`` is set. Then finish the step, or give up the work that it waits for, and
        leave the group."""
        self._stop = stop
        try:
            while not stop.is_set():
                self.step(0.5)
                self._report()
                if self.health.trouble:
                    check_files(self._session is not None)
        finally:
            self.close()

    def step(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for records, process them, commit once. True if there was anything
        to do.

        ConfigurationError if the cluster says that a topic or a right is missing; Unreadable at a batch that
        cannot be read; WorkFailed if the role's work cannot be done.
        """
        pending, polled = None, Polled()
        try:
            session = self._join()
            polled = self._gather(session, timeout)
            if not polled and not self._ticks.is_due(session, self._clock()):
                self.health.completed()
                return False
            self.health.begin()
            with self.metrics.seconds(WorkerMetrics.step_seconds).time():
                with self.lock:
                    self._move_tasks(session, polled)
                pending = PendingStep(Step(self._tasks.take_begun()))
                self._process(session, polled, pending)
                if pending.step:
                    with self.metrics.seconds(WorkerMetrics.commit_seconds).time():
                        session.commit(pending.step)
            self._counts.committed(pending)
            self.health.completed()
            return True
        except GivenUp:
            log.info("work was given up, and is done again", revoked=self._meanwhile.revoked)
            self._do_again(polled)
            return True
        except NotYetReadable as later:
            self._unwritten = later
            self._journal.waits(str(later))
            self._do_again(polled)
            self._sleep(max(0.0, min(timeout, RETRY_SECONDS)))
            return False
        except CommitRefused as refusal:
            self.health.refused()
            if pending is None:
                # The role did not get the table records that were polled, and only a new session reads them
                # again.
                self._after_failure(BusUnavailable(str(refusal)), 0.0)
                return True
            self._counts.tables(pending)
            self._after_refusal(refusal)
            return True
        except BusUnavailable as failure:
            self._after_failure(failure, timeout)
            return False
        finally:
            self.health.note("restoring", None)
            self.health.note("partitions", None if self._partitions else NO_PARTITION)
            self.health.note("role", self.role.trouble)
            self.health.backlog = self._backlog.told
            self.health.note("records", str(self._unwritten or "") or self._inputs.awaited)

    def _wait(self, seconds: float) -> None:
        """Wait before the state is looked at again. GivenUp if the worker has to stop."""
        if self._stop.is_set():
            raise GivenUp
        self._sleep(seconds)

    def _report(self) -> None:
        """Log the counts and the line of progress that are due, whether anything happens or not."""
        self._journal.catch_up()
        if self._progress.due():
            figures = [*self.measure(), *self.metrics.measure_counts()]
            log.info("progress", **self._progress.line(figures, self.health.backlog))

    def close(self) -> None:
        """Leave the group. What was not committed stays invisible."""
        self._journal.close()
        self._pool.close()
        with self.lock:
            self._drop_tasks()
        if self._session is not None:
            self._session.close()
            self._session = None

    def measure(self) -> Iterator[Measurement]:
        """The role's figures and the session's, from any thread."""
        yield from self._figures.measure()
        yield from self.health.measure()
        yield SessionMetrics.partitions(self._partitions)
        yield from self.lag.measure(self._session)

    @property
    def _partitions(self) -> int:
        """How many partitions the worker has. Between a step and the same one again none of them is open."""
        return len(self._tasks) or len(self._meanwhile.assigned)

    # ---- gathering

    def _join(self) -> Session:
        if self._session is None:
            self._inputs.join()
            self._session = self._bus.session(self._subscription)
        return self._session

    def _gather(self, session: Session, timeout: float) -> Polled:
        """Poll until the commit interval is over, the batch is full or, if peers wait for this role, nothing
        more is there."""
        session.pause(self._paused() | self._inputs.held)
        if self._unwritten is not None:
            self._stay(session)
            self._unwritten.again()
        if self._meanwhile:
            gathered, self._meanwhile = self._meanwhile, Polled()
        else:
            gathered = session.poll(self._ticks.until(timeout, self._clock()), self._backlog.most_records)
        # Not by the role's clock, which may stand still during this loop.
        deadline = self._monotonic() + self._commit_interval
        while gathered and not (gathered.revoked or gathered.assigned or gathered.moved):
            room, prompt = self._backlog.most_records - len(gathered.records), self._backlog.prompt
            remaining = self._ticks.until(deadline - self._monotonic(), self._clock())
            if room <= 0 or remaining <= 0:
                break
            try:
                more = session.poll(0.0 if prompt else remaining, room)
            except Unreadable:
                # The gathered records come before the unreadable batch and count; the next poll meets the
                # batch again.
                break
            if prompt and not more:
                break
            gathered = gathered.then(more)
        return gathered

    def _paused(self) -> set[TopicPartition]:
        """The inputs that are not read: their partitions are full, or others have to be read first."""
        wait = {(self._channels.inputs[channel].topic, number) for channel, number in self._backlog.paused}
        return self._inputs.places(self.role.full, full=True) | wait

    # ---- tasks: a task is the role on one partition

    def _move_tasks(self, session: Session, polled: Polled) -> None:
        for partition in polled.revoked:
            self._drop_task(partition)
        for partition in polled.assigned:
            self._open_task(session, partition)
        self.health.note("restoring", None)
        if polled.revoked or (polled.assigned and self._unwritten is None):
            log.info("partitions moved", revoked=polled.revoked, assigned=polled.assigned)

    def _open_task(self, session: Session, partition: int) -> None:
        told = f"the state of partition {partition} is being restored from the changelog"
        self.health.note("restoring", told)
        self._ticks.dropped(partition)
        with self.metrics.seconds(WorkerMetrics.restore_seconds).time():
            self._ticks.opened(self._tasks.open(session, partition))

    def _drop_task(self, partition: int) -> None:
        self._tasks.drop(partition)
        self._inputs.dropped(partition)
        self._ticks.dropped(partition)

    def _drop_tasks(self) -> None:
        for partition in self._tasks:
            self._drop_task(partition)

    # ---- processing

    def _process(self, session: Session, polled: Polled, pending: PendingStep) -> None:
        """Give the role what was polled, and note the results in ``pending``."""
        with self.lock:
            self._tasks.topics.written_by(polled.epochs)
            tables = self._inputs.decode_tables(polled.tables, pending)
            batch = Batch([tables, *self._inputs.decode(session, polled.records, pending)])
            self._inputs.moved(polled.moved, pending)
            now = self._clock()
            replies: list[Send | Rejection | Work] = []
            self._backlog.tell(session, self._inputs.channels, self._tasks)
            with self.metrics.seconds(WorkerMetrics.batch_seconds).time():
                if batch:
                    replies += self._receive(batch, now)
                if self._ticks.is_due(session, now):
                    self._ticks.ticked(now)
                    replies += self._receive([], now)
            self._ticks.passed(now)
        while work := self._answer(replies, pending):
            # Without the lock, so that a scrape of the metrics does not wait for the work.
            results = self._work.results(work, partial(self._beat, session), self._stop)
            with self.lock:
                now = self._clock()
                replies = list(self._receive(results, now))
                self._ticks.passed(now)
        with self.lock:
            for notice in (*self.role.notices(), *self._inputs.notices()):
                self._journal.notice(notice)
            pending.step.changelog += self._tasks.changelog(pending.step.positions)
        self._unwritten = None
        # Behind the records of a step that was done again.
        for place, position in pending.step.positions.items():
            if place[1] in polled.assigned:
                session.seek(*place, position, self._tasks.topics.epoch(*place))

    def _receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
        return self.role.receive(batch, now)

    def _answer(self, replies: Sequence[Send | Rejection | Work], pending: PendingStep) -> list[Work]:
        """Put the role's messages and rejections into ``pending``; returns the work that it asks for."""
        work: list[Work] = []
        for kind, group in groupby(replies, type):
            if kind is Send:
                pending.step.outputs += self._outputs.records(cast("Iterator[Send]", group))
                continue
            for reply in group:
                if isinstance(reply, Rejection):
                    self._inputs.reject(reply.received.record, reply.error, pending)
                elif isinstance(reply, Work):
                    work.append(reply)
        return work

    def _beat(self, session: Session) -> None:
        """Stay in the group while the role waits for work. GivenUp if a partition is revoked, or the worker
        has to stop."""
        if self._stop.is_set():
            raise GivenUp
        self._stay(session)
        self.health.went_round()
        if self._meanwhile.revoked:
            raise GivenUp

    def _stay(self, session: Session) -> None:
        """Stay in the group and read no records. The next step takes what the poll brought."""
        session.pause(self._inputs.places({*self._tasks, *self._meanwhile.assigned}))
        with suppress(Unreadable):
            self._meanwhile = self._meanwhile.then(session.poll(0.0, 1))

    # ---- when a step was not committed

    def _do_again(self, polled: Polled) -> None:
        """The state is ahead of what is committed: restore the partitions that stay, and do the same step."""
        kept = sorted(self._tasks)
        with self.lock:
            self._drop_tasks()
        self._meanwhile = replace(polled, revoked=[], assigned=kept).then(self._meanwhile)
        self.health.completed()

    def _after_refusal(self, refusal: CommitRefused) -> None:
        """The state is ahead of what is committed: forget it. The next poll says which partitions to
        restore."""
        log.warning("commit refused: partitions are restored from the changelog", cause=str(refusal))
        self.metrics.commits_refused += 1
        with self.lock:
            self._drop_tasks()
        # The next poll reports every partition, but it does not bring the table records again.
        self._meanwhile = Polled(tables=self._meanwhile.tables)
        self.health.completed()

    def _after_failure(self, failure: Exception, timeout: float) -> None:
        """Close all partitions, leave the group and wait; the next step tries a new session."""
        self._journal.unavailable(failure)
        self.metrics.bus_failures += 1
        self.health.failed(f"the bus is unavailable: {failure}")
        self._unwritten = None
        with self.lock:
            self._drop_tasks()
            session, self._session = self._session, None
        # A new session reads the tables whole.
        self._meanwhile = Polled()
        if session is not None:
            with suppress(BusUnavailable, CommitRefused):
                session.close()
        self._sleep(max(0.0, min(timeout, RETRY_SECONDS)))
