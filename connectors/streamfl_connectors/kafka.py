"""The bus on Apache Kafka, with kafka-python.

A commit under ``exactly_once`` is one transaction: outputs, changelog and consumed offsets. The client library has
several ways to hang or to lose records silently; what is done about each is said where it is done, here and in
:mod:`streamfl_connectors.kafka_clients`. What a failure means is in :mod:`streamfl_connectors.kafka_failures`.
"""

from __future__ import annotations

import difflib
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kafka import (
    ConsumerRebalanceListener,
    IsolationLevel,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    OffsetSpec,
)
from kafka import TopicPartition as KafkaPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.structs import MemberState

from streamfl.role import ConfigurationError, Record
from streamfl.runtime.bus import (
    BusUnavailable,
    CommitRefused,
    Outgoing,
    Polled,
    Step,
    Subscription,
    TopicPartition,
    TopicSpec,
    TopicState,
    Unreadable,
    new_transactional_id,
)
from streamfl_connectors.assignor import CoPartitionAssignor
from streamfl_connectors.codecs import try_codecs
from streamfl_connectors.fence import fence
from streamfl_connectors.kafka_batches import check_batches
from streamfl_connectors.kafka_clients import (
    PendingFetches,
    close_consumer,
    complete,
    discard,
    end_once,
    mend_joins,
    publish,
    read_edges,
    read_to_end,
    read_whole,
    record_of,
    wait_for_brokers,
)
from streamfl_connectors.kafka_failures import NOT_LET_IN, causes_logged, needed, quieten, translated
from streamfl_connectors.partitioner import partition_of
from streamfl_connectors.silence import Silence

__all__ = ["KafkaBus", "KafkaSession", "connect"]

CONNECT_TIMEOUT_SECONDS = 30.0

# Table and input consumers take turns; a turn bounds how long a record of one waits behind an empty poll of the other.
TURN_SECONDS = 0.01

# A change of assignment without any record is reported after at most this long.
LONGEST_TURN_SECONDS = 0.1

# For the answer of a cluster that is there to a question about the ends of partitions.
END_SECONDS = 5.0

# The producer has no memory bound of its own: writes outside a session wait for the broker after this many bytes.
WRITE_BYTES = 16_000_000


CLIENT_DEFAULTS: dict[str, Any] = {"reconnect_backoff_max_ms": 1000}
CONSUMER_DEFAULTS: dict[str, Any] = {
    **CLIENT_DEFAULTS,
    "heartbeat_interval_ms": 500,
    "session_timeout_ms": 10_000,
    # A leader that shared out partitions before it knew a topic does so again only when its metadata changes.
    "metadata_max_age_ms": 5_000,
    # A partition that is resumed joins the next fetch only, so the wait of an idle fetch is a latency.
    "fetch_max_wait_ms": 100,
    "metrics_enabled": False,
}
PRODUCER_DEFAULTS: dict[str, Any] = {
    **CLIENT_DEFAULTS,
    "request_timeout_ms": 10_000,
    "delivery_timeout_ms": 25_000,
    "transaction_timeout_ms": 10_000,
    "batch_size": 131_072,
    # Fuller batches while records are handed over; nobody waits for it, because every hand-over ends in a flush.
    "linger_ms": 100,
    # A transaction that begins while the coordinator still ends the last one is told to try again. With the client's 100 ms small
    # commits in a row take 120 ms instead of 25, and a lockstep round is two of them.
    "retry_backoff_ms": 20,
    "metrics_enabled": False,
}
# How long a commit that came too late for its generation waits for the next one, which the cluster has begun by then.
JOIN_SECONDS = 5.0

CREATE_HINT = "create it, for instance with 'streamfl topics CONFIG --create'"

OWN_OPTIONS = {
    "acks": "all replicas acknowledge, always",
    "auto_offset_reset": "set bus.auto_offset_reset",
    "bootstrap_servers": "set bus.url",
    "check_crcs": "always on",
    "enable_auto_commit": "streamfl commits",
    "enable_idempotence": "always on",
    "group_id": "set bus.group",
    "isolation_level": "always read_committed",
    "kafka_client": "not configurable",
    "key_deserializer": "streamfl decodes",
    "key_serializer": "streamfl encodes",
    "max_poll_records": "set bus.max_poll_records",
    "partition_assignment_strategy": "not configurable",
    "transactional_id": "chosen by streamfl",
    "value_deserializer": "streamfl decodes",
    "value_serializer": "streamfl encodes",
}
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
FILE_OPTIONS = {"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile"}
# A password of digits that comes from the environment is read as a number.
TEXT_OPTIONS = {"sasl_plain_password", "sasl_plain_username", "ssl_password"}

def connect(url: str, options: Mapping[str, Any]) -> KafkaBus:
    """The Kafka cluster at ``url`` (``kafka://host:port[,host:port…]``).

    ``options`` go to kafka-python's clients as they are, each to the clients that know it; ``connect_timeout_seconds``
    (default 30) is ours. ConfigurationError if the url or an option is wrong; BusUnavailable if no broker answers in
    that time.
    """
    return KafkaBus(url, options)


class KafkaBus:
    """A Kafka cluster as streamfl sees it: the admin client, and clients made on demand."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        if find_spec("crc32c") is None:
            raise ConfigurationError(
                "the Kafka connector needs the package 'crc32c' (without it checksums are up to 150 times slower): "
                "pip install 'kafka-python[crc32c]'"
            )
        # Told at the start: the first record that needs a missing one may come after days.
        self._codecs = try_codecs()
        remaining = dict(options or {})
        self._servers = _servers(url)
        self.connect_timeout = _positive(remaining.pop("connect_timeout_seconds", CONNECT_TIMEOUT_SECONDS))
        _check_options(remaining)
        self._options = remaining
        self._known_topics: dict[str, int] = {}
        self._known_limits: dict[str, int] = {}
        self._producer: Any = None
        self._lock = threading.Lock()
        quieten()
        self._admin = self.make(KafkaAdminClient, CLIENT_DEFAULTS)

    def make(self, client: Callable[..., Any], defaults: Mapping[str, Any], **settings: Any) -> Any:
        """A client of the library with this bus's options; BusUnavailable with the cause if no broker answers."""
        accepted = client.DEFAULT_CONFIG  # type: ignore[attr-defined]
        chosen = {name: value for name, value in {**defaults, **self._options}.items() if name in accepted}
        chosen |= {"bootstrap_servers": self._servers, "bootstrap_timeout_ms": int(self.connect_timeout * 1000)}
        connections: list[Any] = []

        def connection(**configuration: Any) -> Any:
            connections.append(KafkaNetClient(**configuration))
            return connections[-1]

        with causes_logged() as causes:
            try:
                made = client(**{**chosen, **settings, "kafka_client": connection})
                if client is KafkaConsumer:
                    check_batches(made)
                return made
            except (KafkaError, OSError) as error:
                # The constructor leaves its thread and its sockets behind when it fails.
                for left in connections:
                    with suppress(Exception):
                        left.close()
                        left._net.stop()
                if isinstance(error, kafka_errors.KafkaConfigurationError):
                    raise ConfigurationError(f"bus.options: {error}") from error
                where = ",".join(self._servers)
                for cause in causes:
                    # Any of them, not the last: time may run out in the middle of one more attempt.
                    if isinstance(cause, NOT_LET_IN) or isinstance(cause.__context__, ssl.SSLCertVerificationError):
                        raise ConfigurationError(f"bus.options: no way into the Kafka cluster at {where}: {cause}") from cause
                raise BusUnavailable(
                    f"no Kafka broker answered at {where} within {self.connect_timeout:g} s: {causes[-1] if causes else error}"
                ) from error
            except (TypeError, ValueError, AssertionError) as error:
                raise ConfigurationError(f"bus.options: {error}") from error

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name; ``error`` says which right is missing. BusUnavailable if the cluster is
        away.
        """
        names = sorted(set(topics))
        if not names:
            return {}
        states: dict[str, TopicState] = {}
        with translated("describing topics"):
            readable = []
            for found in self._admin.describe_topics(names):
                code, name = found.get("error_code", 0), found["name"]
                if code == kafka_errors.UnknownTopicOrPartitionError.errno:
                    continue
                if code == kafka_errors.TopicAuthorizationFailedError.errno:
                    states[name] = TopicState(name, 0, False, error=f"not authorised: {needed(name)}")
                elif code == kafka_errors.InvalidTopicError.errno:
                    states[name] = TopicState(name, 0, False, error="not a valid topic name")
                elif code:
                    states[name] = TopicState(name, 0, False, error=kafka_errors.for_code(code).__name__)
                else:
                    states[name] = TopicState(name, len(found["partitions"]), False, identity=str(found.get("topic_id", "")))
                    readable.append(name)
            if readable:
                try:
                    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in readable]
                    described = self._admin.describe_configs(resources, config_filter="all")
                except kafka_errors.TopicAuthorizationFailedError:
                    described = {}
                for name in readable:
                    found = described.get("topic", {}).get(name)
                    if found is None:
                        error = f"its configuration cannot be read: an ACL must allow DescribeConfigs on topic {name!r}"
                        states[name] = replace(states[name], error=error)
                        continue
                    options = {key: str(entry["value"]) for key, entry in found.items() if entry.get("value") is not None}
                    compacted = "compact" in options.get("cleanup.policy", "")
                    states[name] = replace(states[name], compacted=compacted, options=options)
        return states

    def members(self, group: str) -> int:
        """The members of a consumer group at present."""
        with translated("describing the group"):
            return len(self._admin.describe_groups([group])[group]["members"])

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet and wait until they can be used; existing ones stay as they are."""
        wanted = {
            spec.name: {
                "num_partitions": -1 if spec.partitions is None else spec.partitions,
                "configs": {"cleanup.policy": "compact" if spec.compacted else "delete", **spec.preferred, **spec.options},
            }
            for spec in topics
        }
        if not wanted:
            return
        with translated("creating topics"):
            answer = self._admin.create_topics(wanted, raise_errors=False)
            for topic in answer["topics"]:
                kind = kafka_errors.for_code(topic["error_code"])
                if kind in (kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError):
                    continue
                text = f"topic {topic['name']!r} cannot be created: {topic.get('error_message') or kind.__name__}"
                if issubclass(kind, kafka_errors.AuthorizationError):
                    text += f" (an ACL must allow Create on topic {topic['name']!r} or on the cluster)"
                if issubclass(kind, kafka_errors.RetriableError):
                    raise BusUnavailable(text)
                raise ConfigurationError(text)
            self._admin.wait_for_topics(list(wanted), timeout_ms=int(self.connect_timeout * 1000))

    def partition_of(self, key: bytes, partitions: int) -> int:
        return partition_of(key, partitions)

    def session(self, subscription: Subscription) -> KafkaSession:
        """Join a group; ConfigurationError names a topic that is missing or the ACL that would allow it."""
        return KafkaSession(self, subscription)

    def write(self, records: Sequence[Outgoing]) -> None:
        """Write records and wait until they are durable. On an error some of them may have been written."""
        limits = self.limits({record.topic for record in records})
        with self._lock, translated("writing"):
            if self._producer is None:
                self._producer = self.make(KafkaProducer, PRODUCER_DEFAULTS)
            try:
                start, size = 0, 0
                for index, record in enumerate(records):
                    size += len(record.key or b"") + len(record.value or b"")
                    if size > WRITE_BYTES or index == len(records) - 1:
                        publish(self._producer, records[start : index + 1], limits, self.write_timeout)
                        start, size = index + 1, 0
            except BaseException:
                # A producer that once met a refused record is dead for good, without saying so.
                discard(self._producer)
                self._producer = None
                raise

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        """Committed records from the beginning of every partition to its present end, at most ``limit``."""
        count = self.require([topic])[topic]
        with self.reader() as consumer:
            remaining = limit
            for record in read_whole(consumer, [KafkaPartition(topic, p) for p in range(count)], self.connect_timeout):
                if remaining is not None:
                    if remaining <= 0:
                        return
                    remaining -= 1
                yield record

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        """Of each partition the first and the last committed records, ``count`` of either at most."""
        self.require([topic])
        with self.reader() as consumer:
            places = [KafkaPartition(topic, partition) for partition in partitions]
            return [record for place in places for record in read_edges(consumer, place, count, self.connect_timeout)]

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end; Unreadable with the batch's bytes."""
        if not 0 <= partition < (count := self.require([topic])[topic]):
            raise ConfigurationError(f"topic {topic!r} has {count} partitions, there is no partition {partition}")
        end = self.ends([(topic, partition)])[topic, partition]
        with self.reader() as consumer:
            place = KafkaPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            try:
                yield from read_to_end(consumer, [place], self.connect_timeout)
            except Unreadable as failure:
                # A damaged header may say anything: no more is passed over than what is certainly there.
                if failure.following is None or not failure.offset < failure.following <= end:
                    failure.following = failure.offset + 1
                raise

    def codecs(self) -> Sequence[str]:
        """The compressions that were tried when the bus was made."""
        return self._codecs

    def close(self) -> None:
        """Close the clients of the bus; sessions are closed by themselves."""
        with self._lock:
            if self._producer is not None:
                discard(self._producer)
                self._producer = None
        self._admin.close()

    @property
    def write_timeout(self) -> float:
        """Seconds after which an unacknowledged record has failed for certain."""
        delivery = self._options.get("delivery_timeout_ms", PRODUCER_DEFAULTS["delivery_timeout_ms"])
        return float(delivery) / 1000 + 5

    @property
    def transaction_timeout(self) -> float:
        """Seconds after which the cluster aborts the transaction of a producer that is gone, checks of the broker
        included.
        """
        timeout = self._options.get("transaction_timeout_ms", PRODUCER_DEFAULTS["transaction_timeout_ms"])
        return float(timeout) / 1000 + 15

    def require(self, topics: Iterable[str]) -> dict[str, int]:
        """The partition counts of topics; ConfigurationError if one is missing or not allowed. Answers are
        remembered.
        """
        names = set(topics)
        unknown = sorted(names - self._known_topics.keys())
        if unknown:
            with translated("looking up topics"):
                for found in self._admin.describe_topics(unknown):
                    code, name = found.get("error_code", 0), found["name"]
                    if code == kafka_errors.UnknownTopicOrPartitionError.errno:
                        raise ConfigurationError(f"topic {name!r} does not exist: {CREATE_HINT}")
                    if code == kafka_errors.TopicAuthorizationFailedError.errno:
                        raise ConfigurationError(f"topic {name!r} is not authorised: {needed(name)}")
                    if code == kafka_errors.InvalidTopicError.errno:
                        raise ConfigurationError(f"{name!r} is not a valid topic name")
                    if code:
                        raise BusUnavailable(f"topic {name!r}: {kafka_errors.for_code(code).__name__}")
                    self._known_topics[name] = len(found["partitions"])
        return {name: self._known_topics[name] for name in names}

    def limits(self, topics: Iterable[str]) -> dict[str, int]:
        """The max.message.bytes of topics, in bytes; ConfigurationError if one is missing or not allowed. Answers are
        remembered.
        """
        names = set(topics)
        self.require(names)
        for name, state in self.describe(names - self._known_limits.keys()).items():
            if state.error is not None:
                raise ConfigurationError(f"topic {name!r}: {state.error}")
            self._known_limits[name] = int(state.options["max.message.bytes"])
        return {name: self._known_limits[name] for name in names}

    def ends(self, partitions: Iterable[TopicPartition], patience: float = END_SECONDS) -> dict[TopicPartition, int]:
        """Offset after the last committed record of each partition; BusUnavailable after ``patience`` seconds."""
        wanted = {KafkaPartition(*partition): OffsetSpec.LATEST for partition in partitions}
        if not wanted:
            return {}
        with translated("reading the ends of partitions"):
            found = self._admin.list_partition_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, timeout_ms=int(patience * 1000)
            )
        return {(partition.topic, partition.partition): int(offset.offset) for partition, offset in found.items()}

    @contextmanager
    def reader(self) -> Iterator[Any]:
        """A consumer outside any group that reads committed records from the beginning."""
        consumer = self.make(KafkaConsumer, CONSUMER_DEFAULTS, **READER)
        try:
            with translated("reading"):
                yield consumer
        finally:
            close_consumer(consumer)


READER: dict[str, Any] = {
    "group_id": None,
    "group_instance_id": None,
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    "auto_offset_reset": "earliest",
    "allow_auto_create_topics": False,
}


class KafkaSession:
    """One worker's membership in a consumer group, its producer, and the consumer of its tables."""

    def __init__(self, bus: KafkaBus, subscription: Subscription) -> None:
        self._bus = bus
        self._subscription = subscription
        self._transactional = subscription.guarantee == "exactly_once"
        self._transactional_id = subscription.transactional_id or new_transactional_id(subscription.group)
        counts = bus.require([*subscription.inputs, *subscription.tables])
        if len({counts[topic] for topic in subscription.inputs}) > 1:
            found = ", ".join(f"{topic}: {counts[topic]}" for topic in subscription.inputs)
            raise ConfigurationError(f"the input topics must have the same number of partitions ({found})")
        self._tables = [KafkaPartition(topic, p) for topic in subscription.tables for p in range(counts[topic])]
        self._table_consumer: Any = None
        self._consumer: Any = None
        self._producer: Any = None
        self._group: Any = None
        self._assignor = CoPartitionAssignor()
        self._lost: set[int] = set()
        self._expelled = False
        self._reported: set[int] = set()
        self._opening: set[int] = set()
        self._sought: set[int] = set()
        self._paused: set[TopicPartition] = set()
        self._refused = False
        self._held_tables: list[Record] = []
        self._positions: dict[TopicPartition, int] = {}
        self._base: dict[TopicPartition, int] = {}
        self._origins: dict[TopicPartition, int] = {}
        self._last_lag: dict[TopicPartition, int] = {}
        self._alone_since: float | None = None
        self._fetches = PendingFetches(bus.connect_timeout)
        self._silence = Silence(bus)
        self._readers: list[Any] = []
        try:
            with translated("joining the group", self._subscription):
                # Made now, so that a missing right on the transactional id stops the start and not the first commit.
                self._ready_producer()
                if subscription.inputs:
                    self._consumer = bus.make(
                        KafkaConsumer,
                        CONSUMER_DEFAULTS,
                        group_id=subscription.group,
                        enable_auto_commit=False,
                        isolation_level="read_committed",
                        auto_offset_reset="none" if subscription.auto_offset_reset == "error" else subscription.auto_offset_reset,
                        allow_auto_create_topics=False,
                        partition_assignment_strategy=[self._assignor],
                    )
                    mend_joins(self._consumer._coordinator)
                    self._assignor.ask_again = self._consumer._coordinator.request_rejoin
                    for topic in subscription.inputs:
                        self._consumer.partitions_for_topic(topic)
                    listener = _Listener(self._on_revoked, self._on_lost, self._on_assigned)
                    self._consumer.subscribe(list(subscription.inputs), listener=listener)
        except BaseException:
            self.close()
            raise

    def poll(self, timeout: float, max_records: int) -> Polled:
        """Wait at most ``timeout`` seconds for anything; the first poll takes what reading the tables whole takes."""
        polled = Polled(tables=self._held_tables)
        self._held_tables = []
        told = set(self._reported)
        try:
            self._poll(polled, time.monotonic() + timeout, max_records)
        except BaseException:
            # What was already taken from the cluster must not get lost with the error: tables are kept for the next
            # poll, inputs are read again from the last commit.
            self._held_tables = polled.tables
            self._reported = told
            self._refused = True
            raise
        return polled

    def _poll(self, polled: Polled, deadline: float, max_records: int) -> None:
        with translated("polling", self._subscription):
            if self._tables and self._table_consumer is None:
                self._read_tables(polled)
            if self._refused:
                self._report_all_again(polled)
            elif self._consumer is not None:
                self._begin()
            while True:
                remaining = max(0.0, deadline - time.monotonic())
                if polled:
                    remaining = 0.0
                turn = min(remaining, TURN_SECONDS if self._tables else LONGEST_TURN_SECONDS)
                if self._tables:
                    polled.tables += self._poll_tables(turn / 2 if self._consumer is not None else turn, max_records)
                    if polled.tables:
                        turn = 0.0
                if self._consumer is not None:
                    self._poll_inputs(polled, turn, max_records)
                    if polled.assigned and self._tables:
                        # Whoever had these partitions before may have seen, and used, more of the tables than this worker.
                        polled.tables += read_to_end(self._table_consumer, self._tables, self._bus.connect_timeout)
                elif not self._tables:
                    time.sleep(turn)
                self._fetches.check(one for one in (self._consumer, self._table_consumer) if one is not None)
                if polled or time.monotonic() >= deadline:
                    return

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        """All committed records of a partition from its beginning to its present end."""
        count = self._bus.require([topic])[topic]
        if partition >= count:
            raise ConfigurationError(
                f"topic {topic!r} has {count} partitions and needs at least {partition + 1}, as many as the inputs have"
            )
        consumer = self._readers.pop() if self._readers else self._bus.make(KafkaConsumer, CONSUMER_DEFAULTS, **READER)
        try:
            with translated(f"restoring from topic {topic!r}", self._subscription):
                yield from read_whole(consumer, [KafkaPartition(topic, partition)], self._bus.connect_timeout)
        except BaseException:
            close_consumer(consumer)
            raise
        self._readers.append(consumer)

    def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset; waits until the cluster has decided every transaction that touches it."""
        with translated("reading the committed offset", self._subscription):
            wait = int(self._bus.transaction_timeout * 1000)
            found = self._consumer.committed(KafkaPartition(topic, partition), timeout_ms=wait)
        return None if found is None else int(found)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on reading an assigned input partition at ``offset``."""
        self._consumer.seek(KafkaPartition(topic, partition), offset)
        self._sought.add(partition)
        self._positions[topic, partition] = self._base[topic, partition] = offset

    def commit(self, step: Step) -> None:
        """Make the step visible, as one transaction under exactly_once.

        An answer that got lost may leave open whether the transaction was committed. That is reported as
        BusUnavailable; the next commit or poll first has the cluster decide it, so that what is restored then is the
        truth either way.
        """
        if not step:
            return
        try:
            with translated("committing", self._subscription):
                limits = self._bus.limits({record.topic for record in (*step.outputs, *step.changelog)})
                if step.positions and (self._group is None or not {p for _, p in step.positions} <= self._reported):
                    raise CommitRefused("the group has moved partitions since they were polled")
                if not self._transactional:
                    # The library commits nothing while a join is under way, and the outputs would be out by then.
                    if step.positions and self._consumer._coordinator.rejoining and not self._still_a_member():
                        raise CommitRefused("the group is moving partitions")
                    self._commit_in_order(step, limits)
                else:
                    try:
                        self._commit_transaction(step, limits)
                    except kafka_errors.CommitFailedError:
                        if not self._still_a_member():
                            raise
                        self._commit_transaction(step, limits)
        except BaseException:
            self._refused = True
            raise
        self._base.update(step.positions)

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Bring no more records of exactly these input partitions until told otherwise."""
        self._paused = set(places)

    def lag(self) -> Mapping[TopicPartition, int]:
        """Records between the position and the end of each assigned input partition; control records count.

        Asks the cluster; while it does not answer, the last known figures are given.
        """
        positions = dict(self._positions)
        with suppress(BusUnavailable, ConfigurationError):
            ends = self._bus.ends(positions)
            self._last_lag = {one: ends[one] - position for one, position in positions.items() if one in ends}
        return self._last_lag

    def close(self) -> None:
        """Leave the group. Safe to call twice."""
        # Closing the consumer runs the rebalance listener; the group hears of the leave before the producer is gone.
        for consumer in (self._consumer, self._table_consumer, *self._readers):
            if consumer is not None:
                close_consumer(consumer)
        self._readers.clear()
        if self._producer is not None:
            discard(self._producer)
            self._producer = None

    # Joining and polling

    # The listener runs on the client's I/O thread while poll() or commit() waits for it: it only takes notes.

    def _on_revoked(self, partitions: Iterable[Any]) -> None:
        self._lost |= {partition.partition for partition in partitions}

    def _on_lost(self, partitions: Iterable[Any]) -> None:
        self._on_revoked(partitions)
        self._expelled = True
        self._assignor.forget()

    def _on_assigned(self, partitions: Iterable[Any]) -> None:
        # A number of which only one input's partition is new is begun anew as a whole.
        self._on_revoked(partitions)
        # Before the first fetch, so that no record arrives before the caller has restored and sought.
        self._consumer.pause(*partitions)

    def _report_all_again(self, polled: Polled) -> None:
        """After a refused step nothing that was read is certain: every partition is given back and begun anew."""
        if self._transactional:
            # Settles an undecided transaction of this id before anything is restored.
            self._ready_producer()
        polled.revoked = sorted(self._reported)
        self._reported.clear()
        self._refused = False
        if self._consumer is not None:
            owned = self._consumer.assignment()
            self._opening = {partition.partition for partition in owned}
            self._apply_pauses()

    def _poll_inputs(self, polled: Polled, timeout: float, max_records: int) -> None:
        self._apply_pauses()
        coordinator = self._consumer._coordinator
        if coordinator.rejoining:
            # The library forgets a rejoin under way once the metadata that caused it has changed back, and then neither reads nor
            # sends heartbeats for ever. Asking for what is under way costs nothing.
            coordinator.request_rejoin()
        wait = max(0, round(timeout * 1000))
        try:
            reads_on = self._transactional and coordinator.rejoining
            batches = self._consumer.poll(timeout_ms=0 if reads_on else wait, max_records=max_records)
            if not batches and self._transactional and coordinator.rejoining:
                # The library reads nothing while a join is under way; what this member keeps goes on.
                batches, idle = self._consumer._fetcher.fetch_records(max_records, timeout_ms=wait)
                if idle:
                    coordinator.poll(timeout_ms=wait)
        except kafka_errors.NoOffsetForPartitionError:
            # Raised before the caller had a chance to seek; it counts only when a partition begins without one.
            batches = {}
        for batch in batches.values():
            polled.records += [record_of(found) for found in batch]
        if coordinator.rejoining:
            # Nothing is read meanwhile, and that is as it should be.
            self._silence = Silence(self._bus)
        elif not batches:
            still = {KafkaPartition(*place) for place in self._positions} - self._consumer.paused()
            self._silence.check({(one.topic, one.partition): self._positions[one.topic, one.partition] for one in still})
        for name in self._positions:
            # The client's own: it goes on over the markers that end transactions, which no poll brings.
            state = self._consumer._subscription.assignment.get(KafkaPartition(*name))
            if state is not None and state.position is not None:
                self._positions[name] = state.position.offset
        # A generation is taken only when the member is stable: then every change that came with it has been noted
        # below, in this very poll. Read later, it could vouch for partitions that belong to somebody else by now.
        group = self._consumer.group_metadata()
        if group.generation_id < 0:
            self._group = None
        elif group.state is MemberState.STABLE:
            self._group = group
        owned = {partition.partition for partition in self._consumer.assignment()}
        lost = set(self._lost)
        self._lost -= lost
        self._expelled = False
        gone = {p for p in self._reported if p in lost or p not in owned}
        added = owned - (self._reported - gone)
        if gone or added:
            polled.revoked = sorted({*polled.revoked, *gone})
            polled.assigned = sorted(added)
            polled.records = [record for record in polled.records if record.partition in self._reported - gone]
            self._reported = owned
            self._opening = (self._opening & owned) | added
            self._sought -= added | gone
            for one in [one for one in self._positions if one[1] not in owned or one[1] in added]:
                del self._positions[one]
                self._last_lag.pop(one, None)
            for one in [one for one in self._base if one[1] not in owned or one[1] in added]:
                del self._base[one]
            self._apply_pauses()
        self._watch_coordinator(bool(polled))

    def _still_a_member(self) -> bool:
        """Wait for the join under way, if any: whether this member takes part in the generation after the one it was in.

        Then nobody has had its partitions in between, nor has yet those that the next one takes away from it: they are dealt anew
        only when it has joined once more. So the step still counts.
        """
        coordinator = self._consumer._coordinator
        if not coordinator.rejoining:
            return False
        coordinator.ensure_active_group(timeout_ms=int(JOIN_SECONDS * 1000))
        group = self._consumer.group_metadata()
        if self._expelled or group.state is not MemberState.STABLE or group.generation_id < 0:
            return False
        self._group = group
        return True

    def _watch_coordinator(self, alive: bool) -> None:
        """A poll without a broker returns nothing for ever: raise when the group's coordinator has been away for too
        long.
        """
        if alive or not self._consumer._coordinator.coordinator_unknown():
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > self._bus.connect_timeout:
            self._alone_since = None
            raise BusUnavailable(f"the group's coordinator has been away for {self._bus.connect_timeout:g} s")

    def _begin(self) -> None:
        """Let the partitions of the last report flow: from where the caller sought, else the committed offset, else
        the reset.
        """
        deadline = time.monotonic() + 1
        owned = self._consumer.assignment()
        for number in sorted(self._opening):
            parts = [] if number in self._sought else [one for one in owned if one.partition == number]
            if all(self._begin_partition(partition) for partition in parts):
                self._opening.discard(number)
            if time.monotonic() > deadline:
                break
        self._sought &= self._opening

    def _begin_partition(self, partition: Any) -> bool:
        """Whether the partition's position is known now."""
        name = (partition.topic, partition.partition)
        try:
            committed = self._consumer.committed(partition, timeout_ms=300)
        except kafka_errors.KafkaTimeoutError:
            # An earlier owner's transaction is undecided; the other partitions need not wait for it.
            return False
        # Nobody has committed: what was read before the partition was given back is read again. 'latest' asked a
        # second time would pass over it.
        target = committed if committed is not None else self._origins.get(name)
        if target is not None:
            self._consumer.seek(partition, target)
        elif self._subscription.auto_offset_reset == "earliest":
            self._consumer.seek_to_beginning(partition)
        elif self._subscription.auto_offset_reset == "latest":
            self._consumer.seek_to_end(partition)
        else:
            raise ConfigurationError(
                f"group {self._subscription.group!r} has no committed offset on {name[0]!r} partition {name[1]} and "
                "bus.auto_offset_reset = 'error': choose 'earliest' or 'latest', or restore the group's offsets"
            )
        position = self._consumer.position(partition, timeout_ms=1000)
        if position is None:
            return False
        self._origins.setdefault(name, position)
        self._positions[name] = self._base[name] = position
        return True

    def _apply_pauses(self) -> None:
        owned = self._consumer.assignment()
        wanted = {
            partition
            for partition in owned
            if partition.partition in self._opening or (partition.topic, partition.partition) in self._paused
        }
        paused = self._consumer.paused()
        if wanted - paused:
            self._consumer.pause(*(wanted - paused))
        if paused - wanted:
            self._consumer.resume(*((paused - wanted) & owned))

    # Tables

    def _read_tables(self, polled: Polled) -> None:
        consumer = self._bus.make(KafkaConsumer, CONSUMER_DEFAULTS, **READER)
        latest: dict[tuple[str, int, bytes | int], Record] = {}
        try:
            for record in read_whole(consumer, self._tables, self._bus.connect_timeout):
                # As compaction would leave them, in the order of the last writing: the log may be far longer than the table.
                # A record without a key replaces nothing.
                key = (record.topic, record.partition, record.offset if record.key is None else record.key)
                latest.pop(key, None)
                latest[key] = record
        except BaseException:
            close_consumer(consumer)
            raise
        polled.tables += latest.values()
        self._table_consumer = consumer

    def _poll_tables(self, timeout: float, max_records: int) -> list[Record]:
        batches = self._table_consumer.poll(timeout_ms=max(0, round(timeout * 1000)), max_records=max_records)
        return [record_of(found) for batch in batches.values() for found in batch]

    # Committing

    def _ready_producer(self) -> Any:
        """The producer; a NEW one when the last was fenced or broke, because such a producer cannot be revived."""
        if self._producer is None:
            settings: dict[str, Any] = {"max_block_ms": int(self._bus.connect_timeout * 1000)}
            if self._transactional:
                settings["transactional_id"] = self._transactional_id
            producer = self._bus.make(KafkaProducer, PRODUCER_DEFAULTS, **settings)
            if self._transactional:
                wait_for_brokers(producer)
                end_once(producer)
                try:
                    producer.init_transactions()
                except BaseException:
                    discard(producer)
                    raise
            self._producer = producer
        return self._producer

    def _commit_transaction(self, step: Step, limits: Mapping[str, int]) -> None:
        producer = self._ready_producer()
        transactions = producer._transaction_manager
        wait = self._bus.write_timeout * 1000
        ending = False
        try:
            producer.begin_transaction()
            # The order matters: committing with a failed send succeeds and loses it, and committing with a refused
            # partition in flight hangs. So: flush, look at every future, then the offsets, then the commit. The
            # library's own calls for the last two wait for ever; waiting on their results does not.
            publish(producer, [*step.outputs, *step.changelog], limits, self._bus.write_timeout)
            held = self._reported if self._group is not None else ()
            positions = {**fence(step, self._base, held), **step.positions}
            if positions:
                offsets = {KafkaPartition(*one): OffsetAndMetadata(offset, "", -1) for one, offset in positions.items()}
                complete(producer, transactions.send_offsets_to_transaction(offsets, self._group), wait)
            ending = True
            complete(producer, transactions.begin_commit(), wait)
        except BaseException:
            if ending:
                # Its EndTxn may be under way: an abort in the same epoch could be overtaken by it.
                self._replace(producer)
            else:
                self._abort(producer)
            raise

    def _abort(self, producer: Any) -> None:
        try:
            if not producer._transaction_manager.has_fatal_error():
                complete(producer, producer._transaction_manager.begin_abort(), 10_000)
                return
        except (KafkaError, AssertionError):
            pass
        self._replace(producer)

    def _replace(self, producer: Any) -> None:
        """The next producer of this id has the cluster decide what this one leaves undecided."""
        self._producer = None
        discard(producer)

    def _commit_in_order(self, step: Step, limits: Mapping[str, int]) -> None:
        producer = self._ready_producer()
        try:
            publish(producer, step.outputs, limits, self._bus.write_timeout)
            publish(producer, step.changelog, limits, self._bus.write_timeout)
        except BaseException:
            self._replace(producer)
            raise
        if step.positions:
            offsets = {KafkaPartition(*one): OffsetAndMetadata(offset, "", -1) for one, offset in step.positions.items()}
            self._consumer.commit(offsets, timeout_ms=int(self._bus.write_timeout * 1000))


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, *heard: Callable[[Iterable[Any]], None]) -> None:
        self._revoked, self._lost, self._assigned = heard

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._revoked(revoked)

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._lost(lost)

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._assigned(assigned)


def _servers(url: str) -> list[str]:
    scheme, separator, rest = url.partition("://")
    servers = [server.strip() for server in rest.rstrip("/").split(",") if server.strip()]
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or "@" in host or not port.isdigit():
            servers = []
    if scheme != "kafka" or not separator or not servers:
        # What it is instead is not shown: it may hold a password.
        raise ConfigurationError("bus.url: expected kafka://host:port, several brokers separated by commas")
    return servers


def _positive(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigurationError(f"bus.connect_timeout_seconds = {value!r}: expected a positive number of seconds")
    return number


def _check_options(options: Mapping[str, Any]) -> None:
    known = {**KafkaAdminClient.DEFAULT_CONFIG, **KafkaProducer.DEFAULT_CONFIG, **KafkaConsumer.DEFAULT_CONFIG}
    # No values in these texts: a mistyped name may be that of a password.
    for name, value in options.items():
        if name in OWN_OPTIONS:
            raise ConfigurationError(f"bus.options.{name} cannot be set: {OWN_OPTIONS[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, known.keys() - OWN_OPTIONS.keys(), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "the names are those of kafka-python's clients"
            raise ConfigurationError(f"bus.options.{name} is not an option of the Kafka clients: {hint}")
        if name in TEXT_OPTIONS and not isinstance(value, str):
            raise ConfigurationError(
                f"bus.options.{name} is not text: put it in double quotes, in an environment variable within the value"
            )
        expected = _expected(name, value, known[name])
        if expected:
            # The library looks at most values only when they are used, and then waits for a broker instead of saying so.
            raise ConfigurationError(f"bus.options.{name}: {expected} is expected")


def _expected(name: str, value: Any, default: Any) -> str | None:
    """What an option should be and is not."""
    if name == "security_protocol":
        return None if value in SECURITY_PROTOCOLS else " or ".join(SECURITY_PROTOCOLS)
    if name in FILE_OPTIONS:
        return None if isinstance(value, str) and Path(value).is_file() else "the name of a file that can be read"
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, int | float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if number and 0 <= value <= 2**31 - 1 else "a number from 0 to 2147483647"
    if isinstance(default, str):
        return None if isinstance(value, str) else "text in double quotes"
    return None
