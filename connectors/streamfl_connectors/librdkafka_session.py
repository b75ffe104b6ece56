"""One worker's membership in a consumer group, with librdkafka.

The group shares out the first input only, with the cooperative assignor, so that kept partitions never stop; the other inputs'
partitions of the same numbers follow. A partition that the group gives is taken up by the poll after the one that reported it:
until then the library does not read it at all. It asks before it gives one up, in a callback within a poll; so no partition is
anybody else's before the poll that reports it as revoked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from streamfl.role import ConfigurationError, Record
from streamfl.runtime.bus import BusUnavailable, CommitRefused, Polled, Step, Subscription, Unreadable, new_transactional_id
from streamfl.runtime.bus import TopicPartition as Place
from streamfl_connectors.fence import fence
from streamfl_connectors.librdkafka_clients import Reader, Writer, record_of, unreadable
from streamfl_connectors.librdkafka_failures import UNREADABLE, told, translated
from streamfl_connectors.silence import END_SECONDS, Silence

if TYPE_CHECKING:
    from streamfl_connectors.librdkafka_bus import LibrdkafkaBus

__all__ = ["LibrdkafkaSession"]

# Bounds how long a table's record, or a change of assignment, waits behind an empty poll of the inputs.
TURN_SECONDS, LONGEST_TURN_SECONDS = 0.01, 0.1

# Offsets of topics that the group does not subscribe to expire (offsets.retention.minutes, a week), if nobody commits them anew.
REFRESH_SECONDS = 3600.0


class LibrdkafkaSession:
    """A consumer, a producer, and a reader of the tables."""

    def __init__(self, bus: LibrdkafkaBus, subscription: Subscription) -> None:
        self._bus = bus
        self._subscription = subscription
        self._transactional = subscription.guarantee == "exactly_once"
        self._settings: dict[str, Any] = {}
        if self._transactional:
            self._settings["transactional.id"] = subscription.transactional_id or new_transactional_id(subscription.group)
        counts = bus.require([*subscription.inputs, *subscription.tables])
        if len({counts[topic] for topic in subscription.inputs}) > 1:
            found = ", ".join(f"{topic}: {counts[topic]}" for topic in subscription.inputs)
            raise ConfigurationError(f"the input topics must have the same number of partitions ({found})")
        self._tables = [(topic, p) for topic in subscription.tables for p in range(counts[topic])]
        self._table_reader: Reader | None = None
        self._readers: list[Reader] = []
        self._consumer: Consumer | None = None
        self._writer: Writer | None = None
        self._group: Any = None
        # Partition numbers: the group's gift, what of it was taken away since the last poll, and what the caller knows of it.
        self._owned: set[int] = set()
        self._lost: set[int] = set()
        self._reported: set[int] = set()
        self._paused: set[Place] = set()
        # To be begun by the next poll, where the caller sought or else where the group left off.
        self._opening: dict[Place, int | None] = {}
        # What the library reads, and what of that stands still.
        self._active: set[Place] = set()
        self._halted: set[Place] = set()
        self._positions: dict[Place, int] = {}
        self._base: dict[Place, int] = {}
        self._origins: dict[Place, int] = {}
        self._last_lag: dict[Place, int] = {}
        self._refused = False
        self._held_tables: list[Record] = []
        self._refreshed = float("-inf")
        self._silence = Silence(bus)
        self._unreadable: Unreadable | None = None
        try:
            # Made now, so that a missing right on the transactional id stops the start and not the first commit.
            self._ready_writer({})
            if subscription.inputs:
                self._consumer = bus.make(
                    Consumer,
                    **{
                        "group.id": subscription.group,
                        "enable.auto.commit": False,
                        "enable.auto.offset.store": False,
                        "isolation.level": "read_committed",
                        "auto.offset.reset": subscription.auto_offset_reset,
                        "partition.assignment.strategy": "cooperative-sticky",
                        # The only sign of a position behind the markers that end transactions.
                        "enable.partition.eof": True,
                    },
                )
                self._consumer.subscribe([subscription.inputs[0]], on_assign=self._on_assigned, on_revoke=self._on_lost)
        except BaseException:
            self.close()
            raise

    def poll(self, timeout: float, max_records: int) -> Polled:
        """Wait at most ``timeout`` seconds for anything; the first poll takes what reading the tables whole takes."""
        polled = Polled(tables=self._held_tables)
        self._held_tables = []
        told_before = set(self._reported)
        try:
            with translated("polling", self._subscription.group):
                self._poll(polled, time.monotonic() + timeout, max_records)
        except BaseException:
            # What was already taken from the cluster must not get lost with the error: tables are kept for the next poll,
            # inputs are read again from the last commit.
            self._held_tables = polled.tables
            self._reported = told_before
            self._refused = True
            raise
        return polled

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        """All committed records of a partition from its beginning to its present end."""
        count = self._bus.require([topic])[topic]
        if partition >= count:
            raise ConfigurationError(
                f"topic {topic!r} has {count} partitions and needs at least {partition + 1}, as many as the inputs have"
            )
        reader = self._readers.pop() if self._readers else Reader(self._bus)
        try:
            yield from reader.read_whole([(topic, partition)])
        except BaseException:
            reader.close()
            raise
        self._readers.append(reader)

    def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset; waits until the cluster has decided every transaction that touches it."""
        with translated("reading the committed offset", self._subscription.group, topic):
            return self._committed([(topic, partition)], self._bus.transaction_timeout)[topic, partition]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on reading an assigned input partition at ``offset``."""
        self._halt([(topic, partition)])
        self._opening[topic, partition] = offset
        self._positions[topic, partition] = self._base[topic, partition] = offset

    def commit(self, step: Step) -> None:
        """Make the step visible, as one transaction under exactly_once.

        An answer that got lost may leave open whether the transaction was committed. That is reported as BusUnavailable; the
        next commit or poll first has the cluster decide it, so that what is restored then is the truth either way.
        """
        if not step:
            return
        try:
            if step.positions and (self._group is None or not {p for _, p in step.positions} <= self._reported):
                raise CommitRefused("the group has moved partitions since they were polled")
            limits = self._bus.check([*step.outputs, *step.changelog])
            with translated("committing", self._subscription.group):
                if self._transactional:
                    self._commit_transaction(step, limits)
                else:
                    self._commit_in_order(step, limits)
        except BaseException:
            self._refused = True
            raise
        self._base.update(step.positions)

    def pause(self, places: Iterable[Place]) -> None:
        """Bring no more records of exactly these input partitions until told otherwise."""
        self._paused = set(places)

    def lag(self) -> Mapping[Place, int]:
        """Records between the position and the end of each assigned input partition; control records count.

        Asks the cluster; while it does not answer, the last known figures are given.
        """
        positions = dict(self._positions)
        with suppress(BusUnavailable, ConfigurationError):
            ends = self._bus.ends(positions, END_SECONDS)
            self._last_lag = {one: ends[one] - position for one, position in positions.items() if one in ends}
        return self._last_lag

    def close(self) -> None:
        """Leave the group. Safe to call twice."""
        if self._consumer is not None:
            with suppress(KafkaException, RuntimeError):
                self._consumer.close()
        for reader in (self._table_reader, *self._readers):
            if reader is not None:
                reader.close()
        self._readers.clear()
        if self._writer is not None:
            self._writer.discard()
            self._writer = None

    # Joining and polling

    def _poll(self, polled: Polled, deadline: float, max_records: int) -> None:
        if self._unreadable is not None and not self._refused:
            raise self._unreadable
        if self._tables and self._table_reader is None:
            self._read_tables(polled)
        if self._refused:
            self._report_all_again(polled)
        elif self._consumer is not None:
            self._begin()
        while True:
            remaining = 0.0 if polled else max(0.0, deadline - time.monotonic())
            turn = min(remaining, TURN_SECONDS if self._tables else LONGEST_TURN_SECONDS)
            if self._table_reader is not None:
                polled.tables += self._table_reader.take(0.0 if self._consumer is not None else turn, max_records)
                turn = 0.0 if polled.tables else turn
            if self._consumer is not None:
                self._poll_inputs(self._consumer, polled, turn, max_records)
                if polled.assigned and self._table_reader is not None:
                    # Whoever had these partitions before may have seen, and used, more of the tables than this worker.
                    polled.tables += self._table_reader.read_to_end()
            elif not self._tables:
                time.sleep(turn)
            if polled or time.monotonic() >= deadline:
                return

    def _read_tables(self, polled: Polled) -> None:
        reader = Reader(self._bus)
        latest: dict[tuple[str, int, bytes | int], Record] = {}
        try:
            for record in reader.read_whole(self._tables):
                # As compaction would leave them, in the order of the last writing: the log may be far longer than the table.
                # A record without a key replaces nothing.
                key = (record.topic, record.partition, record.offset if record.key is None else record.key)
                latest.pop(key, None)
                latest[key] = record
        except BaseException:
            reader.close()
            raise
        polled.tables += latest.values()
        self._table_reader = reader

    def _on_assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned |= {partition.partition for partition in partitions}
        # Accepted, but not read yet: the caller restores and seeks first.
        consumer.incremental_assign([])

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = {partition.partition for partition in partitions}
        self._owned -= numbers
        self._lost |= numbers
        for one in [one for one in self._opening if one[1] in numbers]:
            del self._opening[one]
        going = {place for place in self._active if place[1] in numbers}
        self._active -= going
        self._halted -= going
        consumer.incremental_unassign([TopicPartition(*place) for place in going])

    def _report_all_again(self, polled: Polled) -> None:
        """After a refused step nothing that was read is certain: every partition is given back and begun anew."""
        if self._transactional:
            # Settles an undecided transaction of this id before anything is restored.
            self._ready_writer({})
        # What was read before it has to be read again first.
        self._unreadable = None
        polled.revoked = sorted(self._reported)
        self._reported.clear()
        self._refused = False
        self._halt(self._active)

    def _poll_inputs(self, consumer: Consumer, polled: Polled, timeout: float, max_records: int) -> None:
        self._flow(consumer)
        first = consumer.poll(timeout)
        if first is None:
            flowing = self._active - self._halted
            self._silence.check({place: position for place, position in self._positions.items() if place in flowing})
        else:
            messages = (first, *consumer.consume(max_records - 1, 0)) if max_records > 1 else (first,)
            self._take(messages, polled)
        # Every change of this member's partitions is noted by now: the generation vouches for no other than the caller is told.
        # A member that was put out has no name; its offsets would not be checked by the cluster.
        group = consumer.consumer_group_metadata()
        self._group = group if consumer.memberid() else None
        gone = {p for p in self._reported if p in self._lost or p not in self._owned}
        self._lost.clear()
        added = self._owned - (self._reported - gone)
        if gone or added:
            polled.revoked = sorted({*polled.revoked, *gone})
            polled.assigned = sorted(added)
            polled.records = [record for record in polled.records if record.partition in self._reported - gone]
            self._reported = set(self._owned)
            for one in [one for one in self._positions if one[1] not in self._owned or one[1] in added]:
                self._positions.pop(one, None)
                self._base.pop(one, None)
                self._last_lag.pop(one, None)
            self._opening |= {(topic, p): None for topic in self._subscription.inputs for p in added}

    def _take(self, messages: Iterable[Message], polled: Polled) -> None:
        flowing = self._active - self._halted
        for message in messages:
            error, place = message.error(), (message.topic(), message.partition())
            if error is None:
                if place in flowing:
                    record = record_of(message)
                    polled.records.append(record)
                    self._positions[place] = record.offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                if place in flowing:
                    self._positions[place] = message.offset()
            elif error.code() in UNREADABLE:
                if place in flowing:
                    # What was read before it comes first, and what comes after it is not wanted any more.
                    self._unreadable = unreadable(message, self._positions[place])
                    return
            else:
                failure = told("polling", error, self._subscription.group, place[0] or "")
                if isinstance(failure, ConfigurationError):
                    raise failure

    # Positions

    def _begin(self) -> None:
        """Decide where the partitions of the last report begin: where the caller sought, else the committed offset, else the
        reset.
        """
        unsought = [place for place, offset in self._opening.items() if offset is None]
        found = self._committed_by_now(unsought)
        fresh = [place for place in unsought if place in found and found[place] is None and place not in self._origins]
        if fresh and self._subscription.auto_offset_reset == "error":
            topic, partition = fresh[0]
            raise ConfigurationError(
                f"group {self._subscription.group!r} has no committed offset on {topic!r} partition {partition} and "
                "bus.auto_offset_reset = 'error': choose 'earliest' or 'latest', or restore the group's offsets"
            )
        # Nobody has committed: what was read before the partition was given back is read again. 'latest' asked a second time
        # would pass over it.
        latest = self._subscription.auto_offset_reset == "latest"
        self._origins |= self._bus.ends(fresh) if latest else self._bus.beginnings(fresh)
        for place, sought in list(self._opening.items()):
            if sought is None and place not in found:
                continue
            target = sought if sought is not None else found[place]
            if target is None:
                target = self._origins[place]
            self._origins.setdefault(place, target)
            self._positions[place] = self._base[place] = target
            del self._opening[place]

    def _committed_by_now(self, places: list[Place]) -> dict[Place, int | None]:
        """Committed offsets, without those that an earlier owner's transaction leaves undecided: the others need not wait."""
        if not places:
            return {}
        with suppress(KafkaException):
            return self._committed(places, 0.3)
        found: dict[Place, int | None] = {}
        deadline = time.monotonic() + 1
        for place in places:
            try:
                found |= self._committed([place], 0.3)
            except KafkaException as error:
                if not error.args[0].retriable() and error.args[0].code() != KafkaError._TIMED_OUT:
                    raise
            if time.monotonic() > deadline:
                break
        return found

    def _committed(self, places: list[Place], timeout: float) -> dict[Place, int | None]:
        assert self._consumer is not None
        found: dict[Place, int | None] = {}
        for part in self._consumer.committed([TopicPartition(*place) for place in places], timeout=timeout):
            if part.error is not None:
                raise KafkaException(part.error)
            found[part.topic, part.partition] = part.offset if part.offset >= 0 else None
        return found

    def _flow(self, consumer: Consumer) -> None:
        """Have the library read exactly what is to be read."""
        wanted = {
            (topic, p)
            for topic in self._subscription.inputs
            for p in self._reported
            if (topic, p) in self._positions and (topic, p) not in self._opening and (topic, p) not in self._paused
        }
        self._halt(self._active - wanted)
        if fresh := wanted - self._active:
            consumer.incremental_assign([TopicPartition(*place, self._positions[place]) for place in sorted(fresh)])
            consumer.resume([TopicPartition(*place) for place in fresh])
            self._active |= fresh
        for place in self._halted & wanted:
            try:
                # Where the caller is: what the library had fetched, and when it paused, does not matter.
                consumer.seek(TopicPartition(*place, self._positions[place]))
            except KafkaException as error:
                if error.args[0].code() in (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS):
                    continue
                raise
            consumer.resume([TopicPartition(*place)])
            self._halted.discard(place)

    def _halt(self, places: Iterable[Place]) -> None:
        stopping = self._active.intersection(places) - self._halted
        if stopping and self._consumer is not None:
            self._consumer.pause([TopicPartition(*place) for place in stopping])
            self._halted |= stopping

    # Committing

    def _ready_writer(self, limits: Mapping[str, int]) -> Writer:
        """The writer; a NEW one when the last was fenced or broke, because such a producer cannot be revived."""
        present, self._writer = self._writer, None
        self._writer = self._bus.writer(present, limits, **self._settings)
        return self._writer

    def _commit_transaction(self, step: Step, limits: Mapping[str, int]) -> None:
        writer = self._ready_writer(limits)
        # One time for all of it: added up, the calls' own would outlast what a worker may take for a step.
        deadline = time.monotonic() + self._bus.write_timeout

        def left() -> float:
            return max(0.1, deadline - time.monotonic())

        ending = False
        try:
            writer.client.begin_transaction()
            writer.send(step.outputs, left())
            writer.send(step.changelog, left())
            held = self._reported if self._group is not None else ()
            positions = {**fence(step, self._base, held), **self._with_followers(step.positions)}
            if positions:
                offsets = [TopicPartition(*place, offset) for place, offset in positions.items()]
                # While the records are on their way.
                writer.send_offsets(offsets, self._group, left())
            writer.settle(left())
            ending = True
            writer.client.commit_transaction(left())
        except BaseException:
            try:
                writer.blame()
                with translated("committing", self._subscription.group):
                    raise
            except (CommitRefused, ConfigurationError):
                if ending:
                    # Its EndTxn may be under way: an abort in the same epoch could be overtaken by it.
                    self._replace(writer)
                else:
                    self._abort(writer)
                raise
            except BaseException:
                # The library would abort this transaction quietly, and wait for ever in the next one for the answer that did not
                # come to this one.
                self._replace(writer)
                raise
        if not writer.ended_for_certain():
            # Committed it is; but what the library sent first may come late, and no transaction of its epoch may be there then.
            self._replace(writer)

    def _with_followers(self, positions: Mapping[Place, int]) -> dict[Place, int]:
        if not positions or len(self._subscription.inputs) == 1 or time.monotonic() - self._refreshed < REFRESH_SECONDS:
            return dict(positions)
        self._refreshed = time.monotonic()
        return {**{place: offset for place, offset in self._base.items() if place[1] in self._reported}, **positions}

    def _abort(self, writer: Writer) -> None:
        try:
            writer.client.abort_transaction(10)
        except KafkaException:
            self._replace(writer)
            return
        writer.forget()
        if not writer.ended_for_certain():
            self._replace(writer)

    def _replace(self, writer: Writer) -> None:
        """The next producer of this id has the cluster decide what this one leaves undecided."""
        self._writer = None
        writer.discard()

    def _commit_in_order(self, step: Step, limits: Mapping[str, int]) -> None:
        writer = self._ready_writer(limits)
        try:
            for records in (step.outputs, step.changelog):
                writer.send(records, self._bus.write_timeout)
                writer.settle(self._bus.write_timeout)
        except BaseException:
            self._replace(writer)
            raise
        if step.positions and self._consumer is not None:
            offsets = [TopicPartition(*place, offset) for place, offset in self._with_followers(step.positions).items()]
            for part in self._consumer.commit(offsets=offsets, asynchronous=False):
                if part.error is not None:
                    raise KafkaException(part.error)
