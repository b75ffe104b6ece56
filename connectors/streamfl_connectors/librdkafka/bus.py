"""The bus of a Kafka cluster, with librdkafka."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, Producer

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import Outgoing, Subscription, TopicPartition, TopicSpec, TopicState
from streamfl.runtime.rights import Right
from streamfl_connectors.codecs import CODECS
from streamfl_connectors.kafka.hanging import HeldOffsets
from streamfl_connectors.kafka.topics import KafkaTopics
from streamfl_connectors.librdkafka.cluster import LibrdkafkaCluster
from streamfl_connectors.librdkafka.commits import LibrdkafkaCommits, checked_limits
from streamfl_connectors.librdkafka.failures import translated
from streamfl_connectors.librdkafka.log import LOG
from streamfl_connectors.librdkafka.logs import LibrdkafkaLogs
from streamfl_connectors.librdkafka.membership import LibrdkafkaMembership
from streamfl_connectors.librdkafka.writer import Writer, ready_writer
from streamfl_connectors.partitioner import partition_of
from streamfl_connectors.session import KafkaSession, transactional_id
from streamfl_connectors.tables import Tables

__all__ = ["LibrdkafkaBus"]

# The library reads tables in the background, so no call has to wait for it.
TABLE_SHARE = 0.0


class LibrdkafkaBus:
    """A Kafka cluster; see :func:`streamfl_connectors.librdkafka.connect`.

    This library reads and writes. Admin requests go through kafka-python: an admin call of this library,
    2.16.1, ends the process by an assertion if the broker that it asks goes away, and by a segmentation fault
    on a cluster that has had no group yet.

    cluster: its address and options.
    topics: what is known about its topics.
    logs: the records in them.
    """

    def __init__(self, servers: Sequence[str], options: Mapping[str, Any]) -> None:
        self.cluster = LibrdkafkaCluster(servers, options)
        self._writer: Writer | None = None
        self._lock = threading.Lock()
        self.codecs()
        self.cluster.reach()
        self._asked = self.cluster.asked()
        self.topics = KafkaTopics(
            self._asked.admin, self.cluster.largest_record, self.cluster.connect_timeout
        )
        self.logs = LibrdkafkaLogs(self.cluster, self._asked, self.topics.require)

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name; ``error`` says what is wrong with one that cannot be used,
        ``hidden`` what is not known of one."""
        return self.topics.describe(topics)

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet and wait until they can be used; existing ones stay as they
        are."""
        self.topics.create(topics)

    def members(self, group: str) -> int:
        """The members of a consumer group at present."""
        return self._asked.members(group)

    def missing(self, rights: Sequence[Right]) -> list[Right]:
        """Those of these rights that this principal does not have, as far as the cluster reports."""
        return self._asked.missing(rights)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The committed offsets of a consumer group."""
        return self._asked.committed(group)

    def session(self, subscription: Subscription) -> KafkaSession[LibrdkafkaMembership]:
        """Join a group; ConfigurationError names a topic that is missing or the ACL that would allow it."""
        tables = self.topics.tables(subscription)
        name = transactional_id(subscription)
        with ExitStack() as made:
            commits = made.enter_context(
                closing(LibrdkafkaCommits(self.cluster, self.topics, name, subscription.group))
            )
            member = (
                LibrdkafkaMembership(self.cluster, self.logs, subscription) if subscription.inputs else None
            )
            made.pop_all()
        return KafkaSession(
            self.logs,
            Tables(self.logs.reader, tables) if tables else None,
            TABLE_SHARE,
            member,
            commits,
            self.cluster.transaction_timeout,
            partial(translated, group=subscription.group),
            HeldOffsets(self._asked.cluster, subscription.group).release,
        )

    def partition_of(self, key: bytes, partitions: int) -> int:
        """The partition that a producer chooses for a record with this key, out of ``partitions``."""
        return partition_of(key, partitions)

    def write(self, records: Sequence[Outgoing]) -> None:
        """Write records and wait until they are durable. On an error some of them may have been written."""
        limits = checked_limits(self.topics, records)
        timeout = self.cluster.write_timeout
        with self._lock, translated("writing", topics=limits):
            try:
                self._writer = ready_writer(self.cluster, self._writer, limits)
                self._writer.send(records, timeout)
                self._writer.settle(timeout)
            except BaseException:
                self._discard_writer()
                raise

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        """Committed records from the beginning of every partition to its present end, at most ``limit``."""
        return self.logs.read(topic, limit)

    def undecided(self, topic: str) -> dict[int, tuple[int, int]]:
        """By partition, where the first undecided transaction began, and the end."""
        return self._asked.undecided(topic)

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

    def codecs(self) -> Sequence[str]:
        """The compression codecs that the library was built with; a new client asks for each."""
        names = [name for name, _, _ in CODECS.values()]
        for name in names:
            try:
                Producer({"compression.type": name, "logger": LOG})
            except KafkaException as error:
                raise ConfigurationError(
                    f"this librdkafka was built without the compression {name}, and any producer may choose "
                    "it: install confluent-kafka's own wheel, pip install --force-reinstall --no-cache-dir "
                    "confluent-kafka"
                ) from error
        return names

    def close(self) -> None:
        """Close the clients of the bus. Sessions are closed separately."""
        with self._lock:
            self._discard_writer()
        self._asked.close()

    def _discard_writer(self) -> None:
        if self._writer is not None:
            self._writer.discard()
            self._writer = None
