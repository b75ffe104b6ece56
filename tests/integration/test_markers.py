"""A topic that a transaction writes ends with the transaction's marker, an offset that holds no record."""

from __future__ import annotations

import math
import time
import uuid
from contextlib import closing

import pytest
from broker import Broker
from kafka import KafkaProducer
from streamfl_connectors.kafka.cluster import KafkaCluster
from streamfl_connectors.kafka.logs import KafkaReader

from streamfl.cli.record_counts import records_between
from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Outgoing, connect

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_a_marker_is_no_unread_record(scheme: str, broker: Broker) -> None:
    """Protects from a backlog that never ends: of a topic that `streamfl rekey` writes, `inspect`, `check`
    and `top` said for ever that a record of each partition is unread."""
    topic = f"marked-{uuid.uuid4().hex[:8]}"
    with closing(connect(f"{scheme}://{broker.address}")) as bus:
        bus.create([TopicSpec(topic, 1, compacted=False)])
        with closing(KafkaProducer(bootstrap_servers=broker.address, transactional_id=topic)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"first")
            producer.send(topic, b"second")
            producer.commit_transaction()
        deadline = time.monotonic() + 60
        # The marker may be written after the commit was answered.
        while (end := bus.offsets(topic, math.inf)[0]) <= 2:
            assert time.monotonic() < deadline, end
            time.sleep(0.05)
        assert records_between(bus, (topic, 0), 2, end) == 0
        assert records_between(bus, (topic, 0), end, end) == 0
        assert records_between(bus, (topic, 0), 1, end) == 1
        assert records_between(bus, (topic, 0), 0, end) == 2


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_markers_count_as_no_records(scheme: str, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects readers of `top`, `inspect` and `check` of a slow stream: each of its records has its own
    transaction, and they showed twice as many records, and twice the lag."""
    topic = f"marked-{uuid.uuid4().hex[:8]}"
    with closing(connect(f"{scheme}://{broker.address}")) as bus:
        bus.create([TopicSpec(topic, 1, compacted=False)])
        with closing(KafkaProducer(bootstrap_servers=broker.address, transactional_id=topic)) as producer:
            producer.init_transactions()
            for _ in range(20):
                producer.begin_transaction()
                producer.send(topic, b"alone")
                producer.commit_transaction()
        deadline = time.monotonic() + 60
        while (end := bus.offsets(topic, math.inf)[0]) < 40:
            assert time.monotonic() < deadline, end
            time.sleep(0.05)
        assert records_between(bus, (topic, 0), 0, end) == 20
        assert records_between(bus, (topic, 0), 20, 31) == 6
        # Of very many records only the first are read.
        monkeypatch.setattr("streamfl.cli.record_counts.MOST", 5)
        assert abs(records_between(bus, (topic, 0), 0, end) - 20) <= 2


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_looking_again_makes_no_new_reader(
    scheme: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a cluster from `streamfl top`: each look made a consumer, with its connections, for each
    partition that was behind."""
    topic, made = f"behind-{uuid.uuid4().hex[:8]}", []
    begin = KafkaReader.__init__

    def counted(reader: KafkaReader, cluster: KafkaCluster) -> None:
        made.append(reader)
        begin(reader, cluster)

    monkeypatch.setattr(KafkaReader, "__init__", counted)
    with closing(connect(f"{scheme}://{broker.address}")) as bus:
        bus.create([TopicSpec(topic, 4, compacted=False)])
        bus.write([Outgoing(topic, None, b"%d" % number, number % 4) for number in range(400)])
        for position in (0, 40, 99):
            behind = [records_between(bus, (topic, partition), position, 100) for partition in range(4)]
            assert behind == [100 - position] * 4
    assert len(made) == 1
