"""The bus of a Kafka cluster, with kafka-python.

A commit under ``exactly_once`` is one transaction: outputs, changelog and consumed offsets. The client
library has several ways to hang or to lose records silently. Comments here and in
:mod:`streamfl_connectors.kafka.clients` say what is done about each.
:mod:`streamfl_connectors.kafka.failures` says what a failure means.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from importlib.util import find_spec
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import Outgoing, Subscription, TopicPartition
from streamfl.runtime.rights import Right
from streamfl_connectors.codecs import try_codecs
from streamfl_connectors.kafka.clients import ask_for_coordinators, discard
from streamfl_connectors.kafka.cluster import KafkaCluster
from streamfl_connectors.kafka.cluster_bus import ClusterBus
from streamfl_connectors.kafka.commits import KafkaCommits
from streamfl_connectors.kafka.failures import quieten, translated
from streamfl_connectors.kafka.groups import members
from streamfl_connectors.kafka.hanging import HeldOffsets
from streamfl_connectors.kafka.logs import KafkaLogs
from streamfl_connectors.kafka.membership import KafkaMembership
from streamfl_connectors.kafka.options import CLIENT_DEFAULTS, PRODUCER_DEFAULTS
from streamfl_connectors.kafka.rights import missing_rights
from streamfl_connectors.kafka.sending import publish
from streamfl_connectors.kafka.topics import KafkaTopics
from streamfl_connectors.session import KafkaSession, transactional_id
from streamfl_connectors.tables import Tables

__all__ = ["KafkaBus"]

# The producer has no memory bound of its own: writes outside a session wait for the broker after this many
# bytes.
WRITE_BYTES = 16_000_000

# The library reads tables only while a call waits for it.
TABLE_SHARE = 0.5


class KafkaBus(ClusterBus):
    """A Kafka cluster; see :func:`streamfl_connectors.kafka.connect`.

    cluster: its address and options.
    """

    logs: KafkaLogs

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        if find_spec("crc32c") is None:
            raise ConfigurationError(
                "the Kafka connector needs the package 'crc32c' (without it checksums are up to 150 times "
                "slower): pip install 'kafka-python[crc32c]'"
            )
        # Checked at the start: the first record that needs a missing codec may come after days.
        self._codecs = try_codecs()
        self.cluster = KafkaCluster(url, options or {})
        self._producer: Any = None
        self._lock = threading.Lock()
        quieten()
        self.admin = self.cluster.make(KafkaAdminClient, CLIENT_DEFAULTS)
        ask_for_coordinators(self.admin)
        self.topics = KafkaTopics(self.admin, self.cluster.largest_record, self.cluster.connect_timeout)
        self.logs = KafkaLogs(self.cluster, self.admin, self.topics.require)

    def members(self, group: str) -> int:
        """The members of a consumer group at present."""
        with translated("describing the group", group):
            return members(self.admin, group)

    def missing_rights(self, rights: Sequence[Right]) -> list[Right]:
        """Those of these rights that this principal does not have, as far as the cluster reports."""
        return missing_rights(self.admin, rights)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The committed offsets of a consumer group."""
        with translated("reading the group's offsets", group):
            found = self.admin.list_group_offsets({group: None})[group]
        # Below 0: a partition that the group knows without an offset.
        return {(place.topic, place.partition): one.offset for place, one in found.items() if one.offset >= 0}

    def session(self, subscription: Subscription) -> KafkaSession[KafkaMembership]:
        """Join a group; ConfigurationError names a topic that is missing or the ACL that would allow it."""
        most, tables = self.topics.of(subscription)
        name = transactional_id(subscription)
        with translated("joining the group", subscription.group), ExitStack() as made:
            commits = made.enter_context(closing(KafkaCommits(self.cluster, self.topics, name)))
            member = (
                KafkaMembership(self.cluster, self.logs, subscription, most) if subscription.inputs else None
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
            HeldOffsets(self.cluster, subscription.group).release,
        )

    def write(self, records: Sequence[Outgoing]) -> None:
        """Write records and wait until they are durable. On an error some of them may have been written."""
        limits = self.topics.limits({record.topic for record in records})
        timeout = self.cluster.write_timeout
        with self._lock, translated("writing"):
            if self._producer is None:
                self._producer = self.cluster.make(KafkaProducer, PRODUCER_DEFAULTS)
            try:
                start, size = 0, 0
                for index, record in enumerate(records):
                    size += len(record.key or b"") + len(record.value or b"")
                    if size > WRITE_BYTES or index == len(records) - 1:
                        publish(self._producer, records[start : index + 1], limits, timeout)
                        start, size = index + 1, 0
            except BaseException:
                # After a refused record a producer never works again, and raises no error about it.
                self._discard_producer()
                raise

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        """Committed records from the beginning of every partition to its present end, at most ``limit``."""
        with translated("reading"):
            yield from super().read(topic, limit)

    def undecided(self, topic: str) -> dict[int, tuple[int, int]]:
        """By partition, where the first undecided transaction began, and the end."""
        with translated("looking for open transactions"):
            return self.logs.undecided(topic)

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        """The first and the last committed records of each partition, at most ``count`` of each."""
        with translated("reading"):
            return super().peek(topic, partitions, count)

    def codecs(self) -> Sequence[str]:
        """The compression codecs that were tried when the bus was made."""
        return self._codecs

    def close(self) -> None:
        """Close the clients of the bus. Sessions are closed separately."""
        with self._lock:
            self._discard_producer()
        self.logs.close()
        self.admin.close()

    def _discard_producer(self) -> None:
        if self._producer is not None:
            discard(self._producer)
            self._producer = None
