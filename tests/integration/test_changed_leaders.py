"""Clusters of three nodes of which one or two die: partitions, transactions and groups get other leaders, or
none.

Such a cluster takes as long to start as most tests take altogether, so the tests of this file share one. Each
may halt any of its nodes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

import pytest
from broker import Broker
from counting import TOPICS, number
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from places import Place, channels_of_its_own, counted, delete_records, totals_to, work

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import (
    Bus,
    BusUnavailable,
    Outgoing,
    Step,
    Subscription,
    TopicSpec,
    connect,
)
from streamfl.runtime.worker import Worker
from streamfl.testing.bus_laws.members import eventually

LOST = "streamfl_lost_records_total"
LONG_SECONDS = 600.0
# Nodes by their places in the cluster. No test halts the last one.
LEADER, BEHIND, ALIVE = range(3)
# Enough that each node leads one, and less to copy than by default.
INTERNAL = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


@pytest.fixture(name="cluster", scope="module")
def _cluster() -> Iterator[Broker]:
    with Broker(INTERNAL, nodes=3) as running:
        yield running


@pytest.fixture(name="nodes")
def _nodes(cluster: Broker) -> Broker:
    """The cluster with all its nodes, whatever the test before halted."""
    cluster.start()
    return cluster


def place_between(
    cluster: Broker, bus: Bus, name: str, replicas: list[int], settings: dict[str, str] | None = None
) -> Place:
    """A worker's topics with one partition each. That of its input is on these nodes, the first of which
    leads it; the others are where no node dies."""
    channels = channels_of_its_own(name)
    source = channels.inputs["numbers"].topic
    made = [
        NewTopic(
            topic := f"{spec.name}-{name}",
            replica_assignments={0: [one + 1 for one in (replicas if topic == source else [ALIVE])]},
            topic_configs={
                "cleanup.policy": "compact" if spec.compacted else "delete",
                "min.insync.replicas": "1",
                **((settings or {}) if topic == source else {}),
            },
        )
        for spec in TOPICS
    ]
    with closing(KafkaAdminClient(bootstrap_servers=cluster.address)) as admin:
        admin.create_topics(made)
    return Place(bus, channels, partial(delete_records, cluster), f"counters-{name}")


def run_together(workers: list[Worker]) -> None:
    """One step of each, also while the cluster is away."""
    for worker in workers:
        with suppress(BusUnavailable):
            worker.step(0.02)


def all_have(workers: list[Worker], places: list[Place], last: int) -> None:
    """Run the workers until each place has the totals of the numbers to ``last``, once each."""
    expected = totals_to(last)
    deadline = time.monotonic() + 240
    late: dict[int, list[str]] = {one: [] for one in range(len(places))}
    while late:
        assert time.monotonic() < deadline, late
        run_together(workers)
        # To read a topic takes longer than a step of its worker.
        with suppress(BusUnavailable):
            found = {one: places[one].totals() for one in late}
            late = {one: totals[-6:] for one, totals in found.items() if totals != expected}


def keep(workers: list[Worker], places: list[Place], last: int, seconds: float) -> None:
    """Run the workers for ``seconds``: each place has these totals then, and no more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        run_together(workers)
    assert [place.totals() for place in places] == [totals_to(last)] * len(places)


def leaders(admin: KafkaAdminClient, topics: list[str]) -> Iterator[int]:
    """The broker's number of the leader of each partition; none if the broker that was asked is away."""
    with suppress(KafkaError):
        for topic in admin.describe_topics(topics):
            yield from [one["leader_id"] for one in topic["partitions"]]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_partition_without_a_leader_is_waited_for(nodes: Broker) -> None:
    """Protects restored state: librdkafka reports an end below 0 for such a partition, so it would count as
    read, and empty.

    Also protects the waiting worker: a client that fetched metadata without the leader used to miss it for
    five minutes."""
    bus: Any = connect(f"kafka+librdkafka://{nodes.address}", {"connect_timeout_seconds": 3})
    name = f"unreplicated-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=nodes.address)
    admin.create_topics([NewTopic(name, 3, 1)])
    places = [(name, partition) for partition in range(3)]
    deadline = time.monotonic() + 60
    while True:
        try:
            bus.write([Outgoing(name, None, b"v", partition) for _, partition in places])
            break
        except (BusUnavailable, ConfigurationError):
            assert time.monotonic() < deadline
    assert bus.logs.ends(places) == dict.fromkeys(places, 1)
    nodes.halt(BEHIND)
    with pytest.raises(BusUnavailable, match="reading the ends of partitions"):
        bus.logs.ends(places)
    # The client that requests the ends fetches metadata, and finds two of three nodes.
    asking, deadline = bus.logs._asked.admin._manager, time.monotonic() + 60
    while len(asking.cluster.brokers()) == 3:
        asking.run(asking.cluster.refresh_metadata)
        assert time.monotonic() < deadline
        time.sleep(0.2)
    nodes.start()
    deadline = time.monotonic() + 60
    while True:
        try:
            assert bus.logs.ends(places) == dict.fromkeys(places, 1)
            break
        except BusUnavailable:
            assert time.monotonic() < deadline
    admin.close()
    bus.close()


def test_a_group_is_seen_after_its_coordinator_died(nodes: Broker) -> None:
    """Protects standbys, which stayed red after an outage: the library kept asking the broker that used to
    coordinate their group, and took the refusal for a group without members.
    """
    name = f"samples-{uuid.uuid4().hex[:8]}"
    with closing(connect(nodes.url)) as bus:
        bus.create([TopicSpec(name, 1, False)])
        bus.write([Outgoing(name, None, b"v", 0)])
        with closing(bus.session(Subscription(name, (name,)))) as session:

            def seen() -> bool:
                try:
                    if session.poll(0.2, 10).records:
                        session.commit(Step({(name, 0): 1}))
                    return bus.members(name) == 1 and bus.committed(name) == {(name, 0): 1}
                except BusUnavailable:
                    return False

            def wait() -> None:
                deadline = time.monotonic() + LONG_SECONDS
                while not seen():
                    assert time.monotonic() < deadline

            wait()
            admin = bus.admin  # type: ignore[attr-defined]
            nodes.halt(admin._manager.run(admin._find_coordinator_id, name) - 1)
            wait()


def test_an_ordinary_change_of_leaders_is_no_loss(nodes: Broker) -> None:
    """Protects a healthy cluster: a worker that goes on behind the ends of the new leader's transactions, has
    paused there, or begins again there does not take the log for one that was cut, and repeats nothing."""
    with ExitStack() as stack:
        places = []
        for scheme in ("kafka", "kafka+librdkafka"):
            bus = stack.enter_context(closing(connect(f"{scheme}://{nodes.address}")))
            places.append(place_between(nodes, bus, f"moved-{len(places)}", [LEADER, BEHIND]))
        topics = [place.channels.inputs["numbers"].topic for place in places]
        workers = [stack.enter_context(closing(place.worker())) for place in places]

        def change_leaders() -> None:
            nodes.halt(LEADER)
            with closing(KafkaAdminClient(bootstrap_servers=nodes.address)) as admin:
                eventually(lambda: {*leaders(admin, topics)}, {BEHIND + 1})
            nodes.start()

        def aborted(amid: Callable[[], None]) -> None:
            with ExitStack() as writers:
                for topic in topics:
                    writer = KafkaProducer(bootstrap_servers=nodes.address, transactional_id=topic)
                    writers.callback(writer.close)
                    writer.init_transactions()
                    writer.begin_transaction()
                    for one in range(3):
                        writer.send(topic, key=b"pump", value=number(one, 100), partition=0)
                    writer.flush()
                    writers.callback(writer.abort_transaction)
                amid()

        for place in places:
            place.send(1, 3)
        all_have(workers, places, 3)
        aborted(change_leaders)
        keep(workers, places, 3, 10)
        for place in places:
            place.send(4, 6)
        all_have(workers, places, 6)
        aborted(lambda: None)
        keep(workers, places, 6, 3)
        for worker in workers:
            worker.role.full = {0}  # type: ignore[misc]
        keep(workers, places, 6, 3)
        for worker, place in zip(workers, places, strict=True):
            worker.role.full = ()  # type: ignore[misc]
            place.send(7, 8)
        all_have(workers, places, 8)
        assert [counted(*one, LOST) for one in zip(workers, topics, strict=True)] == [0, 0]
        for worker in workers:
            worker.close()
        workers = [stack.enter_context(closing(place.worker())) for place in places]
        keep(workers, places, 8, 5)
        for place in places:
            place.send(9, 10)
        all_have(workers, places, 10)
        assert [counted(*one, LOST) for one in zip(workers, topics, strict=True)] == [0, 0]


def test_workers_go_on_where_a_log_was_cut_back_to(nodes: Broker) -> None:
    """Protects against silent loss when a replica that is behind becomes the leader
    (unclean.leader.election.enable).

    Records at offsets that had been read before are new then, even if the log has become longer than it was.
    For each client library one worker runs meanwhile, one is away, one has begun again and one has paused
    since its last record: each new record counts once, and lost ones are counted.
    """
    with ExitStack() as stack:
        places: list[Place] = []
        for name, scheme in enumerate(["kafka"] * 4 + ["kafka+librdkafka"] * 4):
            bus = stack.enter_context(closing(connect(f"{scheme}://{nodes.address}")))
            places.append(place_between(nodes, bus, f"cut-{name}", [LEADER, BEHIND], UNCLEAN))
        topics = [place.channels.inputs["numbers"].topic for place in places]
        workers = [stack.enter_context(closing(place.worker())) for place in places]

        def send(first: int, last: int) -> None:
            # A new writer each time: for a writer of lost records the new leader reports a gap in its
            # sequence numbers.
            deadline = time.monotonic() + 120
            unwritten = [*places]
            while unwritten:
                with suppress(BusUnavailable), closing(connect(nodes.url)) as bus:
                    while unwritten:
                        unwritten[0]._replace(bus=bus).send(first, last)
                        unwritten.pop(0)
                assert time.monotonic() < deadline, "no leader"

        send(1, 3)
        all_have(workers, places, 3)
        nodes.halt(BEHIND)
        send(4, 6)
        all_have(workers, places, 6)
        for stopped in (1, 2, 5, 6):
            workers[stopped].close()
        for again in (2, 6):
            workers[again] = stack.enter_context(closing(places[again].worker()))
            work(workers[again], lambda again=again: [*workers[again].role.totals], [0])
        for paused in (3, 7):
            workers[paused].role.full = {0}
            for _ in range(8):
                workers[paused].step(0.2)
            workers[paused].role.full = ()
            workers[paused].step(0.2)
        nodes.halt(LEADER)
        nodes.begin(BEHIND)
        send(7, 11)
        for away in (1, 5):
            workers[away] = stack.enter_context(closing(places[away].worker()))
        all_have(workers, places, 11)
        assert [counted(*one, LOST) for one in zip(workers, topics, strict=True)] == [3] * 8
        assert [place.totals() for place in places] == [totals_to(11)] * 8
