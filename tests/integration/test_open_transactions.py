"""An open transaction hides the records behind it: a worker that gets nothing is red, and names the
partition."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest
from broker import Broker
from kafka import KafkaProducer

from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Outgoing, connect
from streamfl.runtime.open_transactions import OpenTransactions
from streamfl.testing.bus_laws.members import eventually

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_a_transaction_that_stays_open_is_told_with_its_partition(broker: Broker, scheme: str) -> None:
    """Protects a reader of committed records that gets nothing and seems to be done: the last stable offset
    hides the rest."""
    topic = f"readings-{uuid.uuid4().hex[:8]}"
    now = 1000.0
    with closing(connect(f"{scheme}://{broker.address}")) as bus:
        bus.create([TopicSpec(topic, 3, compacted=False)])
        bus.write([Outgoing(topic, None, b"before", 1)])
        watched = OpenTransactions(bus, [topic], lambda: now)
        assert watched.look() is None
        with closing(KafkaProducer(bootstrap_servers=broker.address, transactional_id=topic)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"held", partition=1).get(10)
            bus.write([Outgoing(topic, None, b"behind", 1)])
            assert [record.value for record in bus.read(topic)] == [b"before"]
            # At any time a transaction may be open for a moment.
            assert watched.look() is None
            now += 121
            told = watched.look()
            assert told is not None
            assert f"partition 1 of {topic!r} since offset 1 for 121 s, 2 records" in told
            # Another transaction on the partition would have another offset.
            producer.commit_transaction()
        eventually(watched.look, None)
        assert [record.value for record in bus.read(topic)] == [b"before", b"held", b"behind"]
