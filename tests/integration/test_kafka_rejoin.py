"""Joins that the client library would forget, and what a member keeps during them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from types import ModuleType
from typing import Any

import pytest
from broker import Broker
from streamfl_connectors.kafka import clients
from streamfl_connectors.librdkafka import cluster

from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import (
    Bus,
    CommitRefused,
    Guarantee,
    Outgoing,
    Polled,
    Session,
    Step,
    Subscription,
    connect,
)

SECONDS = 30.0


@pytest.fixture
def member(broker: Broker) -> Iterator[tuple[Bus, Session, str]]:
    """A bus, a session with a topic's only partition, and that topic."""
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
    return session.member.consumer._coordinator  # type: ignore[attr-defined]


def test_a_rejoin_whose_cause_is_gone_again_is_still_completed(member: tuple[Bus, Session, str]) -> None:
    """Protects a worker from silence for ever: the library drops the join when metadata changes and changes
    back."""
    bus, session, topic = member
    coordinator = coordinator_of(session)
    deadline = time.monotonic() + SECONDS
    other = 0
    while not coordinator.rejoining:
        # Mostly too short for the broker's answer, so that the join stays pending. If it did not, change
        # again.
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
    """Protects a group with short polls from endless rebalances: the library drops such an answer and joins
    again."""
    _, session, _ = member
    coordinator = coordinator_of(session)
    coordinator.request_rejoin()
    session.poll(0.0, 10)
    polls = 0
    while coordinator.rejoining:
        # Long enough for the broker's answer, which comes while nobody polls.
        time.sleep(0.5)
        session.poll(0.0, 10)
        polls += 1
        assert polls < 20, "the answer to every join was dropped"


def join_under_way(session: Session) -> None:
    """Polls that begin a join and do not take its answer."""
    deadline = time.monotonic() + SECONDS
    while not coordinator_of(session).rejoining:
        assert time.monotonic() < deadline, "no join was begun"
        session.poll(0.0, 10)


def told(session: Session, enough: int) -> Polled:
    """The session's output until it has returned this many records."""
    whole = Polled()
    deadline = time.monotonic() + SECONDS
    while len(whole.records) < enough:
        assert time.monotonic() < deadline, f"only {whole}"
        polled = session.poll(0.1, 10)
        whole.revoked += polled.revoked
        whole.assigned += polled.assigned
        whole.records += polled.records
    return whole


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_step_that_the_next_generation_overtook_is_committed_in_it(
    broker: Broker, guarantee: Guarantee
) -> None:
    """Protects kept partitions from being restored at every join of another member: the step of a member of
    both generations counts.
    """
    for _ in range(4):
        # The join after next may begin at this very moment. Then the step is refused, and that is right.
        with suppress(CommitRefused):
            _commit_overtaken(broker, guarantee)
            return
    pytest.fail("each step was refused")


def _commit_overtaken(broker: Broker, guarantee: Guarantee) -> None:
    """Commit a step in the generation after the one that it was read in. CommitRefused if the group goes on
    to the generation after that."""
    topic, group = f"rejoin-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    subscription = Subscription(group, (topic,), guarantee=guarantee)
    with ExitStack() as opened:
        bus = opened.enter_context(closing(connect(broker.url)))
        bus.create([TopicSpec(topic, 2, compacted=False)])
        bus.write([Outgoing(topic, b"key", b"value", number) for number in range(2)])
        first = opened.enter_context(closing(bus.session(subscription)))
        assert len(told(first, 2).records) == 2
        overtaken = first.member.group.generation_id  # type: ignore[attr-defined]
        second = opened.enter_context(closing(bus.session(subscription)))
        second.poll(0.1, 10)
        join_under_way(first)
        deadline = time.monotonic() + SECONDS
        while coordinator_of(first)._generation.generation_id == overtaken:
            assert time.monotonic() < deadline, "no other generation"
            time.sleep(0.01)
        first.commit(Step({(topic, 0): 1, (topic, 1): 1}))
        assert [first.committed(topic, number) for number in range(2)] == [1, 1]
        moved: list[int] = []
        while not moved:
            assert time.monotonic() < deadline, "nothing moved"
            moved += second.poll(0.0, 10).assigned
            polled = first.poll(0.0, 10)
            assert (polled.assigned, polled.records) == ([], [])
        bus.write([Outgoing(topic, b"key", b"more", number) for number in range(2)])
        assert [record.partition for record in told(first, 1).records] == [1 - moved[0]]


def test_what_is_read_again_after_a_member_was_put_out_was_not_lost(member: tuple[Bus, Session, str]) -> None:
    """Protects the count of lost records: after an outage a member went back to its commit, and blamed the
    cluster's log."""
    bus, session, topic = member
    bus.write([Outgoing(topic, b"key", b"value", 0) for _ in range(3)])
    assert len(told(session, 3).records) == 3
    coordinator_of(session).reset_generation(member_id=coordinator_of(session)._generation.member_id)
    # Long enough for the whole join, and for what follows it within the library.
    polled = session.poll(5.0, 10)
    assert (polled.moved, polled.assigned) == ([], [0])


def test_who_is_put_out_in_the_middle_of_a_join_begins_anew(member: tuple[Bus, Session, str]) -> None:
    """Protects against two owners: the library would keep partitions that may have had another owner
    meanwhile."""
    bus, session, topic = member
    coordinator = coordinator_of(session)
    coordinator.request_rejoin()
    join_under_way(session)
    # Like the cluster's answer to a heartbeat of a member that it does not know in this generation.
    coordinator.reset_generation(member_id=coordinator._generation.member_id)
    bus.write([Outgoing(topic, b"key", b"value")])
    seen = told(session, 1)
    assert (seen.revoked, seen.assigned) == ([0], [0])


@pytest.mark.parametrize(
    ("scheme", "module", "options"),
    [("kafka", clients, {}), ("kafka+librdkafka", cluster, {"session.timeout.ms": 6000})],
)
def test_a_member_that_lives_but_does_not_join_is_not_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, scheme: str, module: ModuleType, options: dict[str, int]
) -> None:
    """Protects the other members: either library would make the group wait for such a member for five
    minutes."""
    monkeypatch.setattr(module, "LONGEST_REBALANCE_SECONDS", 5)
    topic = f"rejoin-{uuid.uuid4().hex[:8]}"
    with closing(connect(f"{scheme}://{broker.address}", options)) as bus:
        bus.create([TopicSpec(topic, 1, compacted=False)])
        subscription = Subscription(group=f"{topic}.group", inputs=(topic,))
        with closing(bus.session(subscription)) as silent, closing(bus.session(subscription)) as other:
            deadline = time.monotonic() + 60
            while 0 not in silent.poll(0.1, 10).assigned:
                assert time.monotonic() < deadline, "never assigned"
            # Its heartbeats go on in the background.
            while 0 not in other.poll(0.1, 10).assigned:
                assert time.monotonic() < deadline, "the group waits for a member that does not poll"
