"""An EndTxn that comes late (KAFKA-17754) may not end another transaction: both connectors, on a real broker
behind a proxy that delays exactly that request. And a member begins where the proxy delays all of them.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest
from broker import Broker
from end_txn_proxy import Caught, EndTxnProxy, Fault, Moment
from kafka import KafkaProducer
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_connectors.kafka.clients import discard
from streamfl_connectors.kafka.options import PRODUCER_DEFAULTS
from topic_limits import lower_limit

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import (
    Bus,
    BusUnavailable,
    CommitRefused,
    Outgoing,
    Session,
    Step,
    Subscription,
    TopicSpec,
    connect,
)

pytestmark = pytest.mark.broker

# A broker's answer to a request of an old epoch.
FENCED = {47, 90}
# Short, so that the client's request timeout expires during the test.
SHORT = {"kafka": {"request_timeout_ms": 2_000}, "kafka+librdkafka": {"socket.timeout.ms": 2_000}}
# Two of them do not fit into one request.
LARGE = 600_000
# Of a slow line, in each direction.
DELAY_SECONDS = 0.3
PATIENCE_SECONDS = 90.0


@pytest.fixture(name="proxy", scope="module")
def _proxy() -> Iterator[EndTxnProxy]:
    with EndTxnProxy() as proxy:
        yield proxy


@pytest.fixture(name="address", scope="module")
def _address(proxy: EndTxnProxy) -> Iterator[str]:
    with Broker(proxy=proxy) as broker:
        yield broker.address


def topic(bus: Bus, partitions: int) -> str:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    bus.create([TopicSpec(name, partitions, False)])
    return name


def step(outputs: str, name: bytes) -> Step:
    """A step with two Produce requests."""
    return Step({}, [Outgoing(outputs, name, name * LARGE, partition) for partition in (0, 1)])


def commit_until_done(session: Session, bus: Bus, outputs: str, name: bytes) -> int:
    """Commits like a worker: whatever a commit's result, the topics show whether it counts. Returns the
    number of attempts."""
    for attempt in range(1, 6):
        try:
            session.commit(step(outputs, name))
            return attempt
        except (BusUnavailable, CommitRefused):
            # The cluster decides an undecided transaction.
            session.poll(0.0, 1)
            if name in {record.key for record in bus.read(outputs)}:
                return attempt
    raise AssertionError(f"{name!r} was not committed in five attempts")


def provoke(session: Session, refusing: str) -> None:
    """Make a step fail with records already in the topic, so that its transaction is aborted."""
    written = [Outgoing(refusing, b"aborted", b"", 0), Outgoing(refusing, b"aborted", bytes(5_000), 1)]
    with pytest.raises(ConfigurationError, match="too large"):
        session.commit(Step({}, written))


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value.replace(" ", "-"))
@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_a_late_end_ends_no_other_transaction(
    proxy: EndTxnProxy, address: str, scheme: str, fault: Fault, committed: bool
) -> None:
    """Protects exactly-once from the network: an unanswered EndTxn, of a commit or an abort, is refused when
    it arrives in a later transaction. No transaction begins in an epoch whose EndTxn may still come. With
    either unpatched library the late request is obeyed: it commits half a transaction, or aborts half of one
    that is then committed.
    """
    bus = connect(f"{scheme}://{address}", SHORT[scheme])
    outputs, refusing = topic(bus, 2), topic(bus, 2)
    group = f"group-{uuid.uuid4().hex[:12]}"
    session: Any = bus.session(Subscription(group, ()))
    proxy.doubtful.clear()
    try:
        session.commit(Step({}, [Outgoing(refusing, b"known", b"", 0)]))
        lower_limit(address, refusing, 500)
        caught: Caught = proxy.catch(fault, committed, f"{group}:", deliver=Moment(produce_requests=2))
        if committed:
            commit_until_done(session, bus, outputs, b"a")
        else:
            provoke(session, refusing)
        assert caught.kept.is_set()
        for name in (b"b", b"c"):
            commit_until_done(session, bus, outputs, name)
        if fault is not Fault.LOSE_ANSWER:
            assert caught.answered.wait(10)
            assert caught.error in FENCED
        assert not proxy.doubtful
        found = sorted((record.key, record.partition) for record in bus.read(outputs))
        assert found == [(name, p) for name in ([b"a"] if committed else []) + [b"b", b"c"] for p in (0, 1)]
        assert [record.key for record in bus.read(refusing)] == [b"known"]
    finally:
        session.close()
        bus.close()


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_who_takes_over_waits_for_an_end_that_is_under_way(
    proxy: EndTxnProxy, address: str, scheme: str
) -> None:
    """Protects a partition whose state a step wrote without reading from it, as at a tick: the worker died
    with its EndTxn on the way. The new owner, with another transactional id, does not restore the state
    before that is decided. Otherwise it would continue from an older state than the one that becomes visible.
    """
    bus = connect(f"{scheme}://{address}")
    samples, changelog = topic(bus, 2), topic(bus, 2)
    group = f"group-{uuid.uuid4().hex[:12]}"
    bus.write([Outgoing(samples, None, b"x", partition) for partition in (0, 1)])
    died = bus.session(Subscription(group, (samples,)))
    taker = None
    try:
        deadline, read = time.monotonic() + 30, 0
        while read < 2:
            assert time.monotonic() < deadline
            read += len(died.poll(0.2, 100).records)
        died.commit(
            Step(
                {(samples, p): 1 for p in (0, 1)}, [], [Outgoing(changelog, b"k", b"old", p) for p in (0, 1)]
            )
        )
        caught = proxy.catch(Fault.KEEP, True, f"{group}:")
        undecided = Step({}, [], [Outgoing(changelog, b"k", b"new", p) for p in (0, 1)])
        dying = threading.Thread(target=partial(_commit, died, undecided))
        dying.start()
        assert caught.kept.wait(20)
        taker = bus.session(Subscription(group, (samples,)))
        arrival = threading.Timer(1.0, proxy.deliver, (caught,))
        arrival.start()
        restored = {}
        # In the opposite order to the fencing of offsets one by one.
        for partition in (1, 0):
            assert taker.committed(samples, partition) == 1
            restored[partition] = [record.value for record in taker.restore(changelog, partition)]
        arrival.join()
        dying.join()
        assert restored == {0: [b"old", b"new"], 1: [b"old", b"new"]}
    finally:
        if taker is not None:
            taker.close()
        died.close()
        bus.close()


def _commit(session: Session, made: Step) -> None:
    with suppress(BusUnavailable, CommitRefused):
        session.commit(made)


def test_kafka_python_sends_an_end_twice(proxy: EndTxnProxy, address: str) -> None:
    """Protects the reason for ``end_once``: a version that does not send the request again fails here; then
    the patch can go."""
    bus = KafkaBus(f"kafka://{address}", {})
    outputs = topic(bus, 1)
    producer = bus.cluster.make(
        KafkaProducer, PRODUCER_DEFAULTS, transactional_id=f"plain-{uuid.uuid4().hex[:12]}"
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(outputs, b"sent")
        caught = proxy.catch(Fault.KEEP_AND_BREAK, True, "plain-")
        producer.commit_transaction()
        assert caught.sent_again == 1
        assert proxy.deliver(caught)
    finally:
        discard(producer)
        bus.close()


def test_librdkafka_says_of_every_end_what_became_of_it(proxy: EndTxnProxy, address: str) -> None:
    """Protects speed, and the reason for reading the log: with another log text every commit makes a new
    producer. A version that does not send EndTxn again does not need this.
    """
    bus = connect(f"kafka+librdkafka://{address}")
    outputs = topic(bus, 1)
    session: Any = bus.session(Subscription(f"group-{uuid.uuid4().hex[:12]}", ()))
    try:
        writer = session.commits.writer
        for number in range(20):
            session.commit(Step({}, [Outgoing(outputs, None, b"%d" % number)]))
            assert session.commits.writer is writer
        caught = proxy.catch(Fault.KEEP_AND_BREAK, True, "group-")
        session.commit(Step({}, [Outgoing(outputs, None, b"again")]))
        assert caught.sent_again == 1
        assert session.commits.writer is None
        assert proxy.deliver(caught)
    finally:
        session.close()
        bus.close()


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_a_member_begins_over_a_slow_line(proxy: EndTxnProxy, address: str, scheme: str) -> None:
    """Protects a worker far from its brokers: it must not ask so impatiently that it never hears an answer,
    nor begin all inputs of a partition anew because one of them has not begun. Every answer takes more than
    half a second, as by satellite."""
    url = f"{scheme}://{address}"
    inputs = tuple(f"slow-{uuid.uuid4().hex[:8]}" for _ in range(6))
    with closing(connect(url)) as near:
        near.create([TopicSpec(name, 2, compacted=False) for name in inputs])
        near.write([Outgoing(name, None, b"x", number) for name in inputs for number in range(2)])
    proxy.delay = DELAY_SECONDS
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        with (
            closing(connect(url)) as far,
            closing(far.session(Subscription(uuid.uuid4().hex, inputs))) as session,
        ):
            seen: set[tuple[str, int]] = set()
            while len(seen) < 2 * len(inputs):
                assert time.monotonic() < deadline, f"only {seen} began"
                seen |= {(record.topic, record.partition) for record in session.poll(0.5, 100).records}
    finally:
        proxy.delay = 0.0
