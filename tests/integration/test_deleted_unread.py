"""Records that retention deleted, before or after they were read, are counted and reported on every bus."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from broker import Broker
from counting import CHANNELS, TOPICS, CountingRole, number
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.structs import TopicPartition as KafkaPartition

from streamfl.contract.channels import Channels
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Bus, BusUnavailable, Outgoing, Subscription, connect
from streamfl.runtime.input_topics import Unread
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.testing.bus_laws.members import eventually

LOST = "streamfl_lost_records_total"


class Place(NamedTuple):
    """A bus with its own channels, and a function that deletes a partition's records before an offset."""

    bus: Bus
    channels: Channels
    delete: Callable[[str, int, int], None]
    group: str

    def send(self, first: int, last: int) -> None:
        topic = self.channels.inputs["numbers"].topic
        self.bus.write([Outgoing(topic, b"pump", number(one, 1), 0) for one in range(first, last + 1)])

    def delete_before(self, offset: int) -> None:
        self.delete(self.channels.inputs["numbers"].topic, 0, offset)

    def worker(self, reset: Literal["earliest", "latest", "error"] = "earliest") -> Worker:
        topics = [source.topic for source in self.channels.inputs.values()]
        tables = tuple(table.topic for table in self.channels.tables.values())
        subscription = Subscription(self.group, tuple(topics), tables, auto_offset_reset=reset)
        return Worker(CountingRole(), self.channels, self.bus, subscription, self.channels.outputs["totals"])

    def totals(self) -> list[str]:
        return [(record.value or b"").decode() for record in self.bus.read(self.channels.outputs["totals"])]


@pytest.fixture(name="place", params=["memory", "sqlite", "kafka", "kafka+librdkafka"])
def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        bus, delete = (memory := MemoryBus()), partial(drop, memory)
    elif request.param == "sqlite":
        path = tmp_path / "bus.db"
        bus, delete = connect(f"sqlite://{path}"), partial(delete_rows, path)
    else:
        broker: Broker = request.getfixturevalue("broker")
        bus, delete = connect(f"{request.param}://{broker.address}"), partial(delete_records, broker)
    with closing(bus):
        yield place_on(bus, delete)


def place_on(bus: Bus, delete: Callable[[str, int, int], None]) -> Place:
    """Creates topics of its own on a bus."""
    suffix = uuid.uuid4().hex[:8]
    names = {spec.name: f"{spec.name}-{suffix}" for spec in TOPICS}
    channels = Channels(
        inputs={name: replace(one, topic=names[one.topic]) for name, one in CHANNELS.inputs.items()},
        tables={name: replace(one, topic=names[one.topic]) for name, one in CHANNELS.tables.items()},
        outputs={name: names[topic] for name, topic in CHANNELS.outputs.items()},
        changelogs={name: names[topic] for name, topic in CHANNELS.changelogs.items()},
    )
    bus.create([replace(spec, name=names[spec.name]) for spec in TOPICS])
    return Place(bus, channels, delete, f"counters-{suffix}")


def drop(bus: MemoryBus, topic: str, partition: int, offset: int) -> None:
    """Deletes records in memory as retention would."""
    bus._log(topic, partition).drop(offset)


def delete_rows(path: Path, topic: str, partition: int, offset: int) -> None:
    """Deletes records on SQLite as retention does."""
    with closing(sqlite3.connect(path)) as connection, connection:
        (log,) = connection.execute(
            "SELECT first_log + ? FROM topics WHERE name = ?", (partition, topic)
        ).fetchone()
        connection.execute("DELETE FROM records WHERE id >= ? AND id < ?", (log << 40, (log << 40) + offset))
        connection.execute("UPDATE logs SET tidy = ? WHERE id = ?", (offset, log))


def delete_records(broker: Broker, topic: str, partition: int, offset: int) -> None:
    """Deletes records on Kafka as retention does, but at once."""
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
        admin.delete_records({KafkaPartition(topic, partition): offset})


def work(worker: Worker, done: Callable[[], object], expected: object) -> None:
    def look() -> object:
        worker.step(0.2)
        return done()

    eventually(look, expected)


def totals_to(last: int) -> list[str]:
    return [f"{one} {one}" for one in range(1, last + 1)]


def run_together(workers: list[Worker]) -> None:
    """One step of each, also while the cluster is away."""
    for worker in workers:
        with suppress(BusUnavailable):
            worker.step(0.02)


def all_have(workers: list[Worker], places: list[Place], last: int) -> None:
    """Run the workers until each place has the totals of the numbers to ``last``, once each."""
    expected = totals_to(last)
    deadline = time.monotonic() + 240
    late: dict[int, list[str]] = {number: [] for number in range(len(places))}
    while late:
        assert time.monotonic() < deadline, late
        run_together(workers)
        with suppress(BusUnavailable):
            found = {number: place.totals() for number, place in enumerate(places)}
            late = {number: one[-6:] for number, one in found.items() if one != expected}


def keep(workers: list[Worker], places: list[Place], last: int, seconds: float) -> None:
    """Run the workers for ``seconds``: each place has these totals then, and no more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        run_together(workers)
    assert [place.totals() for place in places] == [totals_to(last)] * len(places)


def leaders(admin: KafkaAdminClient, topics: list[str]) -> Iterator[int]:
    """The broker's number of the leader of each partition."""
    for topic in admin.describe_topics(topics):
        yield from [one["leader_id"] for one in topic["partitions"]]


def counted(worker: Worker, topic: str, metric: str = "streamfl_deleted_unread_records_total") -> float:
    line = f'{metric}{{topic="{topic}"}} '
    text = worker.metrics.render().decode()
    return float(text.split(line)[1].split("\n")[0]) if line in text else 0.0


@pytest.mark.broker
@pytest.mark.parametrize("left", [3, 0])
def test_what_was_deleted_while_a_worker_was_away_is_counted_and_told(
    place: Place, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects users who stopped a worker for longer than the topic keeps its records: the loss used to be
    silent."""
    place.send(1, 3)
    with closing(place.worker()) as before:
        work(before, place.totals, ["1 1", "2 2", "3 3"])
    place.send(4, 10)
    end = place.bus.offsets(topic := place.channels.inputs["numbers"].topic, float("inf"))[0]
    position = place.bus.committed(place.group)[topic, 0]
    place.delete_before(end - left)
    with closing(place.worker()) as after:
        expected = ["1 1", "2 2", "3 3", *(f"{11 - one} {4 + left - one}" for one in range(left, 0, -1))]
        work(after, lambda: (place.totals(), counted(after, topic)), (expected, float(end - left - position)))
        assert after._tasks.topics.unread == {(topic, 0): Unread(end - left - position, end - left)}
    told = [record for record in caplog.records if "deleted before they were read" in record.getMessage()]
    assert len(told) == 1
    # The loss is stored, and counted once.
    with closing(place.worker()) as again:
        place.send(11, 11)
        work(again, lambda: place.totals()[-1], f"11 {4 + left}")
        assert counted(again, topic) == 0
        assert again._tasks.topics.unread == {(topic, 0): Unread(end - left - position, end - left)}


@pytest.mark.broker
def test_what_is_deleted_before_a_worker_that_runs_is_counted(place: Place) -> None:
    """Protects a worker that falls behind the retention: its position is deleted while it has the
    partition."""
    topic = place.channels.inputs["numbers"].topic
    place.send(1, 3)
    with closing(place.worker()) as running:
        work(running, place.totals, ["1 1", "2 2", "3 3"])
        position = place.bus.committed(place.group)[topic, 0]
        running.role.full = {0}  # type: ignore[misc]
        # By then the request from before the pause is answered.
        for _ in range(8):
            running.step(0.2)
        place.send(4, 10)
        end = place.bus.offsets(topic, float("inf"))[0]
        place.delete_before(end - 2)
        running.role.full = ()  # type: ignore[misc]
        work(running, lambda: place.totals()[3:], ["9 4", "10 5"])
        assert counted(running, topic) == end - 2 - position


@pytest.mark.broker
def test_a_first_start_and_gaps_that_are_usual_are_no_loss(place: Place) -> None:
    """Protects against false alarms: a start at the oldest record misses nothing, and transaction markers are
    not records."""
    topic = place.channels.inputs["numbers"].topic
    place.send(1, 5)
    place.delete_before(2)
    with closing(place.worker()) as first:
        work(first, place.totals, ["3 1", "4 2", "5 3"])
        # The totals are written in transactions, each followed by a marker.
        with closing(replaced(place).worker()) as reader:
            for one in range(6, 9):
                place.send(one, one)
                work(first, lambda one=one: place.totals()[-1], f"{one} {one - 2}")
                work(reader, lambda: len(reader.role.totals.get(0, {})), 1)  # type: ignore[attr-defined]
            assert counted(reader, place.channels.outputs["totals"]) == 0
        assert counted(first, topic) == 0


def replaced(place: Place) -> Place:
    """A member that reads the first one's output."""
    names = {name: f"{name}-{uuid.uuid4().hex[:8]}" for name in ("totals", "state")}
    specs = [replace(spec, name=names[spec.name], partitions=1) for spec in TOPICS if spec.name in names]
    place.bus.create(specs)
    channels = replace(
        place.channels,
        inputs={"numbers": replace(place.channels.inputs["numbers"], topic=place.channels.outputs["totals"])},
        outputs={"totals": names["totals"]},
        changelogs={"state": names["state"]},
    )
    return place._replace(channels=channels, group=f"{place.group}-reader")


@pytest.mark.broker
def test_error_as_the_reset_stops_instead(place: Place) -> None:
    """Protects users of bus.auto_offset_reset = 'error': no record is skipped."""
    topic = place.channels.inputs["numbers"].topic
    place.send(1, 3)
    place.bus.write([Outgoing(topic, b"valve", number(1, 9), 1)])
    with closing(place.worker()) as before:
        work(before, lambda: len(place.totals()), 4)
    place.send(4, 10)
    place.delete_before(8)
    gone = "which the group .* was to read next, is gone"
    with closing(place.worker("error")) as after, pytest.raises(ConfigurationError, match=gone):
        work(after, place.totals, [])


@pytest.mark.broker
@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_a_topic_that_was_made_again_is_told_of(broker: Broker, scheme: str) -> None:
    """Protects against silent loss: a recreated topic may be longer than the old one was."""
    with closing(connect(f"{scheme}://{broker.address}")) as bus:
        place = place_on(bus, partial(delete_records, broker))
        topic = place.channels.inputs["numbers"].topic
        place.send(1, 3)
        with closing(place.worker()) as before:
            work(before, place.totals, ["1 1", "2 2", "3 3"])
        with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
            admin.delete_topics([topic])
            eventually(lambda: topic in bus.describe([topic]), False)
        bus.create([replace(TOPICS[0], name=topic)])
        place.send(1, 10)
        with (
            closing(place.worker()) as after,
            pytest.raises(ConfigurationError, match="was deleted and created again"),
        ):
            work(after, place.totals, [])


def test_workers_go_on_where_a_log_was_cut_back_to() -> None:
    """Protects against silent loss when a replica that is behind becomes the leader
    (unclean.leader.election.enable).

    Records at offsets that had been read before are new then, even if the log has become longer than it was.
    For each client library one worker runs meanwhile, one is away, one has begun again and one has paused
    since its last record: each new record counts once, and lost ones are counted.
    """
    leader, behind = 0, 1
    with Broker(nodes=3) as broker, ExitStack() as stack:
        places: list[Place] = []
        for name, scheme in enumerate(["kafka"] * 4 + ["kafka+librdkafka"] * 4):
            bus = stack.enter_context(closing(connect(f"{scheme}://{broker.address}")))
            place = place_on(bus, partial(delete_records, broker))
            replicas = {partition: [leader + 1, behind + 1] for partition in (0, 1)}
            settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
            numbers = replace(place.channels.inputs["numbers"], topic=f"cut-{name}")
            with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
                admin.create_topics(
                    [NewTopic(numbers.topic, replica_assignments=replicas, topic_configs=settings)]
                )
            places.append(place._replace(channels=replace(place.channels, inputs={"numbers": numbers})))
        workers = [stack.enter_context(closing(place.worker())) for place in places]

        def send(first: int, last: int) -> None:
            # A new writer each time: for a writer of lost records the new leader reports a gap in its
            # sequence numbers.
            for place in places:
                deadline = time.monotonic() + 120
                while True:
                    with suppress(BusUnavailable), closing(connect(broker.url)) as bus:
                        place._replace(bus=bus).send(first, last)
                        break
                    assert time.monotonic() < deadline, "no leader"

        send(1, 3)
        all_have(workers, places, 3)
        broker.halt(behind)
        send(4, 6)
        all_have(workers, places, 6)
        for number in (1, 2, 5, 6):
            workers[number].close()
        for again in (2, 6):
            workers[again] = stack.enter_context(closing(places[again].worker()))
            work(workers[again], lambda again=again: [*workers[again].role.totals], [0, 1])
        for paused in (3, 7):
            workers[paused].role.full = {0, 1}
            for _ in range(8):
                workers[paused].step(0.2)
            workers[paused].role.full = ()
            workers[paused].step(0.2)
        broker.halt(leader)
        broker.begin(behind)
        send(7, 11)
        for away in (1, 5):
            workers[away] = stack.enter_context(closing(places[away].worker()))
        all_have(workers, places, 11)
        assert [counted(worker, f"cut-{name}", LOST) for name, worker in enumerate(workers)] == [3] * 8


def test_an_ordinary_change_of_leaders_is_no_loss() -> None:
    """Protects a healthy cluster: a worker that goes on behind the ends of the new leader's transactions, has
    paused there, or begins again there does not take the log for one that was cut, and repeats nothing."""
    with Broker(nodes=3) as broker, ExitStack() as stack:
        places = []
        for name, scheme in enumerate(("kafka", "kafka+librdkafka")):
            bus = stack.enter_context(closing(connect(f"{scheme}://{broker.address}")))
            place = place_on(bus, partial(delete_records, broker))
            numbers = replace(place.channels.inputs["numbers"], topic=f"moved-{name}")
            with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
                admin.create_topics([NewTopic(numbers.topic, replica_assignments={0: [1, 2], 1: [1, 2]})])
            places.append(place._replace(channels=replace(place.channels, inputs={"numbers": numbers})))
        workers = [stack.enter_context(closing(place.worker())) for place in places]

        def change_leaders() -> None:
            broker.halt(0)
            with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
                topics = [place.channels.inputs["numbers"].topic for place in places]
                eventually(lambda: {*leaders(admin, topics)}, {2})
            broker.start()

        def aborted(amid: Callable[[], None]) -> None:
            with ExitStack() as writers:
                for place in places:
                    topic = place.channels.inputs["numbers"].topic
                    writer = KafkaProducer(bootstrap_servers=broker.address, transactional_id=topic)
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
            worker.role.full = {0, 1}  # type: ignore[misc]
        keep(workers, places, 6, 3)
        for number_of, place in enumerate(places):
            workers[number_of].role.full = ()  # type: ignore[misc]
            place.send(7, 8)
        all_have(workers, places, 8)
        for number_of, place in enumerate(places):
            assert counted(workers[number_of], f"moved-{number_of}", LOST) == 0
            workers[number_of].close()
            workers[number_of] = stack.enter_context(closing(place.worker()))
        keep(workers, places, 8, 5)
        for place in places:
            place.send(9, 10)
        all_have(workers, places, 10)
        assert [counted(worker, f"moved-{name}", LOST) for name, worker in enumerate(workers)] == [0, 0]


@pytest.mark.broker
def test_what_comes_while_a_worker_is_away_is_read_under_latest_too(place: Place) -> None:
    """Protects an input that brought nothing before the worker stopped: it began at a later end after the
    restart, and what had come meanwhile was never read."""
    topic = place.channels.inputs["numbers"].topic
    place.send(1, 2)
    with closing(place.worker("latest")) as before:
        work(before, lambda: place.bus.committed(place.group), {(topic, 0): 2, (topic, 1): 0})
    place.send(3, 4)
    with closing(place.worker("latest")) as after:
        work(after, place.totals, ["3 1", "4 2"])
