"""Records that retention deleted, before or after they were read, are counted and reported on every bus."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from broker import Broker
from counting import TOPICS, number
from kafka.admin import KafkaAdminClient
from places import Place, counted, delete_records, place_on, work

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Outgoing, connect
from streamfl.runtime.input_topics import Unread
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.testing.bus_laws.members import eventually


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
