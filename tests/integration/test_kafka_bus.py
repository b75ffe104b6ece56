"""The Kafka connector on a real broker: the laws of every bus, and the library's traps that have lost records
before."""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from broker import Broker
from kafka import KafkaProducer
from kafka.consumer.fetcher import ConsumerRecord
from kafka.future import Future
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_connectors.kafka.logs import record_of

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import (
    BusUnavailable,
    CommitRefused,
    Guarantee,
    Outgoing,
    Polled,
    Session,
    Step,
    Subscription,
    TopicSpec,
    connect,
)

pytestmark = pytest.mark.broker

GUARANTEES: list[Guarantee] = ["exactly_once", "at_least_once"]


@pytest.fixture(name="bus")
def _bus(broker: Broker) -> Iterator[KafkaBus]:
    bus = connect(broker.url)
    assert isinstance(bus, KafkaBus)
    yield bus
    bus.close()


def new(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def topic(bus: KafkaBus, partitions: int = 1, compacted: bool = False, **options: str) -> str:
    name = new("topic")
    bus.create(
        [
            TopicSpec(
                name, partitions, compacted, {key.replace("_", "."): value for key, value in options.items()}
            )
        ]
    )
    return name


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def poll_until(session: Session, enough: Callable[[Polled], bool], seconds: float = 30.0) -> Polled:
    """Everything that the polls until ``enough`` return."""
    whole = Polled()
    deadline = time.monotonic() + seconds
    while not enough(whole):
        assert time.monotonic() < deadline, f"polling brought only {whole}"
        polled = session.poll(0.2, 100)
        whole.revoked += polled.revoked
        whole.assigned += polled.assigned
        whole.tables += polled.tables
        whole.records += polled.records
    return whole


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_refused_record_takes_the_whole_step_with_it(bus: KafkaBus, guarantee: Guarantee) -> None:
    """Guards against the client's silent loss: its commit succeeds although a send of the same transaction
    failed."""
    samples, outputs, state = topic(bus), topic(bus, 2, max_message_bytes="1000"), topic(bus, compacted=True)
    bus.write([Outgoing(samples, None, b"a"), Outgoing(samples, None, b"b")])
    session = bus.session(Subscription(new("group"), (samples,), guarantee=guarantee))
    try:
        poll_until(session, lambda seen: len(seen.records) == 2)
        good, bad = Outgoing(outputs, b"k", b"fits", 0), Outgoing(outputs, b"k", bytes(50_000), 1)
        with pytest.raises(ConfigurationError, match=r"max\.message\.bytes"):
            session.commit(Step({(samples, 0): 2}, [good, bad], [Outgoing(state, b"k", b"v", 0)]))
        assert session.committed(samples, 0) is None
        assert list(bus.read(state)) == []
        if guarantee == "exactly_once":
            assert list(bus.read(outputs)) == []

        again = poll_until(session, lambda seen: len(seen.records) == 2)
        assert again.revoked == [0]
        assert again.assigned == [0]
        assert values(again.records) == [b"a", b"b"]
        session.commit(Step({(samples, 0): 2}, [good], [Outgoing(state, b"k", b"v", 0)]))
        assert session.committed(samples, 0) == 2
        assert b"fits" in values(list(bus.read(outputs)))
        assert values(list(bus.read(state))) == [b"v"]
    finally:
        session.close()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_record_too_large_for_its_topic_is_told_before_anything_is_sent(
    bus: KafkaBus, guarantee: Guarantee
) -> None:
    """Guards against endless retries: the client splits a refused batch, the rest is out of sequence, and
    that looks like an outage.
    """
    samples, outputs = topic(bus), topic(bus, max_message_bytes="20000")
    session = bus.session(Subscription(new("group"), (samples,), guarantee=guarantee))
    good = [Outgoing(outputs, b"k", bytes(500))] * 10
    try:
        with pytest.raises(ConfigurationError, match=rf"'{outputs}' is too large.*20000 are allowed"):
            session.commit(Step(outputs=[*good, Outgoing(outputs, b"k", bytes(60_000)), *good]))
        assert list(bus.read(outputs)) == []
    finally:
        session.close()


def test_a_record_of_exactly_the_topics_limit_is_written(bus: KafkaBus) -> None:
    """Guards the size check against refusing what the cluster accepts, and against the reverse."""
    outputs = topic(bus, max_message_bytes="20000")
    framing = 61 + 3 + 3 + 2 + 3 + 1
    bus.write([Outgoing(outputs, b"k", bytes(20_000 - framing))])
    assert len(list(bus.read(outputs))) == 1
    with pytest.raises(ConfigurationError, match="it takes 20001 bytes"):
        bus.write([Outgoing(outputs, b"k", bytes(20_001 - framing))])


def test_a_displaced_producer_is_replaced(bus: KafkaBus) -> None:
    """Guards against a worker that stays dead after it was fenced: the library's producer has to be
    replaced."""
    samples, outputs = topic(bus), topic(bus)
    bus.write([Outgoing(samples, None, b"a")])
    identifier = new("transactions")
    session = bus.session(Subscription(new("group"), (samples,), transactional_id=identifier))
    try:
        poll_until(session, lambda seen: len(seen.records) == 1)
        bus.session(Subscription(new("group"), (samples,), transactional_id=identifier)).close()
        with pytest.raises(CommitRefused):
            session.commit(Step({(samples, 0): 1}, [Outgoing(outputs, None, b"x")]))
        poll_until(session, lambda seen: len(seen.records) == 1)
        session.commit(Step({(samples, 0): 1}, [Outgoing(outputs, None, b"x")]))
        assert values(list(bus.read(outputs))) == [b"x"]
    finally:
        session.close()


def test_a_step_without_positions_is_fenced_too(bus: KafkaBus) -> None:
    """Guards against a worker that lost its partitions and still writes state at a tick: the partition has
    another owner."""
    samples, state = topic(bus), topic(bus, compacted=True)
    bus.write([Outgoing(samples, None, b"a")])
    group = new("group")
    # With such a short session and slow polls, the group declares the first member dead while it is busy.
    slow = connect(_url(bus), {"max_poll_interval_ms": 6000, "session_timeout_ms": 6000})
    sleeper = slow.session(Subscription(group, (samples,)))
    other = bus.session(Subscription(group, (samples,)))
    try:
        poll_until(sleeper, lambda seen: bool(seen.records))
        taken = poll_until(other, lambda seen: bool(seen.records), seconds=60)
        assert taken.assigned == [0]
        with pytest.raises(CommitRefused):
            sleeper.commit(Step(changelog=[Outgoing(state, b"k", b"stale", 0)]))
        assert list(bus.read(state)) == []
        other.commit(Step({(samples, 0): 1}, [], [Outgoing(state, b"k", b"fresh", 0)]))
        assert values(list(bus.read(state))) == [b"fresh"]
    finally:
        sleeper.close()
        other.close()
        slow.close()


def test_latest_does_not_skip_what_a_refused_step_had_read(bus: KafkaBus) -> None:
    """Guards against loss under auto_offset_reset = latest: reading from the end again after a refusal would
    skip records."""
    samples, outputs = topic(bus), topic(bus, max_message_bytes="1000")
    session = bus.session(Subscription(new("group"), (samples,), auto_offset_reset="latest"))
    try:
        poll_until(session, lambda seen: seen.assigned == [0])
        session.poll(0.2, 100)
        bus.write([Outgoing(samples, None, b"a")])
        poll_until(session, lambda seen: bool(seen.records))
        with pytest.raises(ConfigurationError):
            session.commit(Step({(samples, 0): 1}, [Outgoing(outputs, None, bytes(50_000))]))
        assert values(poll_until(session, lambda seen: bool(seen.records)).records) == [b"a"]
    finally:
        session.close()


def test_error_as_reset_lets_the_caller_seek_and_stops_otherwise(bus: KafkaBus) -> None:
    """Guards both parts of auto_offset_reset = error: no silent default, but no error if the changelog has
    the position."""
    samples = topic(bus)
    bus.write([Outgoing(samples, None, b"a"), Outgoing(samples, None, b"b")])
    subscription = Subscription(new("group"), (samples,), auto_offset_reset="error")
    session = bus.session(subscription)
    try:
        poll_until(session, lambda seen: seen.assigned == [0])
        session.seek(samples, 0, 1)
        assert values(poll_until(session, lambda seen: bool(seen.records)).records) == [b"b"]
    finally:
        session.close()
    session = bus.session(subscription)
    try:
        with pytest.raises(ConfigurationError, match="auto_offset_reset"):
            poll_until(session, lambda seen: bool(seen.records))
    finally:
        session.close()


def test_a_table_is_read_as_compaction_would_leave_it(bus: KafkaBus) -> None:
    """Guards the memory at a start: it grows with the table, not with its log. A marker that is written again
    still follows the records that it covers, a deletion is reported, and later changes come one by one.
    """
    table = topic(bus, 2, compacted=True)
    written = [
        (b"a", b"1"),
        (b"marker", b"1"),
        (b"gone", b"1"),
        (b"b", b"1"),
        (b"a", b"2"),
        (b"gone", None),
        (b"marker", b"2"),
    ]
    bus.write(
        [Outgoing(table, key, value, 0) for key, value in written] * 3 + [Outgoing(table, b"a", b"other", 1)]
    )
    session = bus.session(Subscription(new("group"), (), (table,)))
    try:
        read = session.poll(0.2, 100).tables
        whole = [(record.key, record.value) for record in read if record.partition == 0]
        assert whole == [(b"b", b"1"), (b"a", b"2"), (b"gone", None), (b"marker", b"2")]
        assert values([record for record in read if record.partition == 1]) == [b"other"]
        bus.write([Outgoing(table, b"a", value, 0) for value in (b"3", b"4")])
        later = poll_until(session, lambda seen: len(seen.tables) == 2).tables
        assert values(later) == [b"3", b"4"]
    finally:
        session.close()


def test_records_are_written_as_the_librarys_own_send_writes_them(bus: KafkaBus, broker: Broker) -> None:
    """Guards joins by key with other writers' topics: the same partition for a key, and the same keys, values
    and headers."""
    count, ours, theirs = 5, topic(bus, 5), topic(bus, 5)
    headers = (("one", b"1"), ("two", b""))
    keys = [b"", b"k", b"key", *(f"client-{number}".encode() for number in range(200)), b"long" * 100]
    bus.write(
        [Outgoing(ours, key, b"value of " + key, None, headers) for key in keys]
        + [Outgoing(ours, b"gone", None)]
    )
    bus.write([Outgoing(ours, None, b"without a key")])
    producer = KafkaProducer(bootstrap_servers=broker.address)
    for key in keys:
        producer.send(theirs, key=key, value=b"value of " + key, headers=list(headers))
    producer.send(theirs, key=b"gone", value=None)
    producer.flush(30)
    producer.close()

    def content(name: str) -> set[tuple[Any, ...]]:
        return {(r.partition, r.key, r.value, r.headers) for r in bus.read(name) if r.key is not None}

    assert content(ours) == content(theirs)
    assert len(content(ours)) == len(keys) + 1
    assert {partition for partition, *_ in content(ours)} == set(range(count))
    assert [record.value for record in bus.read(ours) if record.key is None] == [b"without a key"]


def test_what_cannot_be_written_is_a_clear_error(bus: KafkaBus) -> None:
    """Guards a sender from waiting for a partition that never exists, and from a library's traceback."""
    name = topic(bus, 2)
    with pytest.raises(ConfigurationError, match="there is no partition 2"):
        bus.write([Outgoing(name, b"key", b"value", 2)])
    with pytest.raises(ConfigurationError, match="neither a key nor a value"):
        bus.write([Outgoing(name, None, None)])
    bus.write([Outgoing(name, b"key", b"value", 1)])
    assert values(list(bus.read(name))) == [b"value"]


def test_a_null_header_of_somebody_else_can_be_passed_on(bus: KafkaBus) -> None:
    """Guards the dead letters: a record with a null header, which Kafka allows and this client cannot write,
    must not stop the stream.
    """
    found = ConsumerRecord(
        "elsewhere", 0, -1, 7, 1_700_000_000_000, 0, b"key", b"value", [("null", None)], None, 3, 5, 4
    )
    record = record_of(found)
    assert record.headers == (("null", b""),)
    name = topic(bus)
    bus.write([Outgoing(name, record.key, record.value, 0, record.headers)])
    assert [written.headers for written in bus.read(name)] == [record.headers]


def test_two_inputs_are_assigned_together(bus: KafkaBus) -> None:
    """Guards co-partitioning: labels of a client on another worker than its samples would never meet them."""
    samples, labels = topic(bus, 4), topic(bus, 4)
    bus.write([Outgoing(name, None, str(p).encode(), p) for name in (samples, labels) for p in range(4)])
    group = new("group")
    sessions = [bus.session(Subscription(group, (samples, labels))) for _ in range(2)]
    owned: list[set[int]] = [set(), set()]
    read: list[set[tuple[str, int]]] = [set(), set()]
    try:
        deadline = time.monotonic() + 60
        while sorted(map(len, owned)) != [2, 2] or any(len(one) < 4 for one in read):
            assert time.monotonic() < deadline, (owned, read)
            for index, session in enumerate(sessions):
                polled = session.poll(0.1, 100)
                owned[index] -= set(polled.revoked)
                owned[index] |= set(polled.assigned)
                read[index] = {one for one in read[index] if one[1] in owned[index] - set(polled.assigned)}
                read[index] |= {(record.topic, record.partition) for record in polled.records}
        for index in range(2):
            assert read[index] == {(name, p) for name in (samples, labels) for p in owned[index]}
    finally:
        for session in sessions:
            session.close()


@pytest.mark.parametrize("of", ["inputs", "tables"])
def test_a_fetch_that_is_never_answered_is_noticed(broker: Broker, of: str) -> None:
    """Protects a worker from stalling for ever: the library may forget a fetch if the broker dies during the
    connect."""
    bus = connect(broker.url, {"connect_timeout_seconds": 3})
    assert isinstance(bus, KafkaBus)
    samples, table = topic(bus), topic(bus, compacted=True)
    subscription = Subscription(new("group"), (samples,), (table,))
    session: Any = bus.session(subscription)
    try:
        poll_until(session, lambda seen: seen.assigned == [0])
        fetcher = (session.member if of == "inputs" else session.tables.reader).consumer._fetcher
        deadline = time.monotonic() + 30
        while not fetcher._fetch_futures:
            assert time.monotonic() < deadline
            session.poll(0.05, 100)
        # The library then leaves this behind: nodes that get no more requests, and a future that never
        # completes.
        fetcher._clear_pending_fetch_request = lambda node, answer: None
        fetcher._fetch_futures.append(Future())
        with pytest.raises(BusUnavailable, match="has not answered a request for records for 3 s"):
            session.poll(30, 100)
        session.close()
        bus.write([Outgoing(samples, None, b"a"), Outgoing(table, b"k", b"b")])
        session = bus.session(subscription)
        seen = poll_until(session, lambda seen: bool(seen.records))
        assert (values(seen.records), values(seen.tables)) == ([b"a"], [b"b"])
    finally:
        session.close()
        bus.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("_refused_connections")
def test_no_broker_is_a_clear_error_in_time(caplog: pytest.LogCaptureFixture) -> None:
    """Guards the operator's first contact: no traceback, no 30 s of silence and no page of the library's log,
    but the address and the cause.
    """
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    with pytest.raises(BusUnavailable, match=f"127.0.0.1:{port} within 1 s: .*ECONNREFUSED"):
        connect(f"kafka://127.0.0.1:{port}", {"connect_timeout_seconds": 1})
    assert caplog.messages == []
    # A line that passes whatever was logged about an outage within the last minute.
    logging.getLogger("kafka.net").error("heard again", extra={"left_out": 0})
    assert caplog.messages == ["heard again"]


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("kafka://", {}, r"kafka://host:port"),
        ("kafka://host", {}, r"kafka://host:port"),
        ("kafka://host:65536", {}, r"ports of 1 to 65535"),
        ("kafka://host:1", {"sesion_timeout_ms": 1}, r"bus\.options\.sesion_timeout_ms.*session_timeout_ms"),
        ("kafka://host:1", {"group_id": "g"}, r"bus\.options\.group_id.*bus\.group"),
        ("kafka://host:1", {"connect_timeout_seconds": -1}, r"connect_timeout_seconds"),
        (
            "kafka://host:1",
            {"sasl_plain_pasword": "secret"},
            r"(?s)\A(?!.*secret).*did you mean sasl_plain_password",
        ),
        ("kafka://host:1", {"session_timeout_ms": -1}, r"bus\.options\.session_timeout_ms: a number from 0"),
        ("kafka://host:1", {"request_timeout_ms": "x"}, r"bus\.options\.request_timeout_ms: a number"),
        ("kafka://host:1", {"client_id": 5}, r"bus\.options\.client_id: text"),
        ("kafka://host:1", {"check_crcs": False}, r"bus\.options\.check_crcs cannot be set: always on"),
        (
            "kafka://host:1",
            {"exclude_internal_topics": 1},
            r"bus\.options\.exclude_internal_topics: true or false",
        ),
        ("kafka://host:1", {"security_protocol": "X"}, r"bus\.options\.security_protocol: PLAINTEXT or SSL"),
        ("kafka://host:1", {"ssl_cafile": "/no/such/file"}, r"bus\.options\.ssl_cafile: the name of a file"),
        ("kafka://host:1", {"sasl_plain_password": 2718}, r"(?s)\A(?!.*2718).*double quotes"),
    ],
)
def test_wrong_settings_name_the_key(url: str, options: dict[str, Any], message: str) -> None:
    """Guards against a mistyped option that is dropped silently, and against one that would break the
    guarantees."""
    with pytest.raises(ConfigurationError, match=message):
        connect(url, options)


def test_a_topic_that_is_deleted_while_it_is_described_does_not_exist(
    bus: KafkaBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects an operator from the advice to allow DescribeConfigs on a topic that is gone."""
    name, ask = topic(bus), bus.admin.describe_configs

    def ask_late(*arguments: Any, **named: Any) -> Any:
        bus.admin.delete_topics([name])
        while bus.topics.look_up([name])[name] is not None:
            time.sleep(0.05)
        return ask(*arguments, **named)

    monkeypatch.setattr(bus.admin, "describe_configs", ask_late)
    assert bus.describe([name]) == {}


def test_a_missing_topic_is_named(bus: KafkaBus) -> None:
    """Guards against a worker that silently polls a missing topic for ever."""
    samples, missing = topic(bus), new("missing")
    with pytest.raises(ConfigurationError, match=missing):
        bus.session(Subscription(new("group"), (missing,)))
    with pytest.raises(ConfigurationError, match=missing):
        bus.write([Outgoing(missing, None, b"x")])
    session = bus.session(Subscription(new("group"), (samples,)))
    try:
        with pytest.raises(ConfigurationError, match=missing):
            session.commit(Step(outputs=[Outgoing(missing, None, b"x")]))
    finally:
        session.close()


def _url(bus: KafkaBus) -> str:
    return f"kafka://{','.join(bus.cluster.servers)}"
