"""The group protocol of KIP-848, with librdkafka on a real broker."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from contextlib import closing
from typing import Any

import pytest
from broker import Broker
from confluent_kafka import KafkaError
from streamfl_connectors.librdkafka.failures import told
from streamfl_connectors.librdkafka.membership import _vouches

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, Outgoing, Subscription, TopicSpec, connect

pytestmark = pytest.mark.broker

OPTIONS = {"group.protocol": "consumer"}
RECORDS, PARTITIONS = 2000, 4

# Copies every record in a transaction for each batch, like a worker.
WORKER = """
import sys
from streamfl.runtime.bus import BusUnavailable, CommitRefused, Outgoing, Step, Subscription, connect
url, group, samples, outputs, name = sys.argv[1:]
bus = connect(url, {"group.protocol": "consumer"})
session = bus.session(Subscription(group, (samples,)))
while True:
    try:
        records = session.poll(0.2, 10).records
        if records:
            positions = {(one.topic, one.partition): one.offset + 1 for one in records}
            session.commit(Step(positions, [Outgoing(outputs, name.encode(), one.value) for one in records]))
    except (BusUnavailable, CommitRefused):
        pass
"""


def test_every_record_is_processed_once_through_a_kill(broker: Broker) -> None:
    """Protects exactly-once under the new protocol: a member is killed in the middle of its transactions, the
    group notices it after the cluster's session timeout, another takes over its partitions, and no record is
    lost or processed twice.
    """
    run = uuid.uuid4().hex[:8]
    group, samples, outputs = (f"{name}-{run}" for name in ("group", "samples", "outputs"))
    url = f"kafka+librdkafka://{broker.address}"
    expected = [f"{number}".encode() for number in range(RECORDS)]
    workers: list[subprocess.Popen[bytes]] = []
    seen: list[bytes | None] = []
    with closing(connect(url, OPTIONS)) as bus:
        bus.create([TopicSpec(samples, PARTITIONS, False), TopicSpec(outputs, 1, False)])
        try:
            for number in range(2):
                command = [sys.executable, "-c", WORKER, url, group, samples, outputs, str(number)]
                workers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            deadline = time.monotonic() + 60
            written, by, killed = 0, set[bytes | None](), False
            while written < RECORDS or len(seen) < RECORDS or not killed:
                assert time.monotonic() < deadline, f"{len(seen)} of {written}"
                # A few records at a time until both have partitions, then all the rest: both are busy when
                # one is killed.
                some = range(written, RECORDS if len(by) == 2 else min(written + PARTITIONS, RECORDS))
                bus.write([Outgoing(samples, None, expected[number], number % PARTITIONS) for number in some])
                written = some.stop
                records = list(bus.read(outputs))
                by, seen = {record.key for record in records}, [record.value for record in records]
                if not killed and written == RECORDS and len(seen) > RECORDS / 8:
                    assert len(seen) < RECORDS, "too few records for a kill in between"
                    workers[int(records[-1].key or b"")].kill()
                    killed = True
                time.sleep(0.05)
            assert len(by) == 2
            assert sorted(one or b"" for one in seen) == sorted(expected)
            assert sum(bus.committed(group).values()) >= RECORDS
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_groups_members_are_counted(broker: Broker, protocol: str) -> None:
    """Protects a standby under the new protocol: kafka-python does not see its group's members, so the
    standby would be red."""
    group, samples = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("group", "samples"))
    with closing(connect(f"kafka+librdkafka://{broker.address}", {"group.protocol": protocol})) as bus:
        bus.create([TopicSpec(samples, 1, False)])
        assert bus.members(group) == 0
        sessions = [bus.session(Subscription(group, (samples,))) for _ in range(3)]
        deadline = time.monotonic() + 60
        while bus.members(group) < 3:
            assert time.monotonic() < deadline
            for session in sessions:
                session.poll(0.1, 1)
        for session in sessions:
            session.close()


def test_a_member_that_was_put_out_vouches_for_nothing() -> None:
    """Protects an empty group: the cluster accepts offsets of epoch -1 there from anybody, and under this
    protocol an expelled member keeps its name.
    """
    alive, out = (
        b"CGMDv2:" + epoch.to_bytes(4, sys.byteorder, signed=True) + b"group\0member\0\1" for epoch in (7, -1)
    )
    assert _vouches(alive, "member")
    assert not _vouches(out, "member")
    assert not _vouches(alive, None)
    # Unknown metadata is treated as before this protocol: the name decides.
    assert _vouches(b"CGMDv9:whatever", "member")


def test_the_librarys_metadata_is_as_it_is_read(broker: Broker) -> None:
    """Protects the check above from a library release that writes its metadata differently."""
    with closing(connect(f"kafka+librdkafka://{broker.address}", OPTIONS)) as bus:
        name = f"alone-{uuid.uuid4().hex[:8]}"
        bus.create([TopicSpec(name, 1, False)])
        with closing(bus.session(Subscription(name, (name,)))) as session:
            member: Any = session.member  # type: ignore[attr-defined]
            assert member.consumer.consumer_group_metadata()[:11] == b"CGMDv2:" + (-1).to_bytes(
                4, sys.byteorder, signed=True
            )
            assert member.consumer.memberid()
            deadline = time.monotonic() + 30
            while not session.poll(0.2, 10).assigned:
                assert time.monotonic() < deadline
            assert _vouches(member.consumer.consumer_group_metadata(), member.consumer.memberid())


def test_what_ends_the_librarys_consumer_is_not_waited_out() -> None:
    """Protects a worker on a cluster without the protocol: the library reports it once in a text, and then
    returns nothing."""
    lacking = KafkaError(
        KafkaError._FATAL,
        "Fatal error: Broker: API version not supported: ConsumerGroupHeartbeat fatal error",
    )
    assert isinstance(failure := told("polling", lacking), ConfigurationError)
    assert "leave out bus.options 'group.protocol'" in str(failure)
    fenced = KafkaError(
        KafkaError._FATAL, "Fatal error: Static consumer fenced by other consumer with same group.instance.id"
    )
    assert isinstance(told("polling", fenced), ConfigurationError)
    assert isinstance(told("polling", KafkaError(KafkaError._FATAL, "something else")), BusUnavailable)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group.protocol": "newest"}, "classic or consumer"),
        ({"group_remote_assignor": "uniform"}, "only has a meaning with 'group.protocol' = 'consumer'"),
        ({"group.protocol": "consumer", "session.timeout.ms": 6000}, r"session\.timeout\.ms"),
    ],
)
def test_what_does_not_go_with_the_protocol_is_named(
    broker: Broker, options: dict[str, Any], message: str
) -> None:
    """Protects the operator from a timeout without effect: under this protocol the cluster sets it."""
    with closing(connect(f"kafka+librdkafka://{broker.address}")) as bus:
        name = f"wrong-{uuid.uuid4().hex[:8]}"
        bus.create([TopicSpec(name, 1, False)])
    with (
        pytest.raises(ConfigurationError, match=message),
        closing(connect(f"kafka+librdkafka://{broker.address}", options)) as other,
    ):
        other.session(Subscription(name, (name,)))
