"""Reads logs with kafka-python, and asks where they end."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from kafka import IsolationLevel, KafkaConsumer, OffsetSpec
from kafka import TopicPartition as KafkaPartition
from kafka import errors as kafka_errors
from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

from streamfl.contract.role import Record
from streamfl.runtime.bus import TopicPartition, Unreadable
from streamfl_connectors.kafka.batches import gives_nothing
from streamfl_connectors.kafka.clients import PendingFetches, answered, close_consumer
from streamfl_connectors.kafka.cluster import KafkaCluster
from streamfl_connectors.kafka.failures import translated
from streamfl_connectors.kafka.options import CONSUMER_DEFAULTS
from streamfl_connectors.reading import Logs, Reader, Readers, ask_until

__all__ = ["KafkaLogs", "KafkaReader", "record_of"]

# Time for the answer of a cluster that is there about the ends of partitions.
END_SECONDS = 5.0

_OfTopic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

READER: dict[str, Any] = {
    "group_id": None,
    "group_instance_id": None,
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    "auto_offset_reset": "earliest",
    "allow_auto_create_topics": False,
}


class KafkaLogs(Logs):
    """The logs of a cluster, read by consumers outside any group.

    admin: the admin client that is asked for the ends.
    """

    def __init__(
        self, cluster: KafkaCluster, admin: Any, counts: Callable[[Iterable[str]], Mapping[str, int]]
    ) -> None:
        super().__init__(counts, cluster.connect_timeout)
        self._cluster = cluster
        self._admin = admin
        # For reading from an offset, which `streamfl top` asks for each partition at each look.
        self._readers = Readers(self.reader)

    def close(self) -> None:
        """Close the readers that are kept."""
        self._readers.close()

    def reader(self) -> KafkaReader:
        """A new reader."""
        return KafkaReader(self._cluster)

    def ends(
        self, places: Iterable[TopicPartition], patience: float | None = None
    ) -> dict[TopicPartition, int]:
        """Offset after the last committed record of each partition; BusUnavailable after ``patience`` seconds
        (5)."""
        wanted = {KafkaPartition(*place): OffsetSpec.LATEST for place in places}
        if not wanted:
            return {}
        seconds = END_SECONDS if patience is None else patience
        with translated("reading the ends of partitions"):
            found = self._ask(wanted, IsolationLevel.READ_COMMITTED, seconds)
        return {(place.topic, place.partition): int(offset.offset) for place, offset in found.items()}

    def first_since(self, places: Iterable[TopicPartition], at: float) -> dict[TopicPartition, int]:
        """By partition, the offset of the first record of that time or later; below 0 if there is none."""
        wanted = {
            KafkaPartition(*place): OffsetSpec.EARLIEST if at == -math.inf else max(0, int(at * 1000))
            for place in places
        }
        with translated("looking for a time"):
            found = self._ask(wanted, IsolationLevel.READ_UNCOMMITTED, self.connect_timeout) if wanted else {}
        return {(place.topic, place.partition): int(offset.offset) for place, offset in found.items()}

    def ends_of(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """By partition, where the records of this epoch's leader and of earlier ones end. Unknown ends are
        left out."""
        wanted = {KafkaPartition(*place): epoch for place, epoch in epochs.items()}

        def ask(left: float) -> dict[TopicPartition, int]:
            with translated("looking where a leader's records end"):
                found: dict[TopicPartition, int] = answered(self._admin, left, _ends_of, self._admin, wanted)
            return found

        return ask_until(self.connect_timeout, ask)

    def undecided(self, topic: str) -> dict[int, tuple[int, int]]:
        """By partition, where the first undecided transaction began, and the end."""
        stable = self.offsets(topic, math.inf)
        wanted = {KafkaPartition(topic, partition): OffsetSpec.LATEST for partition in stable}
        found = self._ask(wanted, IsolationLevel.READ_UNCOMMITTED, self.connect_timeout)
        ends = {place.partition: int(offset.offset) for place, offset in found.items()}
        # The end is asked later, so in a partition without such a transaction it may be further on, if
        # records came meanwhile.
        return {
            partition: (offset, ends[partition])
            for partition, offset in stable.items()
            if offset < ends[partition]
        }

    def _ask(self, wanted: Mapping[Any, Any], isolation: IsolationLevel, seconds: float) -> Mapping[Any, Any]:
        ask = self._admin._async_list_partition_offsets
        found: Mapping[Any, Any] = answered(self._admin, seconds, ask, wanted, isolation, int(seconds * 1000))
        return found

    def ends_soon(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """:meth:`ends` for a caller that must not wait for a cluster that is away."""
        return self.ends(places)

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end; Unreadable with the batch's
        bytes."""
        self.check_places(topic, [partition])
        end = self.ends([(topic, partition)])[topic, partition]
        with self._readers.one() as reader, translated("reading"):
            reader.go_to({(topic, partition): offset})
            try:
                yield from reader.read_to_end()
            except Unreadable as failure:
                # A damaged header may say anything: reading passes over no more than is certainly there.
                if failure.following is None or not failure.offset < failure.following <= end:
                    failure.following = failure.offset + 1
                raise


class KafkaReader(Reader):
    """A consumer without a group that reads the partitions that it is given."""

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__(cluster.connect_timeout)
        self.consumer = cluster.make(KafkaConsumer, CONSUMER_DEFAULTS, **READER)
        self._milliseconds = int(cluster.connect_timeout * 1000)
        self._fetches = PendingFetches(cluster.connect_timeout)

    def go_to(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Read exactly these partitions, each from its offset. None: from the first record that is left."""
        self.consumer.assign([KafkaPartition(*place) for place in offsets])
        for place, offset in offsets.items():
            if offset is None:
                self.consumer.seek_to_beginning(KafkaPartition(*place))
            else:
                self.consumer.seek(KafkaPartition(*place), offset)

    def positions(self) -> dict[TopicPartition, int | None]:
        """The next offset of each partition; None if it is not known yet."""
        return {
            (place.topic, place.partition): self.consumer.position(place, timeout_ms=self._milliseconds)
            for place in self.consumer.assignment()
        }

    def first(self, place: TopicPartition) -> int:
        """The offset of the first record that is left."""
        partition = KafkaPartition(*place)
        return int(self.consumer.beginning_offsets([partition], timeout_ms=self._milliseconds)[partition])

    def ends(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last committed record of each partition."""
        found = self.consumer.end_offsets(
            [KafkaPartition(*place) for place in places], timeout_ms=self._milliseconds
        )
        return {(place.topic, place.partition): int(offset) for place, offset in found.items()}

    def take(self, timeout: float, most: int) -> list[Record]:
        """Records that came, at most ``most``, after waiting for at most ``timeout`` seconds."""
        batches = self.consumer.poll(timeout_ms=max(0, round(timeout * 1000)), max_records=most)
        return [record_of(found) for batch in batches.values() for found in batch]

    def explain(self, place: TopicPartition, position: int | None) -> None:
        """Raise Unreadable if the broker returns no records of the partition, though the partition goes
        on."""
        if failure := gives_nothing(self.consumer, KafkaPartition(*place)):
            raise failure

    def check(self) -> None:
        """Raise BusUnavailable if a fetch is never answered."""
        self._fetches.check(self.consumer)

    def close(self) -> None:
        """Close the consumer."""
        close_consumer(self.consumer)


async def _ends_of(admin: Any, epochs: Mapping[Any, int]) -> dict[TopicPartition, int]:
    """Asks leaders for the ends of epochs. The library's consumer asks this for itself; its admin client does
    not."""
    found: dict[TopicPartition, int] = {}
    for leader, places in (await admin._async_get_leader_for_partitions(set(epochs))).items():
        topics: dict[str, list[Any]] = {}
        for place in places:
            asked = _OfTopic.OffsetForLeaderPartition(
                partition=place.partition, current_leader_epoch=-1, leader_epoch=epochs[place]
            )
            topics.setdefault(place.topic, []).append(asked)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.items()))
        for topic in (await admin._manager.send(request, node_id=leader)).topics:
            for one in topic.partitions:
                if one.error_code:
                    raise kafka_errors.for_code(one.error_code)()
                if one.end_offset >= 0:
                    found[topic.topic, one.partition] = one.end_offset
    return found


def record_of(found: Any) -> Record:
    """The library's record as streamfl's."""
    return Record(
        found.topic,
        found.partition,
        found.offset,
        found.key,
        found.value,
        # A header may be null in a record that another program wrote; the client cannot write such a header.
        tuple([(name, content or b"") for name, content in found.headers]) if found.headers else (),
        found.timestamp / 1000,
    )
