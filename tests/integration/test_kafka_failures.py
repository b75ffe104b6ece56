"""The meaning of the client library's errors: the code's table equals the documented one, and both hold on a
real broker.

The library's traps are first shown on its own clients. A version without a trap fails here; then the
workaround can go."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from broker import Broker
from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import MemberToRemove
from kafka.structs import ConsumerGroupMetadata
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_connectors.kafka.clients import complete, discard, wait_for_brokers
from streamfl_connectors.kafka.failures import FAILURES, NOT_LET_IN, translated
from streamfl_connectors.kafka.membership import KafkaMembership
from streamfl_connectors.kafka.options import PRODUCER_DEFAULTS
from streamfl_connectors.kafka.sending import publish
from streamfl_connectors.session import KafkaSession
from topic_limits import lower_limit

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import (
    BusUnavailable,
    CommitRefused,
    Guarantee,
    Outgoing,
    Polled,
    Step,
    Subscription,
    connect,
)

pytestmark = pytest.mark.broker

DOCUMENT = Path(__file__).parents[2] / "docs" / "failures.md"
RAISED = {"retry": BusUnavailable, "restore and rejoin": CommitRefused, "stop": ConfigurationError}
SECONDS = 60.0


def documented() -> dict[str, str]:
    """The documented meaning of each error, by the library's name."""
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+Error`.*?) \| (retry|restore and rejoin|stop) \|", text, re.MULTILINE)
    return {name: meaning for names, meaning in rows for name in re.findall(r"`(\w+)`", names)}


def test_the_document_and_the_code_name_the_same_errors() -> None:
    """Protects the operator: the documentation lists exactly the errors that the code treats specially."""
    named = {error.__name__ for failure in FAILURES for error in failure.errors} | {
        error.__name__ for error in NOT_LET_IN
    }
    told_apart = {"MessageSizeTooLargeError", "RecordListTooLargeError"}
    assert documented().keys() == named | told_apart


@pytest.mark.parametrize(
    "name",
    sorted(
        error.__name__
        for failure in FAILURES
        for error in failure.errors
        if error is not kafka_errors.KafkaError
    ),
)
def test_an_error_means_what_the_document_says(name: str) -> None:
    """Protects every row: a worker must not retry for ever what an operator has to fix, nor stop at what
    fixes itself."""
    error = getattr(kafka_errors, name)
    with pytest.raises(RAISED[documented()[name]]), translated("trying"):
        raise error("told")
    if issubclass(error, kafka_errors.BrokerResponseError) and error.errno is not None:
        # This is how the library reports an unexpected answer of a coordinator.
        with pytest.raises(RAISED[documented()[name]]), translated("trying"):
            raise kafka_errors.KafkaError(f"Unexpected error in a response: {error()}")


@pytest.mark.parametrize(
    "name", ["KafkaTimeoutError", "NotEnoughReplicasError", "NotCoordinatorError", "IllegalStateError"]
)
def test_every_other_error_is_waited_out(name: str) -> None:
    """Protects the last row, KafkaError: an error that is not in the table is no reason to give up."""
    assert documented()["KafkaError"] == "retry"
    with pytest.raises(BusUnavailable), translated("trying"):
        raise getattr(kafka_errors, name)("told")


# ---- the rows and the traps on a real broker


@pytest.fixture(name="bus")
def _bus(broker: Broker) -> Iterator[KafkaBus]:
    bus = KafkaBus(broker.url, {})
    yield bus
    bus.close()


def new(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def topic(bus: KafkaBus, **options: str) -> str:
    name = new("topic")
    bus.create([TopicSpec(name, 1, False, {key.replace("_", "."): value for key, value in options.items()})])
    return name


def poll_until(session: KafkaSession[KafkaMembership], enough: Callable[[Polled], bool]) -> Polled:
    deadline = time.monotonic() + SECONDS
    while not enough(polled := session.poll(0.2, 100)):
        assert time.monotonic() < deadline, "polling brought nothing of it"
    return polled


def lower_known_limit(bus: KafkaBus, name: str, size: int) -> None:
    """Lower the topic's limit after this bus has read it."""
    bus.topics.limits([name])
    lower_limit(bus.cluster.servers, name, size)


def producer_of(bus: KafkaBus, **settings: Any) -> Any:
    producer = bus.cluster.make(KafkaProducer, PRODUCER_DEFAULTS, **settings)
    if "transactional_id" in settings:
        wait_for_brokers(producer)
        producer.init_transactions()
    return producer


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_record_that_the_broker_refuses_takes_the_step_with_it(bus: KafkaBus, guarantee: Guarantee) -> None:
    """Protects against H2 and H3, a commit that hangs or succeeds without the record after a partition was
    refused."""
    samples, outputs, refusing = topic(bus), topic(bus), topic(bus)
    bus.write([Outgoing(samples, None, b"a")])
    session = bus.session(Subscription(new("group"), (samples,), guarantee=guarantee))
    try:
        poll_until(session, lambda seen: bool(seen.records))
        lower_known_limit(bus, refusing, 500)
        step = Step(
            {(samples, 0): 1}, [Outgoing(outputs, None, b"fits"), Outgoing(refusing, None, bytes(5_000))]
        )
        begin = time.monotonic()
        with pytest.raises(ConfigurationError, match=rf"'{refusing}' is too large"):
            session.commit(step)
        assert time.monotonic() - begin < bus.cluster.write_timeout + 15
        assert session.committed(samples, 0) is None
        if guarantee == "exactly_once":
            assert list(bus.read(outputs)) == []
        poll_until(session, lambda seen: bool(seen.records))
        session.commit(Step({(samples, 0): 1}, [Outgoing(outputs, None, b"again")]))
        assert [record.value for record in bus.read(outputs)][-1] == b"again"
        assert session.committed(samples, 0) == 1
    finally:
        session.close()


def test_a_batch_above_the_topics_limit_arrives_whole(bus: KafkaBus) -> None:
    """Protects small records: the client splits their batch, and each record comes once and in order."""
    outputs = topic(bus)
    lower_known_limit(bus, outputs, 4_000)
    producer = producer_of(bus)
    records = [Outgoing(outputs, b"k", b"%d" % number + bytes(100)) for number in range(300)]
    try:
        publish(producer, records, bus.topics.limits([outputs]), 30)
    finally:
        discard(producer)
    assert [record.value for record in bus.read(outputs)] == [record.value for record in records]


def test_a_record_that_was_not_sent_is_not_committed_without(bus: KafkaBus) -> None:
    """Protects the reason for checking every future (H3): the library's own commit succeeds although a record
    is missing."""
    outputs = topic(bus)
    # Sent by the flush, not by the linger time.
    producer = producer_of(bus, transactional_id=new("plain"), linger_ms=10_000)
    try:
        producer.begin_transaction()
        producer.send(outputs, b"kept")
        producer.flush(10)
        missing = producer.send(outputs, b"expired")
        # delivery_timeout_ms does this to a batch that waited too long.
        expired = kafka_errors.KafkaTimeoutError("expired")
        batches = producer._accumulator._batches[TopicPartition(outputs, 0)]
        while batches:
            batch = batches.popleft()
            batch.complete_exceptionally(expired, lambda index: expired)
            producer._accumulator.deallocate(batch)
        assert missing.failed()
        complete(producer, producer._transaction_manager.begin_commit(), 10_000)
        assert [record.value for record in bus.read(outputs)] == [b"kept"]
    finally:
        discard(producer)


def test_a_producer_that_met_a_refused_record_is_replaced(bus: KafkaBus) -> None:
    """Protects writes outside a session against H5: a plain idempotent producer is unusable after a refused
    record."""
    good, refusing = topic(bus), topic(bus)
    lower_known_limit(bus, refusing, 500)
    bus.write([Outgoing(good, None, b"before")])
    with pytest.raises(ConfigurationError, match="too large"):
        bus.write([Outgoing(refusing, None, bytes(5_000))])
    bus.write([Outgoing(good, None, b"after")])
    assert [record.value for record in bus.read(good)] == [b"before", b"after"]


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
@pytest.mark.parametrize("early", [1, 3])
def test_times_that_a_topic_refuses_are_told_however_many_they_are(
    broker: Broker, scheme: str, early: int
) -> None:
    """Protects a worker whose clock is wrong: it must say so and not retry for ever. Of several refused
    records both libraries say only that they are invalid, and of the others in their batch not even that."""
    name = new("topic")
    with closing(connect(f"{scheme}://{broker.address}", {})) as bus:
        bus.create([TopicSpec(name, 1, False, {"message.timestamp.before.max.ms": "60000"})])
        good = Outgoing(name, b"k", b"now", 0)
        refused = Outgoing(name, b"k", b"two hours ago", 0, timestamp=time.time() - 7200)
        with pytest.raises(ConfigurationError, match=r"timestamp.* machine's clock"):
            bus.write([good, *[refused] * early])
        assert list(bus.read(name)) == []


def test_a_fenced_producer_is_not_revived_by_initialising_it(bus: KafkaBus) -> None:
    """Protects the reason for a NEW producer (H6): the library's second init_transactions returns but repairs
    nothing."""
    outputs, identifier = topic(bus), new("plain")
    fenced = producer_of(bus, transactional_id=identifier)
    other = producer_of(bus, transactional_id=identifier)
    try:
        fenced.begin_transaction()
        with pytest.raises(kafka_errors.KafkaError):
            publish(fenced, [Outgoing(outputs, None, b"x")], bus.topics.limits([outputs]), 10)
        fenced.init_transactions()
        with pytest.raises(kafka_errors.KafkaError):
            fenced.begin_transaction()
    finally:
        discard(fenced)
        discard(other)


def test_a_member_that_was_put_out_cannot_commit(bus: KafkaBus, broker: Broker) -> None:
    """Protects against H4, a zombie's offsets: the cluster accepts them from a negative generation, the
    connector does not."""
    samples = topic(bus)
    bus.write([Outgoing(samples, None, b"a")])
    group = new("group")
    session = bus.session(Subscription(group, (samples,)))
    producer = producer_of(bus, transactional_id=new("plain"))
    try:
        poll_until(session, lambda seen: bool(seen.records))
        # The trap: with the metadata that the library gives to an expelled member, the cluster fences nobody.
        stranger = ConsumerGroupMetadata(group, -1, "", None)
        producer.begin_transaction()
        offsets = {TopicPartition(samples, 0): OffsetAndMetadata(0, "", -1)}
        complete(
            producer, producer._transaction_manager.send_offsets_to_transaction(offsets, stranger), 10_000
        )
        complete(producer, producer._transaction_manager.begin_commit(), 10_000)
        bus.admin.remove_group_members(
            group, [MemberToRemove(session.member.consumer._coordinator._generation.member_id)]
        )
        with pytest.raises(CommitRefused):
            session.commit(Step({(samples, 0): 1}))
        assert session.committed(samples, 0) == 0
    finally:
        discard(producer)
        session.close()


def test_a_transaction_that_took_too_long_is_begun_anew(broker: Broker) -> None:
    """Protects a stalled worker, as after SIGSTOP: the cluster has aborted its transaction and fenced its
    producer."""
    bus = KafkaBus(broker.url, {"transaction_timeout_ms": 1_000})
    samples, outputs = topic(bus), topic(bus)
    bus.write([Outgoing(samples, None, b"a")])
    session = bus.session(Subscription(new("group"), (samples,)))
    try:
        poll_until(session, lambda seen: bool(seen.records))
        send = session.commits.producer._transaction_manager.send_offsets_to_transaction

        def late(*arguments: Any) -> Any:
            # The cluster looks for expired transactions once a second.
            time.sleep(4)
            return send(*arguments)

        session.commits.producer._transaction_manager.send_offsets_to_transaction = late
        with pytest.raises((CommitRefused, BusUnavailable)):
            session.commit(Step({(samples, 0): 1}, [Outgoing(outputs, None, b"late")]))
        poll_until(session, lambda seen: bool(seen.records))
        session.commit(Step({(samples, 0): 1}, [Outgoing(outputs, None, b"again")]))
        assert [record.value for record in bus.read(outputs)] == [b"again"]
    finally:
        session.close()
        bus.close()


@pytest.mark.parametrize(
    ("option", "value"), [("session_timeout_ms", 1_000), ("transaction_timeout_ms", 2_000_000_000)]
)
def test_a_timeout_that_the_broker_does_not_allow_stops_with_its_name(
    broker: Broker, option: str, value: int
) -> None:
    """Protects the operator from endless retries with a setting that the cluster never accepts."""
    bus = KafkaBus(broker.url, {option: value})
    samples = topic(bus)

    def join() -> None:
        with closing(bus.session(Subscription(new("group"), (samples,)))) as session:
            poll_until(session, lambda seen: bool(seen.assigned))

    try:
        with pytest.raises(ConfigurationError, match=rf"bus\.options\.{option}"):
            join()
    finally:
        bus.close()


def test_two_workers_of_one_instance_name_are_told(broker: Broker) -> None:
    """Protects against two static members that displace each other for ever, without reading anything."""
    bus = KafkaBus(broker.url, {"group_instance_id": "same"})
    samples, group = topic(bus), new("group")
    bus.write([Outgoing(samples, None, b"a")])
    with ExitStack() as sessions:
        sessions.callback(bus.close)
        first = sessions.enter_context(closing(bus.session(Subscription(group, (samples,)))))
        poll_until(first, lambda seen: bool(seen.records))
        second = sessions.enter_context(closing(bus.session(Subscription(group, (samples,)))))
        poll_until(second, lambda seen: bool(seen.assigned))
        with pytest.raises(ConfigurationError, match="group_instance_id"):
            first.commit(Step({(samples, 0): 1}))
