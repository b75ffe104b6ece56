"""What the memory bus and the SQLite bus do alike, beside the laws of every bus."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Bus, CommitRefused, Outgoing, Session, Step, Subscription, connect
from streamfl.runtime.sqlite_bus import SqliteBus


@pytest.fixture(name="bus", params=["memory", "sqlite"])
def _bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bus]:
    bus = connect(f"{request.param}://{tmp_path}/bus.db", {})
    bus.create([TopicSpec("samples", 2, compacted=False), TopicSpec("outputs", 1, compacted=False)])
    yield bus
    bus.close()


def put_out(bus: Bus, session: Session) -> None:
    """As if the member had been silent for long."""
    if isinstance(bus, SqliteBus):
        with closing(sqlite3.connect(bus.path)) as connection, connection:
            connection.execute("DELETE FROM members")
    else:
        bus.expel(session)  # type: ignore[attr-defined]


def test_who_is_no_member_is_refused_and_comes_back(bus: Bus) -> None:
    """Protects against a process that was declared dead: none of its writes appear, also of a step without
    inputs."""
    bus.write([Outgoing("samples", None, b"x", 0)])
    with closing(bus.session(Subscription("group", ("samples",)))) as session:
        assert session.poll(0, 10).assigned == [0, 1]
        assert len(session.poll(0, 10).records) == 1
        put_out(bus, session)
        for positions in ({}, {("samples", 0): 1}):
            with pytest.raises(CommitRefused):
                session.commit(Step(positions, [Outgoing("outputs", None, b"late")]))
        assert list(bus.read("outputs")) == []
        polled = session.poll(0, 10)
        assert (polled.revoked, polled.assigned) == ([0, 1], [0, 1])
        assert len(session.poll(0, 10).records) == 1


def test_latest_is_asked_once(bus: Bus) -> None:
    """Protects against loss under 'latest': records polled before a refused first commit are read again, not
    skipped."""
    with closing(bus.session(Subscription("group", ("samples",), auto_offset_reset="latest"))) as session:
        session.poll(0, 10)
        bus.write([Outgoing("samples", None, b"x", 0)])
        assert len(session.poll(0, 10).records) == 1
        put_out(bus, session)
        with pytest.raises(CommitRefused):
            session.commit(Step({("samples", 0): 1}))
        session.poll(0, 10)
        assert len(session.poll(0, 10).records) == 1


def test_a_partition_that_went_and_came_back_is_reported(bus: Bus) -> None:
    """Protects restored state: a partition may have been another's meanwhile, so its new owner must not trust
    its old state."""
    first = bus.session(Subscription("group", ("samples",)))
    first.poll(0, 10)
    second = bus.session(Subscription("group", ("samples",)))
    moved = second.poll(0, 10).assigned
    second.close()
    assert len(moved) == 1
    polled = first.poll(0, 10)
    assert polled.revoked == moved
    assert polled.assigned == moved
    first.close()


def test_compaction_keeps_the_latest_of_every_key(bus: Bus) -> None:
    """Protects the memory, the disk and the time to restore: old versions go; each key's newest value and
    offset stay, and so do recent ones."""
    bus.create([TopicSpec("state", 1, compacted=True)])
    written = [(b"rare", b"kept"), (b"gone", b"x"), (b"gone", None)]
    written += [
        (b"%d" % (number * 7919 % 100), None if number % 311 == 5 else b"%d" % number)
        for number in range(30_000)
    ]
    for start in range(0, len(written), 500):
        bus.write([Outgoing("state", key, value, 0) for key, value in written[start : start + 500]])
    records = list(bus.read("state"))
    recent = 5_000 if isinstance(bus, SqliteBus) else 1
    assert len(records) < (5_000 + 2 * 1_000 + 200 if isinstance(bus, SqliteBus) else 25_000)
    assert [record.offset for record in records] == sorted(record.offset for record in records)
    assert [(record.key, record.value) for record in records[-recent:]] == written[-recent:]
    assert records[-1].offset == 30_002
    latest = {record.key: record.value for record in records}
    assert b"gone" not in latest
    expected = {key: value for key, value in dict(written).items() if value is not None}
    assert {key: value for key, value in latest.items() if value is not None} == expected


def test_a_waiting_poll_wakes_up(bus: Bus) -> None:
    """Protects latency: a poll returns when something is written, and not only at its timeout, which would
    end this test."""
    session = bus.session(Subscription("group", ("samples",)))
    session.poll(0, 10)
    writer = threading.Timer(0.05, lambda: bus.write([Outgoing("samples", None, b"x", 0)]))
    writer.start()
    assert len(session.poll(600, 10).records) == 1
    writer.join()
    session.close()


def test_inputs_need_equal_partitions(bus: Bus) -> None:
    """Protects a role with several inputs: partition p of each has to exist."""
    with pytest.raises(ConfigurationError, match="same number of partitions"):
        bus.session(Subscription("group", ("samples", "outputs")))
