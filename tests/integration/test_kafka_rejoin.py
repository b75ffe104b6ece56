"""A rejoin that the client library would forget."""

from __future__ import annotations

import time
import uuid

from broker import Broker

from streamfl.role import TopicSpec
from streamfl.runtime.bus import Outgoing, Subscription, connect


def test_a_rejoin_whose_cause_is_gone_again_is_still_completed(broker: Broker) -> None:
    """Protects a worker from falling silent for ever: the library drops the join when metadata changes and changes back."""
    topic = f"rejoin-{uuid.uuid4().hex[:8]}"
    bus = connect(broker.url)
    bus.create([TopicSpec(topic, 1, compacted=False)])
    session = bus.session(Subscription(group=f"{topic}.group", inputs=(topic,)))
    try:
        deadline = time.monotonic() + 30
        while 0 not in session.poll(0.1, 10).assigned:
            assert time.monotonic() < deadline, "never assigned"
        session.poll(0.1, 10)
        coordinator = session._consumer._coordinator  # type: ignore[attr-defined]
        other = 0
        while not coordinator.rejoining:
            # Mostly too short for an answer of the broker, so that the join is left under way; another change if it was not.
            assert time.monotonic() < deadline, "no join was left under way"
            other += 1
            coordinator._metadata_snapshot = {topic: {0, other}}
            session.poll(0.0, 10)
        coordinator._metadata_snapshot = coordinator._assignment_snapshot
        bus.write([Outgoing(topic, b"key", b"value")])
        read: list[bytes | None] = []
        while not read:
            assert time.monotonic() < deadline, "the worker reads nothing any more"
            read = [record.value for record in session.poll(0.1, 10).records]
        assert read == [b"value"]
    finally:
        session.close()
        bus.close()


def test_joins_answered_between_polls_come_to_an_end(broker: Broker) -> None:
    """Protects a group with short polls from rebalancing for ever: the library drops such an answer and joins again."""
    topic = f"rejoin-{uuid.uuid4().hex[:8]}"
    bus = connect(broker.url)
    bus.create([TopicSpec(topic, 1, compacted=False)])
    session = bus.session(Subscription(group=f"{topic}.group", inputs=(topic,)))
    try:
        deadline = time.monotonic() + 30
        while 0 not in session.poll(0.1, 10).assigned:
            assert time.monotonic() < deadline, "never assigned"
        coordinator = session._consumer._coordinator  # type: ignore[attr-defined]
        coordinator.request_rejoin()
        polls = 0
        session.poll(0.0, 10)
        while coordinator.rejoining:
            # Long enough for an answer of the broker, which comes while nobody polls.
            time.sleep(0.5)
            session.poll(0.0, 10)
            polls += 1
            assert polls < 20, "the answer to every join was dropped"
    finally:
        session.close()
        bus.close()
