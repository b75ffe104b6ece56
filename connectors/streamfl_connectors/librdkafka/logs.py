"""Reads logs with librdkafka, and asks where they begin and end."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import methodcaller
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import TopicPartition as Place
from streamfl.runtime.bus import Unreadable
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_connectors.librdkafka.cluster import LibrdkafkaCluster
from streamfl_connectors.librdkafka.failures import UNREADABLE, told
from streamfl_connectors.reading import Logs, Reader, ask_until
from streamfl_connectors.silence import END_SECONDS, Silence

__all__ = ["LibrdkafkaLogs", "LibrdkafkaReader", "record_of", "unreadable"]

READER: dict[str, Any] = {
    # The library requires a group; without a subscription it never joins it.
    "group.id": "streamfl-reader",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # The only sign that only transaction markers are left before the end.
    "enable.partition.eof": True,
    # A partition that ends in such a marker is known to be read whole only after this wait.
    "fetch.wait.max.ms": 20,
}

# message.headers(), by a call that checks whether it failed. If a name is no text, the library returns a list
# with holes and sets an exception. Python's optimised form of a frequent call takes the list, and ends the
# process at the hole.
HEADERS = methodcaller("headers")


class LibrdkafkaLogs(Logs):
    """The logs of a cluster, read by consumers outside any group.

    asked: the same cluster with kafka-python, which finds where the logs begin and end.
    """

    def __init__(
        self,
        cluster: LibrdkafkaCluster,
        asked: KafkaBus,
        counts: Callable[[Iterable[str]], Mapping[str, int]],
    ) -> None:
        super().__init__(counts, cluster.connect_timeout)
        self._cluster = cluster
        self._asked = asked

    def reader(self) -> LibrdkafkaReader:
        """A new reader."""
        return LibrdkafkaReader(self._cluster, self)

    def ends(self, places: Iterable[Place], patience: float | None = None) -> dict[Place, int]:
        """Offset after the last committed record of each partition; BusUnavailable after ``patience`` seconds
        (connect_timeout)."""
        patience = self.connect_timeout if patience is None else patience
        return ask_until(patience, lambda left: self._asked.logs.ends(places, left))

    def ends_soon(self, places: Iterable[Place]) -> dict[Place, int]:
        """:meth:`ends` for a caller that must not wait for a cluster that is away."""
        return self.ends(places, END_SECONDS)

    def beginnings(self, places: Iterable[Place]) -> dict[Place, int]:
        """By partition, the offset of the first record that is still there."""
        return self.first_since(places, -math.inf)

    def first_since(self, places: Iterable[Place], at: float) -> dict[Place, int]:
        """By partition, the offset of the first record of that time or later; below 0 if there is none."""
        return ask_until(self.connect_timeout, lambda _left: self._asked.logs.first_since(places, at))

    def ends_of(self, epochs: Mapping[Place, int]) -> dict[Place, int]:
        """By partition, where the records of this epoch's leader and of earlier ones end. Unknown ends are
        left out."""
        return self._asked.logs.ends_of(epochs)

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end; Unreadable with the batch's
        bytes.

        Read with kafka-python: this library returns nothing of a record that it cannot read, and may end the
        process after a wrong checksum.
        """
        return self._asked.read_from(topic, partition, offset)


class LibrdkafkaReader(Reader):
    """A consumer without a group that reads the partitions that it is given."""

    def __init__(self, cluster: LibrdkafkaCluster, logs: LibrdkafkaLogs) -> None:
        super().__init__(cluster.connect_timeout)
        self._silence = Silence(logs)
        self.consumer: Consumer = cluster.make(
            Consumer, throttle_cb=lambda event: self._silence.begin(event.throttle_time), **READER
        )
        self._logs = logs
        self._positions: dict[Place, int] = {}
        self._unreadable: Unreadable | None = None

    def go_to(self, offsets: Mapping[Place, int | None]) -> None:
        """Read exactly these partitions, each from its offset. None: from the first record that is left."""
        self._positions = {place: offset or 0 for place, offset in offsets.items()}
        self.consumer.assign(
            [
                TopicPartition(*place, OFFSET_BEGINNING if offset is None else offset)
                for place, offset in offsets.items()
            ]
        )

    def positions(self) -> dict[Place, int | None]:
        """The next offset of each partition."""
        return dict(self._positions)

    def first(self, place: Place) -> int:
        """0: from an offset that is gone, reading begins at the first record that is still there."""
        return 0

    def ends(self, places: Collection[Place]) -> dict[Place, int]:
        """The offset after the last committed record of each partition."""
        return self._logs.ends(places)

    def take(self, timeout: float, most: int) -> list[Record]:
        """Records that came, at most ``most``, after waiting for at most ``timeout`` seconds."""
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
                # The records before it are returned first.
                self._unreadable = unreadable(message, self._positions[place])
                break
            # Readers use no group, so a missing right to it does not matter.
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                failure = told("reading", error, "", place[0] or "")
                if isinstance(failure, ConfigurationError):
                    raise failure
        return records

    def explain(self, place: Place, position: int | None) -> None:
        """Raise Unreadable, with kafka-python's reason, if kafka-python cannot read on there either."""
        next(self._logs.read_from(*place, position or 0), None)

    def close(self) -> None:
        """Close the consumer."""
        with suppress(KafkaException, RuntimeError):
            self.consumer.close()


def unreadable(message: Message, position: int) -> Unreadable:
    """The library's error in place of the records from ``position`` on."""
    error = message.error()
    assert error is not None
    return Unreadable(message.topic() or "", message.partition() or 0, position, error.str())


def record_of(message: Message) -> Record:
    """The library's message as a record; without headers if a header's name is not text, because the library
    cannot return them."""
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
        # A header may be null in a record that another program wrote.
        tuple([(name, content or b"") for name, content in headers]) if headers else (),
        message.timestamp()[1] / 1000,
    )
