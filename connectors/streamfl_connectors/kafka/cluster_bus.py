"""What a bus of a Kafka cluster answers from its topics and logs, whichever library reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from streamfl.contract.role import Record
from streamfl.runtime.bus import TopicSpec, TopicState
from streamfl_connectors.kafka.topics import KafkaTopics
from streamfl_connectors.partitioner import partition_of
from streamfl_connectors.reading import Logs

__all__ = ["ClusterBus"]


class ClusterBus:
    """A bus with these.

    topics: what is known about the cluster's topics.
    logs: the records in them.
    """

    topics: KafkaTopics
    logs: Logs

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name; ``error`` says what is wrong with one that cannot be used,
        ``hidden`` what is not known of one. BusUnavailable if the cluster is away."""
        return self.topics.describe(topics)

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet and wait until they can be used; existing ones stay as they
        are."""
        self.topics.create(topics)

    def partition_of(self, key: bytes, partitions: int) -> int:
        """The partition that a producer chooses for a record with this key, out of ``partitions``."""
        return partition_of(key, partitions)

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        """Committed records from the beginning of every partition to its present end, at most ``limit``."""
        return self.logs.read(topic, limit)

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        """The first and the last committed records of each partition, at most ``count`` of each."""
        return self.logs.peek(topic, partitions, count)

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end; Unreadable with the batch's
        bytes."""
        return self.logs.read_from(topic, partition, offset)

    def offsets(self, topic: str, at: float) -> dict[int, int]:
        """By partition, the offset of the first record of that time or later, or of the end."""
        return self.logs.offsets(topic, at)
