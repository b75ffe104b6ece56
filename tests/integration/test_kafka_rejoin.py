"""Joins that the client library would forget."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from broker import Broker

from streamfl.role import TopicSpec
from streamfl.runtime.bus import Bus, Outgoing, Session, Subscription, connect

SECONDS = 30.0


@pytest.fixture
def member(broker: Broker) -> Iterator[tuple[Bus, Session, str]]:
    """A bus, a session that has the one partition of a topic, and that topic."""
    topic = f"rejoin-{uuid.uuid4().hex[:8]}"
    bus = connect(broker.url)
    bus.create([TopicSpec(topic, 1, compacted=False)])
    session = bus.session(Subscription(group=f"{topic}.group", inputs=(topic,)))
    deadline = time.monotonic() + SECONDS
    while 0 not in session.poll(0.1, 10).assigned:
        assert time.monotonic() < deadline, "never assigned"
    session.poll(0.1, 10)
    yield bus, session, topic
    session.close()
    bus.close()


def coordinator_of(session: Session) -> Any:
    return session._consumer._coordinator  # type: ignore[attr-defined]


def test_a_rejoin_whose_cause_is_gone_again_is_still_completed(member: tuple[Bus, Session, str]) -> None:
    """Protects a worker from falling silent for ever: the library drops the join when metadata changes and changes back."""
    bus, session, topic = member
    coordinator = coordinator_of(session)
    deadline = time.monotonic() + SECONDS
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


def test_joins_answered_between_polls_come_to_an_end(member: tuple[Bus, Session, str]) -> None:
    """Protects a group with short polls from rebalancing for ever: the library drops such an answer and joins again."""
    _, session, _ = member
    coordinator = coordinator_of(session)
    coordinator.request_rejoin()
    session.poll(0.0, 10)
    polls = 0
    while coordinator.rejoining:
        # Long enough for an answer of the broker, which comes while nobody polls.
        time.sleep(0.5)
        session.poll(0.0, 10)
        polls += 1
        assert polls < 20, "the answer to every join was dropped"
