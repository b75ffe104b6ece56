"""The worker: moves messages between a bus and a role, and commits each step whole.

The loop is :meth:`Worker.step`. Everything that it consumed, sends and remembers becomes visible together or not at all; whenever
it did not, the worker forgets its partitions and takes them back from the changelog.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from streamfl.role import Channels, Headers, Measurement, NotYetReadable, Received, Rejection, Role, Send, Work
from streamfl.runtime.backlog import Backlog
from streamfl.runtime.bus import (
    Bus,
    BusUnavailable,
    CommitRefused,
    Outgoing,
    Polled,
    Session,
    Subscription,
    TopicPartition,
    Unreadable,
)
from streamfl.runtime.health import Health
from streamfl.runtime.inputs import Inputs
from streamfl.runtime.journal import Journal
from streamfl.runtime.lag import Lag
from streamfl.runtime.log import logger
from streamfl.runtime.metrics import Metrics
from streamfl.runtime.pending_step import PendingStep
from streamfl.runtime.pool import Inline, Pool, WorkEnded
from streamfl.runtime.progress import Progress
from streamfl.runtime.tasks import Tasks
from streamfl.runtime.ticks import Ticks
from streamfl.state_settings import StateSettings

__all__ = ["Worker"]

RETRY_SECONDS = 1.0
# So often the cluster hears of a worker whose role waits for work.
BEAT_SECONDS = 0.1
# Within which a signal to a group of processes has reached all of them.
SIGNAL_SECONDS = 0.5
NO_PARTITION = "this worker has been given no partition: its group is rebalancing, or others have all of them"

log = logger(__name__)


class _GivenUp(Exception):
    """What the role waits for is not waited for: a partition went away meanwhile, or the worker is told to stop."""


class Worker:
    """One role object on one session.

    clock: the ``now`` that the role sees, in seconds. commit_interval: seconds for which records are gathered for one commit.
    max_records: the input records of one commit at most. restore_seconds: how long a changelog may lag behind the group's offsets
    before the cluster counts as unavailable. progress_seconds: between two lines of progress, 0 for none. monotonic, sleep: by what
    it measures its own waiting. state_settings: those that are remembered beside the role's state. pool: where the role's work is
    done. metrics: what counts it. All but :meth:`measure` and ``health`` belong to one thread.
    """

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
        self._journal = Journal(log.warning, monotonic)
        self._progress = Progress(progress_seconds, monotonic)
        self._channels, self._bus, self._subscription = channels, bus, subscription
        self._clock = clock
        self._commit_interval = commit_interval
        self._restore_seconds = restore_seconds
        self._monotonic = monotonic
        self._sleep = sleep
        self._pool: Pool = pool or Inline()
        self._tasks = Tasks(role, channels, bus, subscription, state_settings or StateSettings(), restore_seconds, monotonic, sleep)
        self._inputs = Inputs(channels, bus, self._tasks, dead_letter_topic, monotonic)
        self._ticks = Ticks(role, self._tasks, self._paused, restore_seconds, monotonic)
        self._backlog = Backlog(role, max_records)
        self._session: Session | None = None
        self._stop = threading.Event()
        # What polls brought while the role waited for work: for the next step.
        self._meanwhile = Polled()

    def run(self, stop: threading.Event) -> None:
        """Go round until told to stop, finish the step or give up the work that it waits for, leave the group."""
        self._stop = stop
        try:
            while not stop.is_set():
                self.step(0.5)
                self._report()
        finally:
            self.close()

    def step(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for records, process them, commit once. True if there was anything to do.

        ConfigurationError if the cluster says that a topic or a right is missing; Unreadable at what cannot be read; WorkFailed if
        the role's work cannot be done.
        """
        pending: PendingStep | None = None
        try:
            session = self._join()
            polled = self._gather(session, timeout)
            if not polled and not self._ticks.is_due(session, self._clock()):
                self.health.completed()
                return False
            self.health.begin()
            with self.metrics.step_seconds.time():
                with self.lock:
                    self._move_tasks(session, polled)
                pending = PendingStep()
                self._process(session, polled, pending)
                if pending.step:
                    with self.metrics.commit_seconds.time():
                        session.commit(pending.step)
            self._count(pending)
            self.health.completed()
            return True
        except _GivenUp:
            assert pending is not None
            self._count_tables(pending)
            self._after_giving_up(session, polled)
            return True
        except CommitRefused as refusal:
            self.health.refused()
            if pending is None:
                # Table records that were polled have not reached the role: only a new session reads them again.
                self._after_failure(BusUnavailable(str(refusal)), 0.0)
                return True
            self._count_tables(pending)
            self._after_refusal(refusal)
            return True
        except (BusUnavailable, NotYetReadable) as failure:
            self._after_failure(failure, timeout)
            return False
        finally:
            self.health.note("restoring", None)
            self.health.note("partitions", None if self._tasks else NO_PARTITION)
            self.health.note("role", self.role.trouble)
            self.health.backlog = self._backlog.told
            self.health.note("records", self._inputs.awaited)

    def _report(self) -> None:
        """What the log should say by now, whether anything happens or not."""
        self._journal.catch_up()
        if self._progress.due():
            log.info("progress", **self._progress.line([*self.measure(), *self.metrics.headlines()], self.health.backlog))

    def close(self) -> None:
        """Leave the group; what was not committed is not seen."""
        self._journal.close()
        self._pool.close()
        with self.lock:
            self._drop_tasks()
        if self._session is not None:
            self._session.close()
            self._session = None

    def measure(self) -> Iterator[Measurement]:
        """The role's figures and the session's, from any thread."""
        with self.lock:
            now, session, tasks = self._clock(), self._session, len(self._tasks)
            figures = [one.at(now) for one in self.role.measure()]
        yield from self.health.measure()
        yield from figures
        yield Measurement("partitions", "gauge", "Partitions this worker has.", float(tasks), (), True)
        yield from self.lag.measure(session)

    # ---- gathering

    def _join(self) -> Session:
        if self._session is None:
            self._inputs.join()
            self._session = self._bus.session(self._subscription)
        return self._session

    def _gather(self, session: Session, timeout: float) -> Polled:
        """Polls until the commit interval is over, the batch is full or, if peers wait for this role, nothing more is there."""
        session.pause(self._paused() | self._inputs.held)
        if self._meanwhile:
            gathered, self._meanwhile = self._meanwhile, Polled()
        else:
            gathered = session.poll(self._until_tick(timeout), self._backlog.most_records)
        # Not the role's time: that may stand still in here.
        deadline = self._monotonic() + self._commit_interval
        while gathered and not (gathered.revoked or gathered.assigned or gathered.moved):
            room, prompt = self._backlog.most_records - len(gathered.records), self._backlog.prompt
            remaining = self._until_tick(deadline - self._monotonic())
            if room <= 0 or remaining <= 0:
                break
            try:
                more = session.poll(0.0 if prompt else remaining, room)
            except Unreadable:
                # What was gathered comes before it and counts; the next poll meets it again.
                break
            if prompt and not more:
                break
            gathered = gathered.then(more)
        return gathered

    def _until_tick(self, timeout: float) -> float:
        return self._ticks.until(timeout, self._clock())

    def _paused(self) -> set[TopicPartition]:
        """What is not read while partitions are full."""
        return self._inputs.places(self.role.full, full=True)

    # ---- tasks: a task is the role on one partition

    def _move_tasks(self, session: Session, polled: Polled) -> None:
        for partition in polled.revoked:
            self._drop_task(partition)
        for partition in polled.assigned:
            self._open_task(session, partition)
        if polled.revoked or polled.assigned:
            log.info("partitions moved", revoked=polled.revoked, assigned=polled.assigned)

    def _open_task(self, session: Session, partition: int) -> None:
        self.health.note("restoring", f"the state of partition {partition} is being taken back from the changelog")
        self._ticks.dropped(partition)
        with self.metrics.restore_seconds.time():
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
        """Give the role what was polled, and note in the draft what comes of it."""
        with self.lock:
            batch = self._inputs.decode_tables(polled.tables, pending) + self._inputs.decode(session, polled.records, pending)
            self._inputs.moved(polled.moved, pending)
            self._tasks.topics.written_by(polled.epochs)
            now = self._clock()
            replies: list[Send | Rejection | Work] = []
            self._backlog.tell(session)
            with self.metrics.batch_seconds.time():
                if batch:
                    replies += self.role.receive(batch, now)
                if self._ticks.is_due(session, now):
                    self._ticks.ticked(now)
                    replies += self.role.receive([], now)
            self._ticks.passed(now)
        while work := self._answer(replies, pending):
            # Unlocked: whoever asks for figures does not wait for it.
            results = self._have_done(session, work)
            with self.lock:
                now = self._clock()
                replies = list(self.role.receive(results, now))
                self._ticks.passed(now)
        with self.lock:
            for notice in (*self.role.notices(), *self._inputs.notices()):
                self._journal.notice(notice)
            pending.step.changelog += self._tasks.changelog(pending.step.positions)

    def _answer(self, replies: Sequence[Send | Rejection | Work], pending: PendingStep) -> list[Work]:
        """Put into the draft what the role said, but for the work that it asks for."""
        work: list[Work] = []
        for reply in replies:
            if isinstance(reply, Send):
                pending.step.outputs.append(self._outgoing(reply))
            elif isinstance(reply, Rejection):
                self._inputs.reject(reply.received.record, reply.error, pending)
            else:
                work.append(reply)
        return work

    def _have_done(self, session: Session, work: Sequence[Work]) -> list[Received]:
        """The results, in the order of the work. Meanwhile nothing is read, and the worker stays in its group.

        _GivenUp if a partition goes away, or the worker is told to stop.
        """
        try:
            self._pool.start(work)
            done = 0
            while not self._pool.wait(BEAT_SECONDS):
                self._beat(session)
                if self._pool.done > done:
                    done = self._pool.done
                    self.health.begin()
            for one, seconds in zip(work, self._pool.seconds(), strict=True):
                self.metrics.work_seconds.labels(getattr(one.function, "__name__", "")).observe(seconds)
            results = self._pool.results()
            return [one.received(number, result) for number, (one, result) in enumerate(zip(work, results, strict=True))]
        except BaseException as error:
            self._pool.give_up()
            # The signal that ends a process of the pool may be the one that stops the worker, and reach it a moment later.
            if isinstance(error, WorkEnded) and self._stop.wait(SIGNAL_SECONDS):
                raise _GivenUp from None
            raise

    def _beat(self, session: Session) -> None:
        if self._stop.is_set():
            raise _GivenUp
        session.pause(self._inputs.places({*self._tasks, *self._meanwhile.assigned}))
        with suppress(Unreadable):
            self._meanwhile = self._meanwhile.then(session.poll(0.0, 1))
        self.health.went_round()
        if self._meanwhile.revoked:
            raise _GivenUp

    def _outgoing(self, send: Send) -> Outgoing:
        channels, headers = self._channels, send.headers + self._headers(send.channel, send.key, send.value, send.partition)
        at = channels.times[send.channel](send.headers) if send.channel in channels.times else None
        return Outgoing(channels.outputs[send.channel], send.key, send.value, send.partition, headers, at)

    def _headers(self, channel: str, key: bytes | None, value: bytes | None, partition: int | None) -> Headers:
        return self._channels.seals[channel](key, value, partition) if channel in self._channels.seals else ()

    def _count(self, pending: PendingStep) -> None:
        self.metrics.taken(pending.records, pending.repeated, pending.passed_over)
        for record, error in pending.dead_letters:
            self.metrics.dead_letters.labels(error.reason).inc()
            self._journal.refused(record, error, dead_letter=True)
        for moved in pending.moved:
            self._journal.moved(moved)
            self.metrics.moved(moved)
        self._count_tables(pending)
        if pending.step:
            self.health.committed()
            self.metrics.committed(pending.output_bytes, pending.changelog_bytes)

    def _count_tables(self, pending: PendingStep) -> None:
        # Apart: a refused step's inputs are read again, its table records are not.
        for record, error in pending.table_rejections:
            self.metrics.table_rejections.labels(error.reason).inc()
            self._journal.refused(record, error, dead_letter=False)

    # ---- when a step came to nothing

    def _after_giving_up(self, session: Session, polled: Polled) -> None:
        """The state is ahead of what will be committed: take back what is still here, and read again what the step had read."""
        moved, kept = self._meanwhile, set(self._tasks) - set(self._meanwhile.revoked)
        log.info("work was given up: it is done again by whoever has the partitions", revoked=moved.revoked)
        with self.lock:
            self._drop_tasks()
        begins = {(record.topic, record.partition): record.offset for record in reversed(polled.records)}
        for (topic, partition), offset in begins.items():
            if partition in kept:
                session.seek(topic, partition, offset)
        self._meanwhile = Polled([], sorted(kept | set(moved.assigned)), moved.tables)
        self.health.completed()

    def _after_refusal(self, refusal: CommitRefused) -> None:
        """The state is ahead of what is committed: forget it. The next poll says what to take back."""
        log.warning("commit refused, partitions are taken back from the changelog", cause=str(refusal))
        self.metrics.commits_refused.inc()
        with self.lock:
            self._drop_tasks()
        # That poll says of every partition where it is; what tables brought it does not bring again.
        self._meanwhile = Polled(tables=self._meanwhile.tables)
        self.health.completed()

    def _after_failure(self, failure: Exception, timeout: float) -> None:
        """Forget everything, leave, and try again with a new session after a pause."""
        self._journal.unavailable(failure)
        self.metrics.bus_failures.inc()
        self.health.failed(f"the bus is unavailable: {failure}")
        with self.lock:
            self._drop_tasks()
            session, self._session = self._session, None
        # A new session reads the tables whole.
        self._meanwhile = Polled()
        if session is not None:
            with suppress(BusUnavailable, CommitRefused):
                session.close()
        self._sleep(max(0.0, min(timeout, RETRY_SECONDS)))
