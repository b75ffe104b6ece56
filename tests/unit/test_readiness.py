"""Ready means serving: /readyz is red, with the reason, exactly when something keeps a worker from
predicting."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from clock import Clock
from counting import CHANNELS, TOPICS, CountingRole, bus_of, counting_worker, number

from streamfl.contract.channels import TopicSpec
from streamfl.runtime import cluster_watch
from streamfl.runtime.bus import Bus, BusUnavailable, CommitRefused, Outgoing, Subscription, TopicPartition
from streamfl.runtime.cluster_watch import ClusterWatch, topics_of
from streamfl.runtime.health import Health
from streamfl.runtime.lag import Lag
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.sqlite_bus import SqliteBus
from streamfl.runtime.worker import Worker

SUBSCRIPTION = Subscription("counters", ("numbers",), ("factor",))
TOPIC_NAMES = topics_of(CHANNELS, "dead-letters")


@pytest.fixture(name="clock")
def _clock() -> Clock:
    return Clock()


@pytest.fixture(name="bus", params=["memory", "sqlite"])
def _bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryBus | SqliteBus]:
    bus = MemoryBus() if request.param == "memory" else SqliteBus(f"sqlite://{tmp_path / 'bus.db'}")
    bus.create(TOPICS)
    yield bus
    bus.close()


def delete(bus: MemoryBus | SqliteBus, topic: str) -> None:
    if isinstance(bus, MemoryBus):
        del bus._topics[topic]
        return
    with sqlite3.connect(bus.path) as connection:
        connection.execute("DELETE FROM topics WHERE name = ?", (topic,))
    connection.close()


def watch(bus: Bus, health: Health, clock: Clock, lost: list[str]) -> ClusterWatch:
    return ClusterWatch(bus, TOPIC_NAMES, "counters", health, lost.append, patience_seconds=30.0, clock=clock)


def test_partitions_that_any_input_of_a_user_gets_end_the_worker(clock: Clock) -> None:
    """Protects labels in new partitions of their topic: the group assigns partitions of the first input, and
    a worker that looked at that one alone was ready and read none of them."""
    bus = MemoryBus()
    for name in ("samples", "labels", "of a peer"):
        bus.create([TopicSpec(name, 2, compacted=False)])
    health, lost = Health(clock=clock), list[str]()
    topics, inputs = ["samples", "labels", "of a peer"], ["samples", "labels"]
    watching = ClusterWatch(bus, topics, "counters", health, lost.append, clock=clock, inputs=inputs)
    for name in ("of a peer", "labels"):
        assert watching.look()
        del bus._topics[name]
        bus.create([TopicSpec(name, 4, compacted=False)])
        # It is the same topic, and not another one under its name.
        watching._identities.clear()
    assert not watching.look()
    assert lost == ["topic 'labels' had 2 partitions when this worker started, and has 4"]


def test_partitions_that_a_topic_between_members_gets_end_nobody(clock: Clock) -> None:
    """Protects a server that only members write to: further partitions of its first input stay empty. A
    worker that librdkafka's group gave these alone waits for its turn, and nothing is wrong with it."""
    bus = MemoryBus()
    bus.create([TopicSpec("updates", 2, compacted=False)])
    health, lost = Health(clock=clock), list[str]()
    watching = ClusterWatch(
        bus, ["updates"], "counters", health, lost.append, clock=clock, inputs=[], partitions=2
    )
    assert watching.look()
    del bus._topics["updates"]
    bus.create([TopicSpec("updates", 4, compacted=False)])
    watching._identities.clear()
    sessions = [
        bus.session(Subscription("counters", ("updates",), placed=frozenset({"updates"}), partitions=2))
        for _ in range(2)
    ]
    health.note("partitions", "none")
    assert watching.look()
    assert lost == []
    assert health.standby is not None
    assert "2 workers for 2 partitions" in health.standby
    for session in sessions:
        session.close()


def test_a_changelog_that_loses_records_is_red(clock: Clock) -> None:
    """Protects state whose topic an operator changed while the worker ran: it was ready while the cluster
    deleted its state, and the next start refused to begin."""
    options = {"cleanup.policy": "compact"}
    bus = MemoryBus()
    bus.create(
        [TopicSpec("input", 1, compacted=False), TopicSpec("state", 1, compacted=True, options=options)]
    )
    health, lost = Health(clock=clock), list[str]()
    watching = ClusterWatch(
        bus, ["input", "state"], "counters", health, lost.append, clock=clock, changelogs=["state"]
    )
    for policy in ("compact", "compact,delete", "delete", "compact"):
        options["cleanup.policy"] = policy
        assert watching.look()
        assert ("set cleanup.policy=compact" in health.reasons.get("topics", "")) is (policy != "compact")
    assert lost == []


def until_settled(*workers: Worker) -> None:
    for _ in range(6):
        for one in workers:
            one.step(0.0)


@pytest.mark.parametrize("topic", TOPIC_NAMES)
def test_a_deleted_topic_is_red_at_once_and_ends_the_worker_when_it_stays_away(
    bus: MemoryBus | SqliteBus, clock: Clock, topic: str
) -> None:
    """Protects against a worker that stays green although one of its topics was deleted."""
    worker, lost = counting_worker(bus, monotonic=clock), list[str]()
    watching = watch(bus, worker.health, clock, lost)
    until_settled(worker)
    assert watching.look()
    assert worker.health.trouble is None
    delete(bus, topic)
    assert watching.look()
    assert worker.health.reasons.keys() == {"topics"}
    assert repr(topic) in (worker.health.trouble or "")
    clock.now = 29.9
    worker.health.completed()
    assert watching.look()
    assert not lost
    clock.now = 30.0
    assert not watching.look()
    assert repr(topic) in lost[0]
    worker.close()


def test_a_topic_that_was_not_known_for_a_moment_is_forgiven(
    bus: MemoryBus | SqliteBus, clock: Clock
) -> None:
    """Protects workers from a broker that has just started and does not know all topics yet."""
    health, lost = Health(clock=clock), list[str]()
    health.completed()
    watching = ClusterWatch(bus, [*TOPIC_NAMES, "slow"], "counters", health, lost.append, 30.0, clock)
    watching.look()
    assert health.reasons.keys() == {"topics"}
    bus.create([type(TOPICS[0])("slow", 1, compacted=False)])
    clock.now = 20.0
    watching.look()
    clock.now = 100.0
    health.completed()
    assert watching.look()
    assert (health.trouble, lost) == (None, [])


def test_a_topic_that_was_made_again_ends_the_worker_at_once(
    bus: MemoryBus | SqliteBus, clock: Clock
) -> None:
    """Protects stored positions from another topic of the same name."""
    health, lost = Health(clock=clock), list[str]()
    watching = watch(bus, health, clock, lost)
    assert watching.look()
    delete(bus, "numbers")
    bus.create([spec for spec in TOPICS if spec.name == "numbers"])
    assert not watching.look()
    assert "created again" in lost[0]
    assert "'numbers'" in lost[0]


def test_a_removed_database_is_told(tmp_path: Path, clock: Clock) -> None:
    """Protects an SQLite federation whose file was removed: its process can still read and write, but nobody
    else sees it."""
    bus = SqliteBus(f"sqlite://{tmp_path / 'bus.db'}")
    bus.create(TOPICS)
    health, lost = Health(clock=clock), list[str]()
    health.completed()
    watching = watch(bus, health, clock, lost)
    watching.look()
    assert health.trouble is None
    bus.path.unlink()
    watching.look()
    assert health.reasons.keys() == {"topics"}
    bus.close()


def test_a_cluster_that_does_not_answer_turns_every_worker_red(
    bus: MemoryBus | SqliteBus, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects an alert on dead brokers: a standby without library errors stayed green, and others named
    another cause."""
    workers = [counting_worker(bus, monotonic=clock) for _ in range(3)]
    watches = [watch(bus, worker.health, clock, []) for worker in workers]
    until_settled(*workers)
    for watching in watches:
        watching.look()
    assert [worker.health.trouble for worker in workers] == [None] * 3
    assert [worker.health.standby is not None for worker in workers].count(True) == 1

    def silent(*_names: object) -> None:
        raise BusUnavailable("connection refused")

    monkeypatch.setattr(bus, "describe", silent)
    for seconds in range(1, 31):
        clock.now = float(seconds)
        for worker in workers:
            # The loop continues, as with a client library that reports nothing.
            worker.health.completed()
        if seconds % 5 == 0:
            for watching in watches:
                watching.ask()
    for worker in workers:
        assert worker.health.reasons.keys() == {"bus"}
        assert re.fullmatch(
            r"bus: no broker answers since \S+Z, for 30 s: connection refused", worker.health.trouble or ""
        )
    monkeypatch.undo()
    for watching in watches:
        watching.ask()
    assert [worker.health.trouble for worker in workers] == [None] * 3
    for worker in workers:
        worker.close()


def test_a_cluster_that_answers_in_part_is_told_once(
    bus: MemoryBus | SqliteBus, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from figures that stand still in silence: the group's lag cannot be asked while its
    coordinator is away."""
    health, answers = Health(clock=clock), bus.committed
    watching = ClusterWatch(
        bus, TOPIC_NAMES, "counters", health, lambda _: None, 30.0, clock, Lag(bus, SUBSCRIPTION)
    )
    numbers, causes = iter(range(9)), list[str]()
    monkeypatch.setattr(
        cluster_watch, "log", SimpleNamespace(warning=lambda _event, cause: causes.append(cause))
    )

    def away(_group: str) -> dict[TopicPartition, int]:
        raise BusUnavailable(f"no coordinator, attempt {next(numbers)}")

    watching.ask()
    for answer in (away, away, answers, away):
        monkeypatch.setattr(bus, "committed", answer)
        watching.ask()
    assert causes == ["no coordinator, attempt 0", "no coordinator, attempt 2"]


def test_a_worker_too_many_is_a_standby_and_one_without_partitions_is_not(
    bus: MemoryBus | SqliteBus, clock: Clock
) -> None:
    """Protects rollouts, which wait for every pod, and operators of a worker that got no partitions without a
    reason."""
    workers = [counting_worker(bus, monotonic=clock) for _ in range(3)]
    until_settled(*workers)
    watches = [watch(bus, worker.health, clock, []) for worker in workers]
    idle = next(worker for worker in workers if "partitions" in worker.health.reasons)
    for watching in watches:
        watching.look()
    assert [worker.health.trouble for worker in workers] == [None] * 3
    assert [worker.health.standby is not None for worker in workers] == [worker is idle for worker in workers]
    assert "3 workers for 2 partitions" in (idle.health.standby or "")
    assert "streamfl_standby 1.0" in idle.metrics.render().decode()
    next(worker for worker in workers if worker is not idle).close()
    watches[workers.index(idle)].look()
    assert idle.health.reasons.keys() == {"partitions"}
    until_settled(idle)
    watches[workers.index(idle)].look()
    assert idle.health.trouble is None
    assert idle.health.standby is None
    for worker in workers:
        worker.close()


def test_a_role_in_trouble_is_not_ready_and_says_why() -> None:
    """Protects readers of predictions: a role that cannot work is red with its own reason, in the page and in
    the metrics."""

    class Troubled(CountingRole):
        trouble: str | None = None

    bus, role = bus_of(), Troubled()
    worker = counting_worker(bus, role)
    until_settled(worker)
    role.trouble = "no server answers: start it"
    worker.step(0.0)
    assert worker.health.reasons == {"role": "no server answers: start it"}
    text = worker.metrics.render().decode()
    assert "streamfl_ready 0.0" in text
    assert 'streamfl_not_ready{reason="role"} 1.0' in text
    assert 'streamfl_not_ready{reason="bus"} 0.0' in text
    role.trouble = None
    worker.step(0.0)
    assert worker.health.trouble is None


def test_endless_refused_commits_are_not_ready(clock: Clock) -> None:
    """Protects against a worker that reads and predicts but never commits: it used to be green for ever."""
    bus = bus_of()
    worker = counting_worker(bus, monotonic=clock)
    until_settled(worker)
    bus.write([Outgoing("numbers", b"pump", number(1, 5), 0)])
    session = worker._session
    assert session is not None
    commit = session.commit

    def refuse(step: object) -> None:
        session._refused = True  # type: ignore[attr-defined]
        raise CommitRefused("not today")

    session.commit = refuse  # type: ignore[method-assign]
    until_settled(worker)
    assert worker.health.reasons.keys() == {"commits"}
    session.commit = commit  # type: ignore[method-assign]
    until_settled(worker)
    assert worker.health.trouble is None


def test_records_that_wait_for_their_commit_are_not_ready(clock: Clock) -> None:
    """Protects against a commit that does not return: red long before the watchdog ends the process."""
    health = Health(stall_seconds=120.0, clock=clock)
    health.completed()
    health.begin()
    clock.now = 30.0
    assert health.trouble is None
    clock.now = 31.0
    assert health.reasons.keys() == {"commits"}
    health.completed()
    assert health.trouble is None
    clock.now = 62.0
    assert health.reasons.keys() == {"loop"}


def test_restoring_is_not_ready() -> None:
    """Protects senders of work from a worker that is still restoring its state."""
    bus = bus_of()
    seen = list[set[str]]()

    class Watching(CountingRole):
        def open(self, partition: int) -> None:
            seen.append(set(worker.health.reasons))
            super().open(partition)

    worker = counting_worker(bus, Watching())
    until_settled(worker)
    assert all("restoring" in reasons for reasons in seen)
    assert seen
    assert worker.health.trouble is None
