"""The bus of a Kafka cluster, with librdkafka."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, Producer

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Outgoing, Subscription, TopicPartition
from streamfl.runtime.rights import Right
from streamfl_connectors.codecs import CODECS
from streamfl_connectors.kafka.cluster_bus import ClusterBus
from streamfl_connectors.kafka.hanging import HeldOffsets
from streamfl_connectors.kafka.topics import KafkaTopics
from streamfl_connectors.librdkafka.cluster import LibrdkafkaCluster
from streamfl_connectors.librdkafka.commits import LibrdkafkaCommits, checked_limits
from streamfl_connectors.librdkafka.failures import translated
from streamfl_connectors.librdkafka.log import LOG
from streamfl_connectors.librdkafka.logs import LibrdkafkaLogs
from streamfl_connectors.librdkafka.membership import LibrdkafkaMembership
from streamfl_connectors.librdkafka.writer import Writer, ready_writer
from streamfl_connectors.session import KafkaSession, transactional_id
from streamfl_connectors.tables import Tables

__all__ = ["LibrdkafkaBus"]

# The library reads tables in the background, so no call has to wait for it.
TABLE_SHARE = 0.0


class LibrdkafkaBus(ClusterBus):
    """A Kafka cluster; see :func:`streamfl_connectors.librdkafka.connect`.

    This library reads and writes. Admin requests go through kafka-python: an admin call of this library,
    2.16.1, ends the process by an assertion if the broker that it asks goes away, and by a segmentation fault
    on a cluster that has had no group yet.

    cluster: its address and options.
    """

    logs: LibrdkafkaLogs

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

    def members(self, group: str) -> int:
        """The members of a consumer group at present."""
        return self._asked.members(group)

    def missing_rights(self, rights: Sequence[Right]) -> list[Right]:
        """Those of these rights that this principal does not have, as far as the cluster reports."""
        return self._asked.missing_rights(rights)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The committed offsets of a consumer group."""
        return self._asked.committed(group)

    def session(self, subscription: Subscription) -> KafkaSession[LibrdkafkaMembership]:
        """Join a group; ConfigurationError names a topic that is missing or the ACL that would allow it."""
        most, tables = self.topics.of(subscription)
        name = transactional_id(subscription)
        with ExitStack() as made:
            commits = made.enter_context(
                closing(LibrdkafkaCommits(self.cluster, self.topics, name, subscription.group))
            )
            member = (
                LibrdkafkaMembership(self.cluster, self.logs, subscription, most)
                if subscription.inputs
                else None
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

    def undecided(self, topic: str) -> dict[int, tuple[int, int]]:
        """By partition, where the first undecided transaction began, and the end."""
        return self._asked.undecided(topic)

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
