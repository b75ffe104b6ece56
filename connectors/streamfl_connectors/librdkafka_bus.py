"""A Kafka cluster as streamfl sees it, with librdkafka: the admin client, and clients made on demand."""

from __future__ import annotations

import difflib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import Producer as LibraryProducer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from streamfl.role import ConfigurationError, Record
from streamfl.runtime.bus import BusUnavailable, Outgoing, Subscription, TopicSpec, TopicState
from streamfl.runtime.bus import TopicPartition as Place
from streamfl_connectors.codecs import CODECS
from streamfl_connectors.kafka import KafkaBus
from streamfl_connectors.librdkafka_clients import Reader, Writer, check
from streamfl_connectors.librdkafka_failures import NOT_LET_IN, needed, told, translated
from streamfl_connectors.librdkafka_log import LOG
from streamfl_connectors.librdkafka_session import LibrdkafkaSession
from streamfl_connectors.partitioner import partition_of

__all__ = ["LibrdkafkaBus"]

CONNECT_TIMEOUT_SECONDS = 30.0

DEFAULTS: dict[str, Any] = {
    # Off in the library: it would take what a disk has damaged.
    "check.crcs": True,
    "reconnect.backoff.max.ms": 1000,
    "heartbeat.interval.ms": 500,
    "session.timeout.ms": 10_000,
    # The library's own bounds are 64 MB and 1 GB.
    "queued.max.messages.kbytes": 16_384,
    "queue.buffering.max.kbytes": 65_536,
    # A full queue of read records is looked at again after a second otherwise.
    "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 100,
    "request.timeout.ms": 10_000,
    "transaction.timeout.ms": 10_000,
    "message.timeout.ms": 10_000,
    "message.max.bytes": 1_048_588,
}
MOVED = {
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    # What it says of partitions that had no leader when it last asked, for as long as it does not ask again by itself: minutes.
    KafkaError._NOENT,
}
LARGEST_BATCH = 1_000_000
CREATE_HINT = "create it, for instance with 'streamfl topics CONFIG --create'"

OWN_OPTIONS = {
    "acks": "all replicas acknowledge, always",
    "auto.offset.reset": "set bus.auto_offset_reset",
    "batch.size": "chosen by streamfl, below every topic's max.message.bytes",
    "bootstrap.servers": "set bus.url",
    "check.crcs": "always on",
    "delivery.report.only.error": "always on",
    "enable.auto.commit": "streamfl commits",
    "enable.auto.offset.store": "streamfl commits",
    "enable.idempotence": "always on",
    "enable.partition.eof": "always on",
    "group.id": "set bus.group",
    "group.protocol": "not configurable",
    "isolation.level": "always read_committed",
    "log.queue": "always on, streamfl listens to the log",
    "metadata.broker.list": "set bus.url",
    "partition.assignment.strategy": "not configurable",
    "partitioner": "always murmur2_random, as Java's clients choose",
    "request.required.acks": "all replicas acknowledge, always",
    "transactional.id": "chosen by streamfl",
}
# A password of digits that comes from the environment is read as a number.
TEXT_OPTIONS = {"sasl.username", "sasl.password", "ssl.key.password", "ssl.keystore.password"}
# What kafka-python calls differently; everything else differs in dots and underscores only.
OTHER_SPELLINGS = {
    "sasl.plain.username": "sasl.username",
    "sasl.plain.password": "sasl.password",
    "ssl.cafile": "ssl.ca.location",
    "ssl.certfile": "ssl.certificate.location",
    "ssl.keyfile": "ssl.key.location",
    "ssl.crlfile": "ssl.crl.location",
    "ssl.password": "ssl.key.password",
    "max.request.size": "message.max.bytes",
    "delivery.timeout.ms": "message.timeout.ms",
}
# What a client needs to be let in, and kafka-python knows by another name with underscores.
ENTRANCE = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    **{
        ours: theirs.replace(".", "_") for theirs, ours in OTHER_SPELLINGS.items() if ours.startswith(("sasl", "ssl"))
    },
}
# Names that are offered instead of a mistyped one, beside those above.
COMMON = ("security.protocol", "sasl.mechanism", "client.id", "compression.type", "linger.ms", "max.poll.interval.ms")

INVALID_VALUE = re.compile(r'Invalid value ".*" for', re.DOTALL)


class LibrdkafkaBus:
    """A Kafka cluster. ``servers`` is ``host:port[,host:port…]``; the rest as :func:`streamfl_connectors.librdkafka.connect`."""

    def __init__(self, servers: str, options: Mapping[str, Any]) -> None:
        remaining = dict(options)
        self._servers = servers
        self.connect_timeout = _positive(remaining.pop("connect_timeout_seconds", CONNECT_TIMEOUT_SECONDS))
        self._options = _checked(remaining)
        self._causes: deque[KafkaError] = deque(maxlen=20)
        self._counts: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self._identities: dict[str, str] = {}
        self._writer: Writer | None = None
        self._lock = threading.Lock()
        self.codecs()
        self._admin: AdminClient = self.make(AdminClient)
        self._reach()

    def make(self, client: Callable[[dict[str, Any]], Any], **settings: Any) -> Any:
        """A client of the library with this bus's options; ConfigurationError if it does not accept one."""
        whole = {"error_cb": self._causes.append, **DEFAULTS, **settings, **self._options}
        whole |= {"bootstrap.servers": self._servers, "logger": settings.get("logger", LOG)}
        if "debug" in settings and "debug" in self._options:
            whole["debug"] = f"{self._options['debug']},{settings['debug']}"
        try:
            return client(whole)
        except KafkaException as error:
            raise _refusal(error.args[0]) from error

    @property
    def write_timeout(self) -> float:
        """Seconds after which an unacknowledged record has failed for certain."""
        return float(self._option("message.timeout.ms")) / 1000 + 5

    @property
    def transaction_timeout(self) -> float:
        """Seconds after which the cluster aborts the transaction of a producer that is gone, checks of the broker included."""
        return float(self._option("transaction.timeout.ms")) / 1000 + 15

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name; ``error`` says what is wrong with one that cannot be used."""
        states: dict[str, TopicState] = {}
        readable: dict[str, int] = {}
        for name, found in self._look_up(topics).items():
            if isinstance(found, int):
                readable[name] = found
            elif found.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                states[name] = TopicState(name, 0, False, error=needed(name))
            elif found.code() == KafkaError.TOPIC_EXCEPTION:
                states[name] = TopicState(name, 0, False, error="not a valid topic name")
            elif found.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                states[name] = TopicState(name, 0, False, error=found.str())
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in readable]
        with translated("describing topics"):
            futures = self._admin.describe_configs(resources, request_timeout=self.connect_timeout) if resources else {}
        for resource, future in futures.items():
            name = resource.name
            try:
                entries = future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise told("describing topics", error.args[0], topic=name) from error
                denied = f"its configuration cannot be read: an ACL must allow DescribeConfigs on topic {name!r}"
                states[name] = TopicState(name, readable[name], False, error=denied)
            else:
                options = {key: str(entry.value) for key, entry in entries.items() if entry.value is not None}
                compacted = "compact" in options.get("cleanup.policy", "")
                states[name] = TopicState(name, readable[name], compacted, options, identity=self._identities[name])
        return states

    def members(self, group: str) -> int:
        """The members of a consumer group at present."""
        with translated("describing the group", group):
            described = self._admin.describe_consumer_groups([group], request_timeout=self.connect_timeout)
            return len(described[group].result().members)

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet and wait until they can be used; existing ones stay as they are."""
        wanted = [
            NewTopic(
                spec.name,
                num_partitions=-1 if spec.partitions is None else spec.partitions,
                replication_factor=-1,
                config={"cleanup.policy": "compact" if spec.compacted else "delete", **spec.preferred, **spec.options},
            )
            for spec in topics
        ]
        if not wanted:
            return
        for name, future in self._admin.create_topics(wanted, request_timeout=self.connect_timeout).items():
            try:
                future.result()
            except KafkaException as failure:
                error = failure.args[0]
                if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                text = f"topic {name!r} cannot be created: {error.str()}"
                if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
                    text += f" (an ACL must allow Create on topic {name!r} or on the cluster)"
                if error.retriable() or error.code() < 0:
                    raise BusUnavailable(text) from failure
                raise ConfigurationError(text) from failure
        deadline = time.monotonic() + self.connect_timeout
        while not all(isinstance(found, int) for found in self._look_up(spec.name for spec in topics).values()):
            if time.monotonic() > deadline:
                raise BusUnavailable(f"created topics cannot be used after {self.connect_timeout:g} s")
            time.sleep(0.02)

    def session(self, subscription: Subscription) -> LibrdkafkaSession:
        """Join a group; ConfigurationError names a topic that is missing or the ACL that would allow it."""
        return LibrdkafkaSession(self, subscription)

    def partition_of(self, key: bytes, partitions: int) -> int:
        return partition_of(key, partitions)

    def write(self, records: Sequence[Outgoing]) -> None:
        """Write records and wait until they are durable. On an error some of them may have been written."""
        limits = self.check(records)
        with self._lock:
            try:
                self._writer = self.writer(self._writer, limits)
                self._writer.send(records, self.write_timeout)
                self._writer.settle(self.write_timeout)
            except BaseException:
                if self._writer is not None:
                    self._writer.discard()
                    self._writer = None
                raise

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        """Committed records from the beginning of every partition to its present end, at most ``limit``."""
        count = self.require([topic])[topic]
        if limit is not None and limit <= 0:
            return
        reader = Reader(self)
        try:
            for number, record in enumerate(reader.read_whole([(topic, partition) for partition in range(count)]), 1):
                yield record
                if number == limit:
                    return
        finally:
            reader.close()

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        """Of each partition the first and the last committed records, ``count`` of either at most."""
        self.require([topic])
        reader = Reader(self)
        try:
            return [record for partition in partitions for record in reader.read_edges((topic, partition), count)]
        finally:
            reader.close()

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end; Unreadable with the batch's bytes.

        Read with kafka-python: this library gives nothing of what it cannot read, and may end the process after a wrong checksum.
        """
        entrance = {ENTRANCE[name]: value for name, value in self._options.items() if name in ENTRANCE}
        if isinstance(protocol := entrance.get("security_protocol"), str):
            entrance["security_protocol"] = protocol.upper()
        entrance["connect_timeout_seconds"] = self.connect_timeout
        with closing(KafkaBus(f"kafka://{self._servers}", entrance)) as bus:
            yield from bus.read_from(topic, partition, offset)

    def codecs(self) -> Sequence[str]:
        """The compressions that the library says it was built with, each asked for by a client of its own."""
        names = [name for name, _, _ in CODECS.values()]
        for name in names:
            try:
                LibraryProducer({"compression.type": name, "logger": LOG})
            except KafkaException as error:
                raise ConfigurationError(
                    f"this librdkafka was built without the compression {name}, and any producer may choose it: install "
                    f"confluent-kafka's own wheel, pip install --force-reinstall --no-cache-dir confluent-kafka"
                ) from error
        return names

    def close(self) -> None:
        """Close the clients of the bus; sessions are closed by themselves."""
        with self._lock:
            if self._writer is not None:
                self._writer.discard()
                self._writer = None

    def require(self, topics: Iterable[str]) -> dict[str, int]:
        """The partition counts of topics; ConfigurationError if one is missing or not allowed. Answers are remembered."""
        names = set(topics)
        for name, found in self._look_up(names - self._counts.keys()).items():
            if isinstance(found, int):
                self._counts[name] = found
            elif found.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise ConfigurationError(f"topic {name!r} does not exist: {CREATE_HINT}")
            else:
                raise told("looking up topics", found, topic=name)
        return {name: self._counts[name] for name in names}

    def check(self, records: Iterable[Outgoing]) -> dict[str, int]:
        """The largest record in bytes that each of the records' topics allows.

        ConfigurationError if a topic is missing or not allowed, if a record is too large, or its partition does not exist.
        """
        topics = {record.topic for record in records}
        counts = self.require(topics)
        for name, state in self.describe(topics - self._limits.keys()).items():
            if state.error is not None:
                raise ConfigurationError(f"topic {name!r}: {state.error}")
            self._limits[name] = min(int(state.options["max.message.bytes"]), int(self._option("message.max.bytes")))
        limits = {name: self._limits[name] for name in topics}
        check(records, limits, counts)
        return limits

    def writer(self, present: Writer | None, limits: Mapping[str, int], **settings: Any) -> Writer:
        """A writer for topics of these limits in bytes: the present one if it will do."""
        batch_bytes = min([LARGEST_BATCH, *limits.values()])
        if present is not None:
            # A batch above a topic's limit is refused whole, with records that are small enough.
            if present.batch_bytes <= batch_bytes:
                return present
            present.discard()
        writer = Writer(self, batch_bytes, settings)
        if "transactional.id" in settings:
            with translated("joining the cluster's transactions", settings["transactional.id"].rpartition(":")[0]):
                try:
                    writer.client.init_transactions(self.connect_timeout)
                except BaseException:
                    writer.discard()
                    raise
        return writer

    def ends(self, places: Iterable[Place], patience: float | None = None) -> dict[Place, int]:
        """Offset after the last committed record of each partition; BusUnavailable after ``patience`` seconds."""
        return self._offsets(places, OffsetSpec.latest(), self.connect_timeout if patience is None else patience)

    def beginnings(self, places: Iterable[Place]) -> dict[Place, int]:
        """Offset of the first record that is still there."""
        return self._offsets(places, OffsetSpec.earliest(), self.connect_timeout)

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
                    raise told("reading the ends of partitions", error.args[0]) from error
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

    def _look_up(self, topics: Iterable[str]) -> dict[str, int | KafkaError]:
        """The partitions of topics, or why they cannot be told."""
        names = sorted(set(topics))
        found: dict[str, int | KafkaError] = {}
        if not names:
            return found
        futures = self._admin.describe_topics(TopicCollection(names), request_timeout=self.connect_timeout)
        for name, future in futures.items():
            try:
                description = future.result()
                found[name] = len(description.partitions)
                self._identities[name] = str(description.topic_id)
            except KafkaException as error:
                if error.args[0].code() < 0:
                    raise told("looking up topics", error.args[0], topic=name) from error
                found[name] = error.args[0]
        return found

    def _reach(self) -> None:
        """Wait for a broker; the library tries for ever, and says why not in the background only."""
        answer = self._admin.describe_cluster(request_timeout=self.connect_timeout)
        failure: BaseException | None = None
        while failure is None:
            # Causes are told within it.
            self._admin.poll(0.05)
            if answer.done():
                failure = answer.exception()
                if failure is None:
                    return
            for cause in list(self._causes):
                if cause.code() in NOT_LET_IN:
                    raise ConfigurationError(f"bus.options: no way into the Kafka cluster at {self._servers}: {cause.str()}")
        said = [cause.str() for cause in self._causes if cause.code() != KafkaError._ALL_BROKERS_DOWN] or [str(failure)]
        raise BusUnavailable(
            f"no Kafka broker answered at {self._servers} within {self.connect_timeout:g} s: {said[-1]}"
        ) from failure

    def _option(self, name: str) -> Any:
        return self._options.get(name, DEFAULTS.get(name))


def _positive(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigurationError(f"bus.connect_timeout_seconds = {value!r}: expected a positive number of seconds")
    return number


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by librdkafka's names; whether the library knows them it says itself when the first client is made."""
    checked: dict[str, Any] = {}
    # No values in these texts: a mistyped name may be that of a password.
    for given, value in options.items():
        # The environment has no dots in names, and librdkafka no underscores.
        name = given.replace("_", ".")
        if name in OWN_OPTIONS:
            raise ConfigurationError(f"bus.options.{given} cannot be set: {OWN_OPTIONS[name]}")
        if name in OTHER_SPELLINGS:
            raise ConfigurationError(f"bus.options.{given} is kafka-python's name: librdkafka calls it {OTHER_SPELLINGS[name]!r}")
        if not isinstance(value, str | int | float):
            raise ConfigurationError(f"bus.options.{given}: text, a number, true or false is expected")
        if name in TEXT_OPTIONS and not isinstance(value, str):
            raise ConfigurationError(
                f"bus.options.{given} is not text: put it in double quotes, in an environment variable within the value"
            )
        checked[name] = value
    return checked


def _refusal(error: KafkaError) -> ConfigurationError:
    """Why the library refuses the options, without any value: one that is in the wrong place may be a password."""
    text = INVALID_VALUE.sub("Invalid value for", error.str())
    if "No such configuration property" not in text:
        return ConfigurationError(f"bus.options: {text.strip()}")
    name = text.split('"')[1]
    near = difflib.get_close_matches(name, sorted({*DEFAULTS, *TEXT_OPTIONS, *OTHER_SPELLINGS.values(), *COMMON}), n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else "the names are those of librdkafka's CONFIGURATION.md"
    return ConfigurationError(f"bus.options.{name} is not an option of librdkafka: {hint}")
