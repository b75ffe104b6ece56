"""An EndTxn that comes late (KAFKA-17754): what one transaction's end may not do to another, with both connectors, on a real broker
behind a proxy that delays exactly that request.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from broker import Broker
from end_txn_proxy import Caught, EndTxnProxy, Fault, Moment
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from streamfl_connectors.kafka import PRODUCER_DEFAULTS, KafkaBus
from streamfl_connectors.kafka_clients import discard

from streamfl.role import ConfigurationError
from streamfl.runtime.bus import Bus, BusUnavailable, CommitRefused, Outgoing, Session, Step, Subscription, TopicSpec, connect

pytestmark = pytest.mark.broker

# What a broker says to a request of an epoch that is over.
FENCED = {47, 90}
# So that its own time for a request is over while the test looks on.
SHORT = {"kafka": {"request_timeout_ms": 2_000}, "kafka+librdkafka": {"socket.timeout.ms": 2_000}}
# Two of them do not fit into one request.
LARGE = 600_000


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
    """A step that takes two Produce requests."""
    return Step({}, [Outgoing(outputs, name, name * LARGE, partition) for partition in (0, 1)])


def commit_until_done(session: Session, bus: Bus, outputs: str, name: bytes) -> int:
    """What a worker does: whatever comes of a commit, the topics say whether it counts. The number of attempts."""
    for attempt in range(1, 6):
        try:
            session.commit(step(outputs, name))
            return attempt
        except (BusUnavailable, CommitRefused):
            # The cluster decides what was left undecided.
            session.poll(0.0, 1)
            if name in {record.key for record in bus.read(outputs)}:
                return attempt
    raise AssertionError(f"{name!r} was not committed in five attempts")


def provoke(session: Session, address: str, refusing: str) -> None:
    """Have a step refused with records of it in the topic, so that its transaction is aborted."""
    limit = ConfigResource(ConfigResourceType.TOPIC, refusing, configs={"max.message.bytes": "500"})
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        admin.alter_configs([limit])
    written = [Outgoing(refusing, b"aborted", b"", 0), Outgoing(refusing, b"aborted", bytes(5_000), 1)]
    with pytest.raises(ConfigurationError, match="too large"):
        session.commit(Step({}, written))


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value.replace(" ", "-"))
@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_a_late_end_ends_no_other_transaction(
    proxy: EndTxnProxy, address: str, scheme: str, fault: Fault, committed: bool
) -> None:
    """Protects exactly once from the network: an EndTxn that got no answer, of a commit or an abort, is refused when it arrives
    amid a later transaction; no transaction begins in an epoch of which one may still come. With either library as it is, the late
    one is obeyed: it commits half a transaction, or aborts half of one that is then committed.
    """
    bus = connect(f"{scheme}://{address}", SHORT[scheme])
    outputs, refusing = topic(bus, 2), topic(bus, 2)
    group = f"group-{uuid.uuid4().hex[:12]}"
    session: Any = bus.session(Subscription(group, ()))
    proxy.doubtful.clear()
    try:
        session.commit(Step({}, [Outgoing(refusing, b"known", b"", 0)]))
        caught: Caught = proxy.catch(fault, committed, f"{group}:", deliver=Moment(produce_requests=2))
        if committed:
            commit_until_done(session, bus, outputs, b"a")
        else:
            provoke(session, address, refusing)
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


def test_kafka_python_sends_an_end_twice(proxy: EndTxnProxy, address: str) -> None:
    """Protects the reason for ``end_once``: a version that does not send it again fails here, and the mend can go."""
    bus = KafkaBus(f"kafka://{address}", {})
    outputs = topic(bus, 1)
    producer = bus.make(KafkaProducer, PRODUCER_DEFAULTS, transactional_id=f"plain-{uuid.uuid4().hex[:12]}")
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
    """Protects speed and the reason for listening to the log: a version whose log says something else has every commit make a new
    producer, and a version that does not send EndTxn again needs no listening.
    """
    bus = connect(f"kafka+librdkafka://{address}")
    outputs = topic(bus, 1)
    session: Any = bus.session(Subscription(f"group-{uuid.uuid4().hex[:12]}", ()))
    try:
        writer = session._writer
        for number in range(20):
            session.commit(Step({}, [Outgoing(outputs, None, b"%d" % number)]))
            assert session._writer is writer
        caught = proxy.catch(Fault.KEEP_AND_BREAK, True, "group-")
        session.commit(Step({}, [Outgoing(outputs, None, b"again")]))
        assert caught.sent_again == 1
        assert session._writer is None
        assert proxy.deliver(caught)
    finally:
        session.close()
        bus.close()
