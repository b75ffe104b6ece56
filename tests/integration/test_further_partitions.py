"""Partitions that are added, on a real broker, to a topic between members while they run."""

from __future__ import annotations

import time

import pytest
from broker import Broker
from confluent_kafka.admin import AdminClient, NewPartitions

from streamfl.runtime.bus import Outgoing, Subscription, connect
from streamfl.testing.bus_laws.members import Owned, new_name, new_topic, opened, together

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
@pytest.mark.parametrize("first", ["samples", "replies"])
def test_members_share_what_the_role_reads(broker: Broker, scheme: str, first: str) -> None:
    """Protects a federation from one command that cannot be undone: a member that runs is given no partition
    that others of its inputs lack, one that begins afterwards shares the old ones with it, and both read on.
    The group assigns by the first input with librdkafka."""
    option = {"kafka": "metadata_max_age_ms", "kafka+librdkafka": "topic.metadata.refresh.interval.ms"}[
        scheme
    ]
    bus = connect(f"{scheme}://{broker.address}", {option: 500})
    samples, replies = new_topic(bus, partitions=2), new_topic(bus, partitions=2)
    inputs = (samples, replies) if first == "samples" else (replies, samples)
    subscription = Subscription(new_name("group"), inputs, placed=frozenset({replies}))
    with opened(bus, subscription) as session:
        own = Owned(session)
        together([own], lambda: own.partitions == {0, 1})
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_partitions([NewPartitions(replies, 4)])[replies].result()
        until = time.monotonic() + 4
        while time.monotonic() < until:
            own.poll()
            assert own.partitions <= {0, 1}
        together([own], lambda: own.partitions == {0, 1})
        later = connect(f"{scheme}://{broker.address}", {})
        with opened(later, subscription) as another:
            members = [own, Owned(another)]
            together(members, lambda: members[0].partitions | members[1].partitions == {0, 1})
            bus.write([Outgoing(topic, None, b"x", p) for topic in inputs for p in range(2)])
            together(members, lambda: sum(len(one.records) for one in members) >= 4)
            for one in members:
                assert one.partitions <= {0, 1}
        later.close()
    bus.close()
