"""A reader and a writer on librdkafka: what the bus and its sessions read and write topics with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Any, Protocol

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Consumer as LibraryConsumer
from confluent_kafka import Producer as LibraryProducer

from streamfl.role import ConfigurationError, Record
from streamfl.runtime.bus import BusUnavailable, Outgoing, Unreadable
from streamfl.runtime.bus import TopicPartition as Place
from streamfl_connectors.librdkafka_failures import UNREADABLE, told
from streamfl_connectors.librdkafka_log import EndTxnAnswers
from streamfl_connectors.silence import END_SECONDS, Silence

__all__ = ["END_SECONDS", "Cluster", "Reader", "Writer", "record_of", "unreadable"]

READER: dict[str, Any] = {
    # The library wants one; without a subscription it is never joined.
    "group.id": "streamfl-reader",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # The only sign that what is left before the end are markers of transactions.
    "enable.partition.eof": True,
    # A partition that ends in such a marker is known to be read whole only after this wait.
    "fetch.wait.max.ms": 20,
}

# A batch's header and the lengths and deltas of a record, at most; a header's lengths, at most.
LARGEST_FRAME, LARGEST_HEADER_FRAME = 100, 10

# message.headers(), by a call that looks whether it failed. The library gives a list with holes and an exception beside it where a
# name is no text; what Python makes of a call that is made often takes the list, and ends the process at the hole.
HEADERS = methodcaller("headers")

# Beyond the time that a call of the library was given.
GRACE_SECONDS = 2.0

# For the answer of a cluster that is there to an abort.
CLOSE_SECONDS = 5.0


class Cluster(Protocol):
    """What readers and writers need of the bus."""

    connect_timeout: float

    def make(self, client: Callable[[dict[str, Any]], Any], **settings: Any) -> Any:
        """A client of the library with this bus's options."""

    def ends(self, places: Iterable[Place], patience: float | None = None) -> dict[Place, int]:
        """Offset after the last committed record of each partition; BusUnavailable after ``patience`` seconds."""

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records from ``offset`` to the present end; Unreadable where the library may say nothing."""


class Reader:
    """Reads committed records of given partitions, in no group."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client: LibraryConsumer = cluster.make(LibraryConsumer, **READER)
        self._positions: dict[Place, int] = {}
        self._silence = Silence(cluster)
        self._unreadable: Unreadable | None = None

    def read_whole(self, places: Sequence[Place]) -> Iterator[Record]:
        """All committed records of the partitions up to their ends as of now; the reader then stands there.

        BusUnavailable if nothing moves for ``connect_timeout`` seconds; Unreadable at what cannot be read.
        """
        self._positions = dict.fromkeys(places, 0)
        self._client.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        yield from self.read_to_end()

    def read_edges(self, place: Place, count: int) -> list[Record]:
        """The first and the last committed records of a partition, ``count`` of either at most, in order and each once.

        Of the last there are fewer where markers of transactions lie among them. BusUnavailable as :meth:`read_whole`.
        """
        end = self._cluster.ends([place])[place]
        found: dict[int, Record] = {}
        # An offset that is gone stands for the first that is still there.
        for start, most in ((0, count), (max(0, end - count), end)):
            self._positions = {place: start}
            self._client.assign([TopicPartition(*place, start)])
            taken = 0
            moved = time.monotonic()
            while taken < most and (position := self._positions[place]) < end:
                for record in self.take(0.2, count):
                    if taken < most and record.offset < end:
                        found[record.offset] = record
                        taken += 1
                if self._positions[place] != position:
                    moved = time.monotonic()
                elif time.monotonic() - moved > self._cluster.connect_timeout:
                    raise BusUnavailable(f"nothing could be read from {place[0]!r} for {self._cluster.connect_timeout:g} s")
        return [found[offset] for offset in sorted(found)]

    def read_to_end(self) -> Iterator[Record]:
        """What is left to read up to the ends as of now; errors as :meth:`read_whole`."""
        ends = self._cluster.ends(self._positions)
        moved = time.monotonic()
        while any(self._positions[place] < end for place, end in ends.items()):
            before = dict(self._positions)
            yield from self.take(0.2, 4000)
            if self._positions != before:
                moved = time.monotonic()
            elif time.monotonic() - moved > self._cluster.connect_timeout:
                for place in (place for place, end in ends.items() if self._positions[place] < end):
                    next(self._cluster.read_from(*place, self._positions[place]), None)
                raise BusUnavailable(f"nothing could be read from {next(iter(ends))[0]!r} for {self._cluster.connect_timeout:g} s")

    def take(self, timeout: float, most: int) -> list[Record]:
        """What has come, after waiting for it at most ``timeout`` seconds; at most ``most`` records."""
        records: list[Record] = []
        if self._unreadable is not None:
            raise self._unreadable
        first = self._client.poll(timeout)
        if first is None:
            self._silence.check(self._positions)
            return records
        for message in (first, *self._client.consume(most - 1, 0)):
            error, place = message.error(), (message.topic(), message.partition())
            if error is None:
                records.append(record_of(message))
                self._positions[place] = records[-1].offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._positions[place] = message.offset()
            elif error.code() in UNREADABLE:
                # What was read before it comes first.
                self._unreadable = unreadable(message, self._positions[place])
                break
            # Readers use no group, and one that is not allowed does not matter.
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                failure = told("reading", error, topic=place[0] or "")
                if isinstance(failure, ConfigurationError):
                    raise failure
        return records

    def close(self) -> None:
        """Give back what the reader holds."""
        with suppress(KafkaException, RuntimeError):
            self._client.close()


class Writer:
    """A producer, and which of its records failed: the library tells that by callbacks."""

    def __init__(self, cluster: Cluster, batch_bytes: int, settings: Mapping[str, Any]) -> None:
        self.batch_bytes = batch_bytes
        self._failed: list[tuple[KafkaError, str]] = []
        self._answers = EndTxnAnswers()
        heard = {"logger": self._answers, "debug": EndTxnAnswers.CONTEXT} if "transactional.id" in settings else {}
        self.client: LibraryProducer = cluster.make(
            LibraryProducer,
            **{
                "acks": "all",
                "enable.idempotence": True,
                # As Java's clients choose it, and kafka-python.
                "partitioner": "murmur2_random",
                "batch.size": batch_bytes,
                # A call into Python for each record that was written well would cost more than writing it.
                "delivery.report.only.error": True,
                "on_delivery": self._note,
                **heard,
                **settings,
            },
        )

    def send(self, records: Iterable[Outgoing], timeout: float) -> None:
        """Hand records over; BusUnavailable if the library's bounded queue stays full for ``timeout`` seconds."""
        produce = self.client.produce
        for record in records:
            partition = -1 if record.partition is None else record.partition
            try:
                if record.headers:
                    produce(record.topic, record.value, record.key, partition, headers=list(record.headers))
                else:
                    produce(record.topic, record.value, record.key, partition)
            except BufferError:
                self._send_when_there_is_room(record, partition, time.monotonic() + timeout)
            except KafkaException as error:
                raise told("writing", error.args[0], topic=record.topic) from error

    def settle(self, timeout: float) -> None:
        """Wait until everything is acknowledged; raises what the first failed record failed with."""
        left = self.client.flush(timeout)
        self.blame()
        if left:
            raise BusUnavailable(f"writing: {left} records were not acknowledged within {timeout:g} s")

    def send_offsets(self, offsets: list[TopicPartition], group: Any, timeout: float) -> None:
        """Make offsets part of the transaction; BusUnavailable if that takes longer.

        When a broker goes away in it the library's own call may not come back at all, whatever time it was given. It is left
        behind then, with its thread; the writer has to be replaced.
        """
        raised: list[BaseException | None] = []

        def send() -> None:
            try:
                self.client.send_offsets_to_transaction(offsets, group, timeout)
                raised.append(None)
            except BaseException as error:
                raised.append(error)

        sending = threading.Thread(target=send, name="sending offsets", daemon=True)
        sending.start()
        sending.join(timeout + GRACE_SECONDS)
        if not raised:
            raise BusUnavailable(f"committing: the offsets were not taken within {timeout:g} s")
        if raised[0] is not None:
            raise raised[0]

    def ended_for_certain(self) -> bool:
        """Whether the transaction that the library has just committed or aborted was ended by one EndTxn, which was answered.

        If not, another may still be under way, and no transaction may begin in this writer's epoch: it has to be replaced.
        """
        self.client.poll(0)
        return self._answers.only_success()

    def blame(self) -> None:
        """Raise what the record failed with that was to blame, if one was."""
        if self._failed:
            # The others in its batch or its transaction fail with it, by errors that say nothing.
            failures = [told("writing", error, topic=topic) for error, topic in self._failed]
            raise next((failure for failure in failures if isinstance(failure, ConfigurationError)), failures[0])

    def forget(self) -> None:
        """Forget failures: their transaction was aborted."""
        self._failed.clear()

    def discard(self) -> None:
        """Close it for good, whatever state it is in, in bounded time."""
        # Closing aborts an open transaction, and waits without end for a cluster that is away; the thread ends when it is back.
        closing = threading.Thread(target=self._close, name="closing a producer", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    def _close(self) -> None:
        # A SystemError is what becomes of its warning that nothing could be aborted where warnings are errors.
        with suppress(KafkaException, RuntimeError, SystemError):
            self.client.purge()
            self.client.flush(0)
            self.client.close()

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append((error, message.topic() or ""))

    def _send_when_there_is_room(self, record: Outgoing, partition: int, deadline: float) -> None:
        while True:
            self.client.poll(0.05)
            try:
                self.client.produce(record.topic, record.value, record.key, partition, headers=list(record.headers))
                return
            except BufferError as error:
                if time.monotonic() > deadline:
                    raise BusUnavailable("writing: the queue of records that wait for the cluster is full") from error


def check(records: Iterable[Outgoing], limits: Mapping[str, int], counts: Mapping[str, int]) -> None:
    """ConfigurationError if a record is empty, or larger than its topic allows, or its partition does not exist.

    limits: bytes, counts: partitions, both by topic. Sizes are taken up to 100 bytes too large, and uncompressed.
    """
    for record in records:
        limit = limits[record.topic]
        size = LARGEST_FRAME + len(record.key or b"") + len(record.value or b"")
        if record.headers:
            size += sum(LARGEST_HEADER_FRAME + len(name.encode()) + len(content) for name, content in record.headers)
        if size > limit:
            raise ConfigurationError(
                f"a record for topic {record.topic!r} is too large: raise max.message.bytes of the topic and "
                f"bus.options 'message.max.bytes' (it takes up to {size} bytes, {limit} are allowed)"
            )
        if record.key is None and record.value is None:
            raise ConfigurationError(f"a record for topic {record.topic!r} has neither a key nor a value")
        if record.partition is not None and not 0 <= record.partition < counts[record.topic]:
            raise ConfigurationError(
                f"topic {record.topic!r} has {counts[record.topic]} partitions, there is no partition {record.partition}"
            )


def unreadable(message: Message, position: int) -> Unreadable:
    """What the library says instead of the records from ``position`` on."""
    error = message.error()
    assert error is not None
    return Unreadable(message.topic() or "", message.partition() or 0, position, error.str())


def record_of(message: Message) -> Record:
    """The library's message as a record; without headers, if a name among them is not text: it takes any, and cannot give them."""
    try:
        headers = HEADERS(message)
    except SystemError:
        headers = None
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        # A header may be null in a record that somebody else wrote.
        tuple([(name, content or b"") for name, content in headers]) if headers else (),
        message.timestamp()[1] / 1000,
    )
