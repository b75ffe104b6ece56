"""A worker's inputs and tables: how records become messages, and which of them count."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter, lt
from typing import Any

from streamfl.contract.batch import Run
from streamfl.contract.channels import Channels, DecodesRuns, Input
from streamfl.contract.role import (
    BadRecord,
    ConfigurationError,
    IgnoredRecord,
    NotYetReadable,
    OperatorNotice,
    Received,
    Record,
)
from streamfl.roles.fragment_encoding import Fragment
from streamfl.runtime.bus import Bus, Moved, Session, TopicPartition
from streamfl.runtime.pending_step import PendingStep
from streamfl.runtime.tasks import Tasks

__all__ = ["Inputs"]

# Between two attempts at a record that cannot be read yet.
AGAIN_SECONDS = 1.0
# Records that are decoded together; if one of them is refused, all are decoded one by one.
RUN = 128
TOPIC, PARTITION = attrgetter("topic"), attrgetter("partition")


class Inputs:
    """The inputs and tables of a role.

    dead_letter_topic: the topic for refused records of inputs.
    monotonic: the clock that says when to retry a record that could not be read yet.
    channels: those of the inputs, by topic.
    """

    def __init__(
        self,
        channels: Channels,
        bus: Bus,
        tasks: Tasks,
        dead_letter_topic: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = _by_topic(channels.inputs)
        self.channels = {topic: channel for topic, (channel, _) in self._sources.items()}
        self._tables = _by_topic(channels.tables)
        # By topic, what decodes records in a row.
        self._together = {
            topic: source.decode.run
            for topic, (_, source) in self._sources.items()
            if isinstance(source.decode, DecodesRuns)
        }
        self._bus = bus
        self._tasks = tasks
        self._dead_letter_topic = dead_letter_topic
        self._monotonic = monotonic
        # Places whose next record cannot be read yet, and when to try again.
        self._held: dict[TopicPartition, float] = {}
        self._awaited = ""
        # The last record that was sent on to another partition, until it is logged.
        self._moved: tuple[Record, int] | None = None

    def __iter__(self) -> Iterator[str]:
        """The topics of the inputs."""
        return iter(self._sources)

    def join(self) -> None:
        """Ask for the topics and their numbers of partitions: a record's partition may have to be the one of
        the name in it."""
        states = self._bus.describe(self._sources)
        self._tasks.topics.are({name: state.identity for name, state in states.items()})
        self._tasks.dealing.join()

    def places(self, partitions: Iterable[int], full: bool = False) -> set[TopicPartition]:
        """The inputs of these partitions. full: without those that make room in a full partition."""
        topics = [topic for topic, (_, source) in self._sources.items() if not (full and source.makes_room)]
        return {(topic, partition) for topic in topics for partition in partitions}

    @property
    def held(self) -> set[TopicPartition]:
        """The inputs that are paused because their next record could not be read yet."""
        now = self._monotonic()
        return {place for place, until in self._held.items() if now < until}

    @property
    def awaited(self) -> str | None:
        """What the worker waits for before it can read a record; None: nothing."""
        return self._awaited if self._held else None

    def notices(self) -> list[OperatorNotice]:
        """Notices for the operator's log."""
        notices = [OperatorNotice("not_yet_readable", self._awaited)] if self._held else []
        if self._moved is not None:
            (record, home), self._moved = self._moved, None
            place = f"{record.topic}-{record.partition}-{record.offset}"
            text = (
                f"{place} is from a client whose state moved when partitions were added: it was forwarded to "
                f"partition {home}"
            )
            notices.append(OperatorNotice("moved", text))
        return notices

    def dropped(self, partition: int) -> None:
        """A partition belongs to another worker now."""
        self._held = {place: until for place, until in self._held.items() if place[1] != partition}

    def decode_tables(self, records: Sequence[Record], pending: PendingStep) -> list[Received]:
        """The messages in records of tables."""
        batch: list[Received] = []
        for record in records:
            channel, table = self._tables[record.topic]
            try:
                batch.append(Received(channel, table.decode(record), record))
            except BadRecord as error:
                self.reject(record, error, pending)
        return batch

    def decode(
        self, session: Session, records: Sequence[Record], pending: PendingStep
    ) -> list[Sequence[Received]]:
        """The messages in input records that the state does not reflect yet, in parts. ConfigurationError if
        a topic was made again."""
        batch: list[Sequence[Received]] = []
        read: dict[TopicPartition, int] = {}
        repeated: set[TopicPartition] = set()
        held: set[TopicPartition] = set()
        positions = self._tasks.positions
        for place, group in _by_place(records):
            while place not in held and (run := list(islice(group, RUN))):
                before = pending.repeated
                read[place] = run[-1].offset + 1
                awaited = self._decode_run(run, positions.get(place, 0), batch, pending)
                if pending.repeated > before:
                    repeated.add(place)
                if place in pending.step.positions:
                    positions[place] = pending.step.positions[place]
                    self._held.pop(place, None)
                if awaited is not None:
                    record, text = awaited
                    held.add(place)
                    self._held[place] = self._monotonic() + AGAIN_SECONDS
                    self._awaited = text
                    session.seek(*place, record.offset, self._tasks.topics.epoch(*place))
        if repeated:
            self.join()
            lag = session.lag()
            for place in sorted(repeated - held):
                self._tasks.check_topic(
                    *place, positions[place], read[place] + lag.get(place, positions[place])
                )
        return batch

    def _decode_run(
        self, run: Sequence[Record], position: int, batch: list[Sequence[Received]], pending: PendingStep
    ) -> tuple[Record, str] | None:
        """Add to ``batch`` the messages in records of one place from ``position`` on.

        Returns the first record that cannot be read yet, and what the worker waits for; None: all were read.
        """
        place = (run[0].topic, run[0].partition)
        channel, source = self._sources[place[0]]
        decode, keyed_by, forwards = source.decode, source.keyed_by, bool(self._tasks.dealing.partitioner)
        together = self._together.get(place[0])
        if together is not None and keyed_by is None and not forwards and _follow(run, position):
            messages = together(run)
            if messages is not None:
                batch.append(Run(channel, messages, run))
                pending.records += len(run)
                pending.step.positions[place] = run[-1].offset + 1
                return None
        taken, awaited = 0, None
        rows: list[Received] = []
        batch.append(rows)
        for record in run:
            if record.offset < position:
                pending.repeated += 1
                continue
            try:
                message = decode(record)
                if keyed_by is not None:
                    self._check_place(record, message, keyed_by)
                if forwards:
                    self._send_on(source, message, record, pending)
                rows.append(Received(channel, message, record))
            except IgnoredRecord as passed:
                pending.passed_over[passed.reason] += 1
            except BadRecord as error:
                self.reject(record, error, pending)
            except NotYetReadable as later:
                awaited = record, str(later)
                break
            position = record.offset + 1
            taken += 1
        if taken:
            pending.records += taken
            pending.step.positions[place] = position
        return awaited

    def moved(self, moved: Iterable[Moved], pending: PendingStep) -> None:
        """The records that were to be read next are gone. The step goes on behind them and counts them."""
        for one in moved:
            if one.partition in self._tasks:
                if one.following < one.position:
                    # If the topic is another one, or ends before the position, nobody knows what was lost.
                    self.join()
                    end = self._bus.offsets(one.topic, math.inf)[one.partition]
                    self._tasks.check_topic(one.topic, one.partition, one.position, end)
                self._tasks.go_on(one)
                place = one.topic, one.partition
                pending.step.positions[place] = self._tasks.positions[place]
                pending.moved.append(one)

    def _send_on(self, source: Input, message: Any, record: Record, pending: PendingStep) -> None:
        """Send a record on if its client's state is in another partition, and raise IgnoredRecord for it
        here."""
        home = self._tasks.dealing.elsewhere(source, message, record.partition)
        if home is not None:
            self._moved = record, home
            pending.send_on(record, home)
            raise IgnoredRecord("moved")

    def _check_place(self, record: Record, message: Any, keyed_by: Callable[[Any], str]) -> None:
        if isinstance(message, Fragment):
            raise BadRecord("malformed", "messages on this input are never sent in parts")
        name = keyed_by(message)
        expected = self._bus.partition_of(name.encode(), self._tasks.dealing.partitions)
        if record.partition != expected:
            raise BadRecord(
                "partition",
                f"{name!r} came in partition {record.partition}, its own is {expected}: let the records' key "
                "be this name, and the producer choose the partition by Kafka's default (murmur2; "
                "librdkafka: partitioner=murmur2_random); or let `streamfl rekey CONFIG` write a rekeyed "
                "copy of the topic ([samples.rekey])",
            )

    def reject(self, record: Record, error: BadRecord, pending: PendingStep) -> None:
        """Refuse a record: of an input it becomes a dead letter; of a table it is only counted, because every
        worker reads it."""
        if record.topic in self._sources:
            pending.refuse(record, error, self._dead_letter_topic)
        else:
            pending.table_rejections.append((record, error))


def _by_place(records: Iterable[Record]) -> Iterator[tuple[TopicPartition, Iterator[Record]]]:
    """The records in a row of each place, in order."""
    for topic, of_topic in groupby(records, TOPIC):
        for partition, group in groupby(of_topic, PARTITION):
            yield (topic, partition), group


def _follow(run: Sequence[Record], position: int) -> bool:
    """Whether the first of these records is at ``position`` or behind it, and each other one behind the one
    before."""
    offsets = [record.offset for record in run]
    return offsets[0] >= position and all(map(lt, offsets, offsets[1:]))


def _by_topic(inputs: Mapping[str, Input]) -> dict[str, tuple[str, Input]]:
    by_topic = {source.topic: (channel, source) for channel, source in inputs.items()}
    if len(by_topic) < len(inputs):
        raise ConfigurationError(
            f"two inputs of a role read the same topic: {sorted(s.topic for s in inputs.values())}"
        )
    return by_topic
