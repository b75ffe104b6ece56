"""The worker: moves messages between a bus and a role, and commits each step whole.

The loop is :meth:`Worker.step`. Everything that it consumed, sends and remembers becomes visible together or not at all; whenever
it did not, the worker forgets its partitions and takes them back from the changelog. Positions are remembered twice: with the
group, and in the changelog beside the state that they belong to, so that the state and the place in the input that it reflects
cannot part.
"""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from streamfl.made_with import MadeWith
from streamfl.role import (
    Channels,
    ConfigurationError,
    Headers,
    Input,
    Measurement,
    PeerError,
    Received,
    Record,
    Rejection,
    Role,
    Send,
    StateChange,
)
from streamfl.runtime.bus import (
    Bus,
    BusUnavailable,
    CommitRefused,
    Outgoing,
    Polled,
    Session,
    Step,
    Subscription,
    TopicPartition,
    Unreadable,
)
from streamfl.runtime.checksum import is_damaged, with_checksum
from streamfl.runtime.health import Health
from streamfl.runtime.journal import Journal
from streamfl.runtime.log import logger
from streamfl.runtime.metrics import Metrics
from streamfl.runtime.progress import Progress
from streamfl.runtime.remembered_settings import RememberedSettings, is_settings, ways_to_begin_anew
from streamfl.wire import MAXIMUM_BYTES, encoded_size, record_size

__all__ = ["POSITION_KEY", "Worker", "dead_letter"]

POSITION_KEY = b"\0position/"
RETRY_SECONDS = 1.0
NO_PARTITION = "this worker has been given no partition: its group is rebalancing, or others have all of them"
LARGEST_LETTER = MAXIMUM_BYTES
LONGEST_TEXT = 1_000

log = logger(__name__)


Refused = tuple[Record, PeerError]


@dataclass
class _Work:
    """A step and what is to be counted once it is committed."""

    step: Step = field(default_factory=Step)
    records: int = 0
    repeated: int = 0
    dead_letters: list[Refused] = field(default_factory=list)
    table_rejections: list[Refused] = field(default_factory=list)


class Worker:
    """One role object on one session.

    Parameters: clock, the ``now`` that the role sees, in seconds. commit_interval, how long records are gathered for one commit, in
    seconds. max_records, the input records of one commit at most. restore_seconds, how long a changelog may lag behind the group's
    offsets before the cluster counts as unavailable. progress_seconds, between two lines of progress, 0 for none. monotonic, sleep:
    by what it measures its own waiting. made_with: the settings that are remembered beside the role's state. All but
    :meth:`measure` and ``health`` belong to one thread.
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
        made_with: MadeWith | None = None,
    ) -> None:
        self.role = role
        self.lock = threading.Lock()
        self.health = Health(stall_seconds, monotonic)
        self.metrics = Metrics(self.measure)
        self._journal = Journal(log.warning, monotonic)
        self._progress = Progress(progress_seconds, monotonic)
        self._channels = channels
        self._inputs = _by_topic(channels.inputs)
        self._tables = _by_topic(channels.tables)
        self._bus = bus
        self._subscription = subscription
        self._dead_letter_topic = dead_letter_topic
        self._clock = clock
        self._commit_interval = commit_interval
        self._max_records = max_records
        self._restore_seconds = restore_seconds
        self._monotonic = monotonic
        self._sleep = sleep
        self._settings = RememberedSettings(made_with or MadeWith(), channels.changelogs, subscription.group)
        self._session: Session | None = None
        self._tasks: set[int] = set()
        self._positions: dict[TopicPartition, int] = {}
        # Inputs that held unread records when they were opened, and where these end.
        self._draining: dict[TopicPartition, float] = {}
        # How far they were read, and since when no further.
        self._drained: dict[TopicPartition, int] = {}
        self._drained_since = 0.0
        self._just_opened = False
        self._partition_counts: dict[str, int] = {}
        # The latest time that the role was given.
        self._latest = -math.inf

    def run(self, stop: threading.Event) -> None:
        """Go round until told to stop, finish the step, leave the group."""
        try:
            while not stop.is_set():
                self.step(0.5)
                self._report()
        finally:
            self.close()

    def step(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for records, process them, commit once. True if there was anything to do.

        ConfigurationError if the cluster says that a topic or a right is missing; Unreadable at what cannot be read.
        """
        work: _Work | None = None
        try:
            session = self._join()
            polled = self._gather(session, timeout)
            if not polled and not self._tick_is_due(session, self._clock()):
                self.health.completed()
                return False
            self.health.begin()
            with self.metrics.step_seconds.time():
                with self.lock:
                    self._move_tasks(session, polled)
                    work = self._process(session, polled)
                if work.step:
                    session.commit(work.step)
            self._count(work)
            self.health.completed()
            return True
        except CommitRefused as refusal:
            self.health.refused()
            if work is None:
                # Table records that were polled have not reached the role: only a new session reads them again.
                self._after_failure(BusUnavailable(str(refusal)), 0.0)
                return True
            self._count_tables(work)
            self._after_refusal(refusal)
            return True
        except BusUnavailable as failure:
            self._after_failure(failure, timeout)
            return False
        finally:
            self.health.note("restoring", None)
            self.health.note("partitions", None if self._tasks else NO_PARTITION)
            self.health.note("role", self.role.trouble)

    def _report(self) -> None:
        """What the log should say by now, whether anything happens or not."""
        self._journal.catch_up()
        if self._progress.due():
            log.info("progress", **self._progress.line([*self.measure(), *self.metrics.headlines()]))

    def close(self) -> None:
        """Leave the group; what was not committed is not seen."""
        self._journal.close()
        with self.lock:
            self._drop_tasks()
        if self._session is not None:
            self._session.close()
            self._session = None

    def measure(self) -> Iterator[Measurement]:
        """The role's figures and the session's, from any thread."""
        with self.lock:
            figures = list(self.role.measure())
            session, tasks = self._session, len(self._tasks)
        yield from self.health.measure()
        yield from figures
        yield Measurement("partitions", "gauge", "Partitions this worker has.", float(tasks), (), True)
        if session is not None:
            text = "Records not yet taken, by partition; Kafka's control records count too."
            for (topic, partition), behind in session.lag().items():
                labels = (("topic", topic), ("partition", str(partition)))
                yield Measurement("consumer_lag_records", "gauge", text, float(max(0, behind)), labels, True)

    # ---- gathering

    def _join(self) -> Session:
        if self._session is None:
            keyed = [topic for topic, (_, source) in self._inputs.items() if source.keyed_by is not None]
            self._partition_counts = {name: state.partitions for name, state in self._bus.describe(keyed).items()}
            self._session = self._bus.session(self._subscription)
        return self._session

    def _gather(self, session: Session, timeout: float) -> Polled:
        """Polls until the commit interval is over, the batch is full or, if peers wait for this role, nothing more is there."""
        session.pause(self._paused())
        gathered = session.poll(self._until_tick(timeout), self._max_records)
        # Not the role's time: that may stand still in here.
        deadline = self._monotonic() + self._commit_interval
        while gathered and not (gathered.revoked or gathered.assigned):
            room = self._max_records - len(gathered.records)
            remaining = self._until_tick(deadline - self._monotonic())
            if room <= 0 or remaining <= 0:
                break
            try:
                more = session.poll(0.0 if self.role.prompt else remaining, room)
            except Unreadable:
                # What was gathered comes before it and counts; the next poll meets it again.
                break
            if self.role.prompt and not more:
                break
            # What was gathered of a partition that is gone now is another worker's to process.
            kept = [record for record in gathered.records if record.partition not in more.revoked]
            gathered = Polled(more.revoked, more.assigned, gathered.tables + more.tables, kept + more.records)
        return gathered

    def _until_tick(self, timeout: float) -> float:
        wake_at = self.role.wake_at
        return timeout if wake_at is None or self._withholds_ticks() else max(0.0, min(timeout, wake_at - self._clock()))

    def _tick_is_due(self, session: Session, now: float) -> bool:
        wake_at = self.role.wake_at
        asked_for = wake_at is not None and wake_at <= now
        # What the role noted by a clock that was ahead would be waited for until its time comes again.
        if not (asked_for or self._just_opened or now < self._latest):
            return False
        if self._withholds_ticks():
            lag = session.lag()
            # Behind a transaction's marker at the end no record comes to move the position there; then lag tells.
            unread = {place: end for place, end in self._draining.items() if self._positions.get(place, 0) < end}
            self._draining = {place: end for place, end in unread.items() if lag.get(place) != 0}
            self._wait_no_longer()
        return not self._withholds_ticks()

    def _wait_no_longer(self) -> None:
        """A partition that cannot be read any more must not stop time for all the others of this worker."""
        read = {place: self._positions.get(place, 0) for place in self._draining}
        now = self._monotonic()
        if read != self._drained:
            self._drained, self._drained_since = read, now
        elif read and now - self._drained_since >= self._restore_seconds:
            places = ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(self._draining))
            log.warning("inputs cannot be read to the end that they had at the start: time passes without them", inputs=places)
            self._draining = {}

    def _withholds_ticks(self) -> bool:
        return bool(self._draining) and not self._draining.keys() <= self._paused()

    def _paused(self) -> set[TopicPartition]:
        """What is not read while partitions are full."""
        full = self.role.full
        return {(topic, partition) for topic, (_, source) in self._inputs.items() if not source.makes_room for partition in full}

    # ---- tasks: a task is the role on one partition

    def _move_tasks(self, session: Session, polled: Polled) -> None:
        for partition in polled.revoked:
            self._drop_task(partition)
        for partition in polled.assigned:
            self._open_task(session, partition)
        if polled.revoked or polled.assigned:
            log.info("partitions moved", revoked=polled.revoked, assigned=polled.assigned)

    def _open_task(self, session: Session, partition: int) -> None:
        """Take the partition's state back as it was at its last commit, and go on reading where that state left off."""
        self.health.note("restoring", f"the state of partition {partition} is being taken back from the changelog")
        committed = {topic: session.committed(topic, partition) for topic in self._inputs}
        deadline = self._monotonic() + self._restore_seconds
        while True:
            self._drop_task(partition)
            self.role.open(partition)
            self._settings.open(partition)
            self._tasks.add(partition)
            remembered = self._restore(session, partition)
            behind = self._behind(committed, remembered)
            if not behind:
                break
            # An atomic commit has reached the group's offsets, its end marker has not reached the changelog yet.
            if self._monotonic() >= deadline:
                raise BusUnavailable(
                    f"the changelog of partition {partition} ends before the group's offsets: {behind}. If this stays so, the "
                    "offsets were set by hand, or the changelog has lost records, for instance with its topic. To go on where it "
                    f"ends, and do again what was read since, delete the offsets of the group {self._subscription.group!r}, or set "
                    "another bus.group."
                )
            self._sleep(0.05)
        self._tell_of_other_offsets(partition, committed, remembered)
        for topic, position in remembered.items():
            self._positions[topic, partition] = position
            session.seek(topic, partition, position)
        lag = session.lag() if remembered else {}
        for topic, position in remembered.items():
            self._check_end(topic, partition, position, position + lag.get((topic, partition), 0))
        # Where nothing was taken of a topic yet, its lag alone tells when it has been read.
        begins: dict[str, float] = {**dict.fromkeys(self._inputs, math.inf), **remembered} if remembered else {}
        for topic, begin in begins.items():
            self._draining[topic, partition] = begin + lag.get((topic, partition), math.inf)
        self._just_opened = True

    def _tell_of_other_offsets(self, partition: int, committed: Mapping[str, int | None], remembered: Mapping[str, int]) -> None:
        """Somebody may have set the group's offsets back and be waiting for records to be read again."""
        for topic, position in remembered.items():
            offset = committed[topic]
            if offset is None or offset < position:
                log.warning(
                    "the group's offset does not count, for the state has read further: to read again from there, begin anew",
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    position=position,
                    how=ways_to_begin_anew(self._channels.changelogs.values(), self._subscription.group),
                )

    def _restore(self, session: Session, partition: int) -> dict[str, int]:
        positions: dict[str, int] = {}
        for channel, topic in self._channels.changelogs.items():
            published = channel in self._channels.published
            latest: dict[bytes, Record] = {}
            made_with: Record | None = None
            for record in session.restore(topic, partition):
                if is_settings(record):
                    made_with = record
                    continue
                key = record.key or b""
                if published and record.value is not None:
                    # Whatever it is: whoever else may write there stops nobody.
                    self._restore_one(StateChange(channel, partition, key, record.value), topic)
                # In the order of the last writing, as compaction would leave them.
                latest.pop(key, None)
                latest[key] = record
            of_the_role = any(record.value is not None and not key.startswith(POSITION_KEY) for key, record in latest.items())
            self._settings.found(topic, partition, made_with, bool(latest or made_with), of_the_role, binds=not published)
            for key, record in latest.items():
                if record.value is None or published:
                    continue
                if is_damaged(record):
                    raise self._not_taken_back(topic, partition, key, "its checksum says that it was damaged or moved since")
                if key.startswith(POSITION_KEY):
                    positions.update([self._remembered_position(topic, partition, key, record.value)])
                else:
                    self._restore_one(StateChange(channel, partition, key, record.value), topic)
        return {topic: position for topic, position in positions.items() if topic in self._inputs}

    def _remembered_position(self, topic: str, partition: int, key: bytes, value: bytes) -> tuple[str, int]:
        try:
            (position,) = struct.unpack("<q", value)
            name = key.removeprefix(POSITION_KEY).decode()
        except (struct.error, UnicodeDecodeError) as error:
            raise self._not_taken_back(topic, partition, key, f"it is no position: {error}") from None
        if position < 0:
            raise self._not_taken_back(topic, partition, key, f"{position} is no position")
        return name, position

    def _restore_one(self, change: StateChange, topic: str) -> None:
        try:
            self.role.restore(change)
        except PeerError as error:
            raise self._not_taken_back(topic, change.partition, change.key, str(error)) from None

    def _not_taken_back(self, topic: str, partition: int, key: bytes, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"topic {topic}, partition {partition}, key {key!r}: what was remembered there does not fit these settings, or is "
            f"damaged ({why}). Run with the settings that wrote it, or put back a copy of the topic, or, to begin anew, delete "
            f"the topic and the offsets of the consumer group {self._subscription.group!r}, or set another bus.group."
        )

    def _check_end(self, topic: str, partition: int, position: int, end: int) -> None:
        if end < position:
            raise ConfigurationError(
                f"topic {topic!r}, partition {partition}, ends at {end}, but was read up to {position}: it is not the topic that "
                f"it was. If it was deleted and made again, and its records are to be read, delete "
                f"{', '.join(self._channels.changelogs.values())} and the offsets of the consumer group "
                f"{self._subscription.group!r}, and begin anew."
            )

    def _behind(self, committed: dict[str, int | None], remembered: dict[str, int]) -> str:
        if self._subscription.guarantee != "exactly_once" or not self._channels.changelogs:
            return ""
        late = {topic: offset for topic, offset in committed.items() if (offset or 0) > remembered.get(topic, 0)}
        return ", ".join(f"{topic} is committed up to {offset}, not {remembered.get(topic)}" for topic, offset in late.items())

    def _drop_task(self, partition: int) -> None:
        if partition in self._tasks:
            self._tasks.remove(partition)
            self._settings.close(partition)
            self.role.close(partition)
        self._positions = {place: position for place, position in self._positions.items() if place[1] != partition}
        self._draining = {place: end for place, end in self._draining.items() if place[1] != partition}

    def _drop_tasks(self) -> None:
        for partition in sorted(self._tasks):
            self._drop_task(partition)

    # ---- processing

    def _process(self, session: Session, polled: Polled) -> _Work:
        work = _Work()
        batch = self._decode_tables(polled.tables, work) + self._decode_inputs(session, polled.records, work)
        now = self._clock()
        replies: list[Send | Rejection] = []
        with self.metrics.batch_seconds.time():
            if batch:
                replies += self.role.receive(batch, now)
            if self._tick_is_due(session, now):
                self._just_opened = False
                self._latest = now
                replies += self.role.receive([], now)
            self._latest = max(self._latest, now)
        for notice in self.role.notices():
            self._journal.notice(notice)
        for reply in replies:
            if isinstance(reply, Rejection):
                self._reject(reply.received.record, reply.error, work)
            else:
                work.step.outputs.append(self._outgoing(reply))
        self._remember(work.step)
        return work

    def _decode_tables(self, records: Sequence[Record], work: _Work) -> list[Received]:
        batch: list[Received] = []
        for record in records:
            channel, table = self._tables[record.topic]
            try:
                batch.append(Received(channel, table.decode(record), record))
            except PeerError as error:
                self._reject(record, error, work)
        return batch

    def _decode_inputs(self, session: Session, records: Sequence[Record], work: _Work) -> list[Received]:
        batch: list[Received] = []
        read: dict[TopicPartition, int] = {}
        repeated: set[TopicPartition] = set()
        for record in records:
            place = (record.topic, record.partition)
            read[place] = record.offset + 1
            if record.offset < self._positions.get(place, 0):
                work.repeated += 1
                repeated.add(place)
                continue
            work.records += 1
            self._positions[place] = work.step.positions[place] = record.offset + 1
            channel, source = self._inputs[record.topic]
            try:
                message = source.decode(record)
                if source.keyed_by is not None:
                    self._check_place(record, source.keyed_by(message))
                batch.append(Received(channel, message, record))
            except PeerError as error:
                self._reject(record, error, work)
        if repeated:
            lag = session.lag()
            for place in sorted(repeated):
                self._check_end(*place, self._positions[place], read[place] + lag.get(place, self._positions[place]))
        return batch

    def _check_place(self, record: Record, name: str) -> None:
        expected = self._bus.partition_of(name.encode(), self._partition_counts[record.topic])
        if record.partition != expected:
            raise PeerError(
                "partition",
                f"{name!r} came in partition {record.partition}, its own is {expected}: let the records' key be this name, and "
                "the producer choose the partition by Kafka's default (murmur2; librdkafka: partitioner=murmur2_random)",
            )

    def _reject(self, record: Record, error: PeerError, work: _Work) -> None:
        if record.topic in self._inputs:
            work.dead_letters.append((record, error))
            work.step.outputs.append(dead_letter(self._dead_letter_topic, record, error))
        else:
            work.table_rejections.append((record, error))

    def _outgoing(self, send: Send) -> Outgoing:
        headers = self._headers(send.channel, send.key, send.value, send.partition)
        return Outgoing(self._channels.outputs[send.channel], send.key, send.value, send.partition, headers)

    def _headers(self, channel: str, key: bytes | None, value: bytes | None, partition: int | None) -> Headers:
        seal = self._channels.seals.get(channel)
        return () if seal is None else seal(key, value, partition)

    def _remember(self, step: Step) -> None:
        changelogs = self._channels.changelogs
        changes = list(self.role.changed_state())
        touched = {change.partition for change in changes} | {partition for _, partition in step.positions}
        # First: who reads the changelog as a table knows what follows was made with.
        step.changelog += self._settings.to_write(touched)
        for change in changes:
            step.changelog.append(with_checksum(changelogs[change.channel], change.partition, change.key, change.value))
        if changelogs:
            first = next(iter(changelogs.values()))
            for (topic, partition), position in step.positions.items():
                key = POSITION_KEY + topic.encode()
                step.changelog.append(with_checksum(first, partition, key, struct.pack("<q", position)))

    def _count(self, work: _Work) -> None:
        self.metrics.records.inc(work.records)
        self.metrics.repeated.inc(work.repeated)
        for record, error in work.dead_letters:
            self.metrics.dead_letters.labels(error.reason).inc()
            self._journal.refused(record, error, dead_letter=True)
        self._count_tables(work)
        if work.step:
            self.health.committed()
            self.metrics.commits.inc()
            self.metrics.output_bytes.inc(_size(work.step.outputs))
            self.metrics.changelog_bytes.inc(_size(work.step.changelog))

    def _count_tables(self, work: _Work) -> None:
        # Apart: a refused step's inputs are read again, its table records are not.
        for record, error in work.table_rejections:
            self.metrics.table_rejections.labels(error.reason).inc()
            self._journal.refused(record, error, dead_letter=False)

    # ---- when a step came to nothing

    def _after_refusal(self, refusal: CommitRefused) -> None:
        """The state is ahead of what is committed: forget it. The next poll says what to take back."""
        log.warning("commit refused, partitions are taken back from the changelog", cause=str(refusal))
        self.metrics.commits_refused.inc()
        with self.lock:
            self._drop_tasks()
        self.health.completed()

    def _after_failure(self, failure: BusUnavailable, timeout: float) -> None:
        """Forget everything, leave, and try again with a new session after a pause."""
        log.warning("the bus is unavailable", cause=str(failure))
        self.metrics.bus_failures.inc()
        self.health.failed(f"the bus is unavailable: {failure}")
        with self.lock:
            self._drop_tasks()
            session, self._session = self._session, None
        if session is not None:
            with suppress(BusUnavailable, CommitRefused):
                session.close()
        self._sleep(max(0.0, min(timeout, RETRY_SECONDS)))


def _by_topic(inputs: Mapping[str, Input]) -> dict[str, tuple[str, Input]]:
    by_topic = {source.topic: (channel, source) for channel, source in inputs.items()}
    if len(by_topic) < len(inputs):
        raise ConfigurationError(f"two inputs of a role read the same topic: {sorted(s.topic for s in inputs.values())}")
    return by_topic


def dead_letter(topic: str, record: Record, error: PeerError) -> Outgoing:
    """The record as it came, with its cause in headers; its value cut short, or key and headers left out, if it is too large so."""
    cause: tuple[tuple[str, bytes], ...] = (
        ("topic", record.topic.encode()),
        ("partition", str(record.partition).encode()),
        ("offset", str(record.offset).encode()),
        ("error", error.reason.encode()),
        ("text", error.text.encode(errors="replace")[:LONGEST_TEXT]),
    )
    # Kafka's clients write no record without key and value; refusing to would stop the stream at somebody's mistake.
    value = b"" if record.key is None and record.value is None else record.value
    letter = Outgoing(topic, record.key, value, headers=(*record.headers, *cause))
    if encoded_size(letter.key, letter.value, letter.headers) <= LARGEST_LETTER:
        return letter
    cause = (*cause, ("truncated_from", str(record_size(record)).encode()))
    for key, headers in ((record.key, (*record.headers, *cause)), (None, cause)):
        room = LARGEST_LETTER - encoded_size(key, None, headers)
        if room >= 0:
            break
    return Outgoing(topic, key, (value or b"")[:room], headers=headers)


def _size(records: Sequence[Outgoing]) -> int:
    return sum(len(record.key or b"") + len(record.value or b"") for record in records)
