"""Partitions that bring little although records are there, and why that is no fault: with both connectors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from broker import Broker
from kafka import KafkaAdminClient
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest

from streamfl.runtime.bus import Outgoing, Polled, Session, Subscription, TopicSpec, connect

pytestmark = [pytest.mark.broker, pytest.mark.filterwarnings("ignore::ResourceWarning")]

CLIENT_ID = {"kafka": "client_id", "kafka+librdkafka": "client.id"}
# One batch is most of what Kafka gives this client in the about 10 seconds that a quota looks back.
BATCHES, BATCH_BYTES, BYTES_A_SECOND = 3, 80_000, 10_000
PATIENCE_SECONDS = 3


@pytest.fixture(name="client")
def _client(broker: Broker) -> Iterator[str]:
    """The name of a client that may read little."""
    name = f"slow-{uuid.uuid4().hex[:8]}"
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
        _limit(admin, name, BYTES_A_SECOND)
        yield name
        _limit(admin, name, None)


def _limit(admin: KafkaAdminClient, client: str, rate: float | None) -> None:
    entry = AlterClientQuotasRequest.EntryData
    change = entry.OpData(key="consumer_byte_rate", value=rate or 0.0, remove=rate is None)
    whose = entry.EntityData(entity_type="client-id", entity_name=client)
    asked = AlterClientQuotasRequest(entries=[entry(entity=[whose], ops=[change])], validate_only=False)
    answer = admin._manager.run(admin._manager.send, asked)
    assert [one.error_code for one in answer.entries] == [0]


@pytest.mark.parametrize("scheme", CLIENT_ID)
def test_who_is_slowed_down_reads_on(broker: Broker, client: str, scheme: str) -> None:
    """Protects a history behind a quota: a worker took a slowed-down cluster for one that brings nothing, was
    not ready, and restored its state again and again."""
    options = {"connect_timeout_seconds": PATIENCE_SECONDS, CLIENT_ID[scheme]: client}
    topic = f"samples-{uuid.uuid4().hex[:8]}"
    with closing(connect(f"kafka://{broker.address}")) as bus:
        bus.create([TopicSpec(topic, 1, False)])
        for number in range(BATCHES):
            bus.write([Outgoing(topic, None, bytes([number]) * BATCH_BYTES, 0)])
    with (
        closing(connect(f"{scheme}://{broker.address}", options)) as bus,
        closing(bus.session(Subscription(f"group-{topic}", (topic,)))) as session,
    ):
        assert _first_bytes(session, BATCHES) == [*range(BATCHES)]


@pytest.mark.parametrize("scheme", CLIENT_ID)
def test_who_pauses_a_partition_again_and_again_is_not_told_that_it_is_silent(
    broker: Broker, scheme: str
) -> None:
    """Protects a history that is read in step with the model: its partitions are paused most of the time, and
    a look now and then fell between two pauses."""
    options = {"connect_timeout_seconds": PATIENCE_SECONDS}
    topic = f"samples-{uuid.uuid4().hex[:8]}"
    with closing(connect(f"{scheme}://{broker.address}", options)) as bus:
        bus.create([TopicSpec(topic, 1, False)])
        bus.write([Outgoing(topic, None, bytes([number]), 0) for number in range(BATCHES)])
        with closing(bus.session(Subscription(f"group-{topic}", (topic,)))) as session:
            found: list[int] = []
            session.pause([(topic, 0)])
            while not session.poll(0.2, 1).assigned:
                pass
            for _ in range(2):
                session.pause([(topic, 0)])
                session.poll(0.1, 1)
                time.sleep(PATIENCE_SECONDS)
                session.pause([])
                found += _bytes_of(session.poll(0.0, 1))
            assert found + _first_bytes(session, BATCHES - len(found)) == [*range(BATCHES)]


def _first_bytes(session: Session, count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + 120
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += _bytes_of(session.poll(0.2, 1))
    return found


def _bytes_of(polled: Polled) -> list[int]:
    return [(record.value or b"")[0] for record in polled.records]
