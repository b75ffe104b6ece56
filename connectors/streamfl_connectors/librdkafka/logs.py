"""Reading logs with librdkafka, and asking where they begin and end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from operator import methodcaller
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from streamfl.role import ConfigurationError, Record
from streamfl.runtime.bus import BusUnavailable, Unreadable
from streamfl.runtime.bus import TopicPartition as Place
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_connectors.librdkafka.cluster import Cluster
from streamfl_connectors.librdkafka.failures import UNREADABLE, told
from streamfl_connectors.reading import Logs, Reader
from streamfl_connectors.silence import END_SECONDS, Silence

__all__ = ["LibrdkafkaLogs", "LibrdkafkaReader", "record_of", "unreadable"]

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

MOVED = {
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    # What it says of partitions that had no leader when it last asked, for as long as it does not ask again by itself: minutes.
    KafkaError._NOENT,
}
# message.headers(), by a call that looks whether it failed. The library gives a list with holes and an exception beside it where a
# name is no text; what Python makes of a call that is made often takes the list, and ends the process at the hole.
HEADERS = methodcaller("headers")


class LibrdkafkaLogs(Logs):
    """The logs of a cluster, read by consumers outside any group.

    admin: the admin client that is asked for the ends.
    """

    def __init__(
        self, cluster: Cluster, admin: AdminClient, counts: Callable[[Iterable[str]], Mapping[str, int]]
    ) -> None:
        super().__init__(counts, cluster.connect_timeout)
        self._cluster = cluster
        self._admin = admin

    def reader(self) -> LibrdkafkaReader:
        """A new reader."""
        return LibrdkafkaReader(self._cluster, self)

    def ends(self, places: Iterable[Place], patience: float | None = None) -> dict[Place, int]:
        """Offset after the last committed record of each partition; BusUnavailable after ``patience`` seconds (connect_timeout)."""
        return self._offsets(places, OffsetSpec.latest(), self.connect_timeout if patience is None else patience)

    def ends_soon(self, places: Iterable[Place]) -> dict[Place, int]:
        """The same for a caller who is not to wait for a cluster that is away."""
        return self.ends(places, END_SECONDS)

    def beginnings(self, places: Iterable[Place]) -> dict[Place, int]:
        """Offset of the first record that is still there."""
        return self._offsets(places, OffsetSpec.earliest(), self.connect_timeout)

    def first_since(self, places: Iterable[Place], at: float) -> dict[Place, int]:
        """By partition, the offset of the first record of that time or later; below 0 where there is none."""
        if at == -math.inf:
            return self.beginnings(places)
        wanted = {TopicPartition(*place): OffsetSpec.for_timestamp(max(0, int(at * 1000))) for place in places}
        try:
            futures = self._admin.list_offsets(wanted, request_timeout=self.connect_timeout) if wanted else {}
            return {(part.topic, part.partition): int(future.result().offset) for part, future in futures.items()}
        except KafkaException as error:
            raise told("looking for a time", error.args[0], "", *sorted({place.topic for place in wanted})) from error

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end; Unreadable with the batch's bytes.

        Read with kafka-python: this library gives nothing of what it cannot read, and may end the process after a wrong checksum.
        """
        with closing(KafkaBus(f"kafka://{self._cluster.servers}", self._cluster.entrance)) as bus:
            yield from bus.read_from(topic, partition, offset)

    def _offsets(self, places: Iterable[Place], which: OffsetSpec, patience: float) -> dict[Place, int]:
        wanted = {TopicPartition(*place): which for place in places}
        if not wanted:
            return {}
        deadline = time.monotonic() + patience
        while True:
            left = max(0.1, deadline - time.monotonic())
            futures = self._admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=left)
            try:
                found = {(part.topic, part.partition): int(future.result().offset) for part, future in futures.items()}
            except KafkaException as error:
                if error.args[0].code() not in MOVED or time.monotonic() > deadline:
                    topics = sorted({place.topic for place in wanted})
                    raise told("reading the ends of partitions", error.args[0], "", *topics) from error
            else:
                # Of a partition without a leader it says nothing but a number below 0.
                without = [place for place, offset in found.items() if offset < 0]
                if not without:
                    return found
                if time.monotonic() > deadline:
                    topic, partition = without[0]
                    raise BusUnavailable(f"reading the ends of partitions: {topic!r} partition {partition} has no leader")
            # The library asks with what it knew before the leader changed until it hears of the new one.
            for topic in {one.topic for one in wanted}:
                with suppress(KafkaException):
                    self._admin.list_topics(topic, timeout=1)
            time.sleep(0.1)


class LibrdkafkaReader(Reader):
    """A consumer in no group that reads the partitions that it is given."""

    def __init__(self, cluster: Cluster, logs: LibrdkafkaLogs) -> None:
        super().__init__(cluster.connect_timeout)
        self.consumer: Consumer = cluster.make(Consumer, **READER)
        self._logs = logs
        self._positions: dict[Place, int] = {}
        self._silence = Silence(logs)
        self._unreadable: Unreadable | None = None

    def go_to(self, offsets: Mapping[Place, int | None]) -> None:
        """Read exactly these partitions, each from its offset. None: from the first record that is left."""
        self._positions = {place: offset or 0 for place, offset in offsets.items()}
        self.consumer.assign(
            [TopicPartition(*place, OFFSET_BEGINNING if offset is None else offset) for place, offset in offsets.items()]
        )

    def positions(self) -> dict[Place, int | None]:
        """The next offset of each partition."""
        return dict(self._positions)

    def first(self, place: Place) -> int:
        """0: an offset that is gone stands for the first that is still there."""
        return 0

    def ends(self, places: Collection[Place]) -> dict[Place, int]:
        """The offset after the last committed record of each partition."""
        return self._logs.ends(places)

    def take(self, timeout: float, most: int) -> list[Record]:
        """What has come, after waiting for it at most ``timeout`` seconds; at most ``most`` records."""
        records: list[Record] = []
        if self._unreadable is not None:
            raise self._unreadable
        first = self.consumer.poll(timeout)
        if first is None:
            self._silence.check(self._positions)
            return records
        for message in (first, *self.consumer.consume(most - 1, 0)):
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
                failure = told("reading", error, "", place[0] or "")
                if isinstance(failure, ConfigurationError):
                    raise failure
        return records

    def explain(self, place: Place, position: int | None) -> None:
        """Raise Unreadable if kafka-python cannot read on there either, and says why."""
        next(self._logs.read_from(*place, position or 0), None)

    def close(self) -> None:
        """Close the consumer."""
        with suppress(KafkaException, RuntimeError):
            self.consumer.close()


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
