"""The librdkafka connector on a real broker: what the laws of every bus do not cover."""

from __future__ import annotations

import importlib.util
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
from broker import Broker
from confluent_kafka import TopicPartition
from kafka import KafkaProducer

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import (
    Bus,
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

SCHEME = "kafka+librdkafka"


@pytest.fixture(name="bus")
def _bus(broker: Broker) -> Iterator[Bus]:
    bus = connect(f"{SCHEME}://{broker.address}")
    yield bus
    bus.close()


def new(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def topic(bus: Bus, partitions: int = 1, **options: str) -> str:
    name = new("topic")
    bus.create(
        [TopicSpec(name, partitions, False, {key.replace("_", "."): value for key, value in options.items()})]
    )
    return name


def poll_until(session: Session, enough: Callable[[Polled], bool], seconds: float = 60.0) -> Polled:
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


def eventually(bus: Bus, name: str, expected: list[bytes]) -> None:
    """A commit is decided before all partitions have its marker."""
    deadline = time.monotonic() + 30
    while (found := [record.value for record in bus.read(name)]) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.parametrize(("partitions", "records", "seconds"), [(1, 8, 1.5), (12, 1, 0.8)])
def test_a_member_that_restores_for_long_stays_in_its_group(
    bus: Bus, broker: Broker, partitions: int, records: int, seconds: float
) -> None:
    """Protects a worker with much to restore, in one partition or in many: if it were expelled meanwhile, it
    would restore the same again for ever."""
    samples, state = topic(bus), topic(bus, partitions, cleanup_policy="compact")
    bus.write([Outgoing(samples, None, b"a")])
    numbers = [(partition, number) for partition in range(partitions) for number in range(records)]
    bus.write([Outgoing(state, b"%d" % number, b"old", partition) for partition, number in numbers])
    hasty = connect(
        f"{SCHEME}://{broker.address}", {"max.poll.interval.ms": 6000, "session.timeout.ms": 6000}
    )
    session = hasty.session(Subscription(new("group"), (samples,)))
    try:
        polled = poll_until(session, lambda seen: bool(seen.records))
        assert polled.assigned == [0]
        for partition in range(partitions):
            for _ in session.restore(state, partition):
                time.sleep(seconds)
        session.commit(Step({(samples, 0): 1}, [], [Outgoing(state, b"0", b"new", 0)]))
        assert not session.poll(1.0, 100), "nothing is given back, and nothing read twice"
        bus.write([Outgoing(samples, None, b"b")])
        assert [record.value for record in poll_until(session, lambda seen: bool(seen.records)).records] == [
            b"b"
        ]
    finally:
        session.close()
        hasty.close()


def test_a_rebalance_leaves_kept_partitions_alone(bus: Bus) -> None:
    """Protects scale-out from stopping all members: a kept partition is not revoked, a step on it is valid
    after the rebalance, and partitions of the second input move with those of the first.
    """
    samples, labels, group = topic(bus, 4), topic(bus, 4), new("group")
    bus.write([Outgoing(name, None, b"x", p) for name in (samples, labels) for p in range(4)])
    first = bus.session(Subscription(group, (samples, labels)))
    poll_until(first, lambda seen: len(seen.records) == 8)
    second = bus.session(Subscription(group, (samples, labels)))
    try:
        kept, revoked, given = set(range(4)), [], set()
        deadline = time.monotonic() + 60
        records: list[Record] = []
        while len(given) < 2 or len(records) < 4:
            assert time.monotonic() < deadline, (kept, given, records)
            polled = first.poll(0.1, 100)
            revoked += polled.revoked
            kept -= set(polled.revoked)
            polled = second.poll(0.1, 100)
            given |= set(polled.assigned)
            records += polled.records
        assert len(kept) == 2
        assert sorted(revoked) == sorted(given) == sorted(set(range(4)) - kept)
        assert {(record.topic, record.partition) for record in records} == {
            (t, p) for t in (samples, labels) for p in given
        }
        mine = {(t, p): 1 for t in (samples, labels) for p in kept}
        first.commit(Step(mine))
        assert {one: first.committed(*one) for one in mine} == mine
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_refused_step_begins_again_where_it_was(bus: Bus, guarantee: Guarantee) -> None:
    """Protects records read before a refusal, also under 'latest': they come again, and are committed
    once."""
    samples, outputs = topic(bus), topic(bus, max_message_bytes="1000")
    session = bus.session(
        Subscription(new("group"), (samples,), guarantee=guarantee, auto_offset_reset="latest")
    )
    try:
        poll_until(session, lambda seen: seen.assigned == [0])
        session.poll(0.2, 100)
        bus.write([Outgoing(samples, None, b"a"), Outgoing(samples, None, b"b")])
        poll_until(session, lambda seen: len(seen.records) == 2)
        fits = [Outgoing(outputs, b"k", bytes(800))] * 20
        with pytest.raises(ConfigurationError, match=rf"'{outputs}' is too large.*max\.message\.bytes"):
            session.commit(Step({(samples, 0): 2}, [*fits, Outgoing(outputs, None, bytes(5000))]))
        again = poll_until(session, lambda seen: len(seen.records) == 2)
        assert (again.revoked, again.assigned) == ([0], [0])
        session.commit(Step({(samples, 0): 2}, fits))
        eventually(bus, outputs, [bytes(800)] * 20)
    finally:
        session.close()


def test_a_displaced_producer_is_replaced(bus: Bus) -> None:
    """Protects against a worker that stays dead after it was fenced."""
    samples, outputs, identifier = topic(bus), topic(bus), new("transactions")
    bus.write([Outgoing(samples, None, b"a")])
    session = bus.session(Subscription(new("group"), (samples,), transactional_id=identifier))
    step = Step({(samples, 0): 1}, [Outgoing(outputs, None, b"x")])
    try:
        poll_until(session, lambda seen: len(seen.records) == 1)
        bus.session(Subscription(new("group"), (samples,), transactional_id=identifier)).close()
        with pytest.raises(CommitRefused):
            session.commit(step)
        poll_until(session, lambda seen: len(seen.records) == 1)
        session.commit(step)
        eventually(bus, outputs, [b"x"])
    finally:
        session.close()


def test_a_key_has_the_partition_that_kafka_python_gives_it(bus: Bus, broker: Broker) -> None:
    """Protects joins by key, and a change of connector: a client's records stay with their task."""
    ours, theirs = topic(bus, 5), topic(bus, 5)
    keys = [b"", *(f"client-{number}".encode() for number in range(200)), b"long" * 100]
    bus.write([Outgoing(ours, key, b"v") for key in keys])
    producer = KafkaProducer(bootstrap_servers=broker.address)
    for key in keys:
        producer.send(theirs, key=key, value=b"v")
    producer.flush(30)
    producer.close()
    assert {(r.key, r.partition) for r in bus.read(ours)} == {(r.key, r.partition) for r in bus.read(theirs)}


@pytest.mark.parametrize("which", ["input", "table"])
def test_a_partition_from_which_nothing_comes_is_noticed(broker: Broker, which: str) -> None:
    """Protects against stalling for ever: after an outage the library may not fetch a partition again. Here
    the test stops the fetch behind the session's back. A partition that is idle behind a transaction's marker
    is no cause for alarm.
    """
    bus = connect(f"{SCHEME}://{broker.address}", {"connect_timeout_seconds": 4})
    samples, table = topic(bus), topic(bus)
    session: Any = None
    deadline = time.monotonic() + 60
    while session is None:
        try:
            session = bus.session(Subscription(new("group"), (samples,), (table,)))
        except BusUnavailable:
            # A cluster that has just started answers later than this.
            assert time.monotonic() < deadline
    poll_until(session, lambda seen: bool(seen.assigned))
    session.commit(Step(outputs=[Outgoing(samples, None, b"a", 0), Outgoing(table, b"k", b"a", 0)]))
    poll_until(session, lambda seen: bool(seen.records))
    idle = time.monotonic() + 9
    while time.monotonic() < idle:
        session.poll(0.2, 100)
    name, client = (
        (samples, session.member.consumer) if which == "input" else (table, session.tables.reader.consumer)
    )
    client.pause([TopicPartition(name, 0)])
    bus.write([Outgoing(name, b"k", b"b", 0)])
    with pytest.raises(BusUnavailable, match=f"nothing came from '{name}'"):
        poll_until(
            session, lambda seen: any(record.value == b"b" for record in (*seen.records, *seen.tables))
        )
    session.close()
    bus.close()


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("", {}, r"kafka\+librdkafka://host:port"),
        ("host", {}, r"kafka\+librdkafka://host:port"),
        (
            "h:1",
            {"sesion.timeout.ms": 1},
            r"sesion\.timeout\.ms is not an option of librdkafka: did you mean session\.timeout\.ms",
        ),
        ("h:1", {"group.id": "g"}, r"bus\.options\.group\.id.*bus\.group"),
        ("h:1", {"sasl_plain_password": "x"}, r"kafka-python's name: librdkafka calls it 'sasl\.password'"),
        ("h:1", {"sasl.pasword": "secret"}, r"(?s)\A(?!.*secret).*did you mean sasl\.password"),
        ("h:1", {"sasl_password": 2718}, r"(?s)\A(?!.*2718).*double quotes"),
        ("h:1", {"session.timeout.ms": -1}, r"bus\.options: .*session\.timeout\.ms"),
        ("h:1", {"client.id": ["x"]}, r"bus\.options\.client\.id: text"),
        ("h:1", {"connect_timeout_seconds": -1}, r"connect_timeout_seconds"),
    ],
)
def test_wrong_settings_name_the_key(url: str, options: dict[str, Any], message: str) -> None:
    """Protects against an option that is dropped silently, one that would break the guarantees, and a
    password in a log."""
    with pytest.raises(ConfigurationError, match=message):
        connect(f"{SCHEME}://{url}", options)


def test_no_broker_is_a_clear_error_in_time() -> None:
    """Protects the operator's first contact: the address and the cause."""
    with pytest.raises(BusUnavailable, match=r"127\.0\.0\.1:1 within 1 s: .*refused"):
        connect(f"{SCHEME}://127.0.0.1:1", {"connect_timeout_seconds": 1})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a user without the extra from a traceback."""
    found = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "confluent_kafka" else found(name, package)

    monkeypatch.setattr("streamfl_connectors.librdkafka.find_spec", without)
    with pytest.raises(ConfigurationError, match=r"pip install 'streamfl\[librdkafka\]'"):
        connect(f"{SCHEME}://h:1")
