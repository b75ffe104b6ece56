"""The memory bus obeys the laws of every bus, and a few of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from streamfl.contract.role import ConfigurationError, TopicSpec
from streamfl.runtime.bus import CommitRefused, Outgoing, Step, Subscription, connect
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.testing.bus_laws import BusLaws


class TestMemoryBus(BusLaws):
    @pytest.fixture
    def bus(self) -> MemoryBus:
        return MemoryBus()


@pytest.fixture(name="bus")
def _bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    bus.create([TopicSpec("samples", 2, compacted=False), TopicSpec("outputs", 1, compacted=False)])
    yield bus
    bus.close()


def test_a_url_names_one_bus() -> None:
    """Protects the embedded federation: roles with the same URL share a bus, others do not."""
    assert connect("memory://laws-here") is connect("memory://laws-here")
    assert connect("memory://laws-here") is not connect("memory://laws-there")


def test_an_expelled_member_is_refused_and_comes_back(bus: MemoryBus) -> None:
    """Protects the simulator's crashes: expelling fences a member at once, and it starts again from the
    committed offsets."""
    bus.write([Outgoing("samples", None, b"x", 0)])
    session = bus.session(Subscription("group", ("samples",)))
    assert session.poll(0, 10).assigned == [0, 1]
    assert len(session.poll(0, 10).records) == 1
    bus.expel(session)
    with pytest.raises(CommitRefused):
        session.commit(Step({("samples", 0): 1}, [Outgoing("outputs", None, b"late")]))
    assert list(bus.read("outputs")) == []
    polled = session.poll(0, 10)
    assert (polled.revoked, polled.assigned) == ([0, 1], [0, 1])
    assert len(session.poll(0, 10).records) == 1


def test_a_partition_that_went_and_came_back_is_reported(bus: MemoryBus) -> None:
    """Protects restored state: a partition may have been another's meanwhile, so its new owner must not trust
    its old state."""
    first = bus.session(Subscription("group", ("samples",)))
    first.poll(0, 10)
    second = bus.session(Subscription("group", ("samples",)))
    moved = second.poll(0, 10).assigned
    second.close()
    polled = first.poll(0, 10)
    assert polled.revoked == moved
    assert polled.assigned == moved


def test_latest_is_asked_once(bus: MemoryBus) -> None:
    """Protects against loss under 'latest': records polled before a refused first commit are read again, not
    skipped."""
    session = bus.session(Subscription("group", ("samples",), auto_offset_reset="latest"))
    session.poll(0, 10)
    bus.write([Outgoing("samples", None, b"x", 0)])
    assert len(session.poll(0, 10).records) == 1
    bus.expel(session)
    with pytest.raises(CommitRefused):
        session.commit(Step({("samples", 0): 1}))
    session.poll(0, 10)
    assert len(session.poll(0, 10).records) == 1


def test_compaction_keeps_the_latest_of_every_key() -> None:
    """Protects the memory of a long run and its state: old versions go, each key's newest value and its
    offset stay."""
    bus = MemoryBus()
    bus.create([TopicSpec("state", 1, compacted=True)])
    bus.write(
        [
            Outgoing("state", b"rare", b"kept", 0),
            Outgoing("state", b"gone", b"x", 0),
            Outgoing("state", b"gone", None, 0),
        ]
    )
    for start in range(0, 50_000, 1000):
        bus.write(
            [Outgoing("state", f"{i % 100}".encode(), f"{i}".encode(), 0) for i in range(start, start + 1000)]
        )
    records = list(bus.read("state"))
    latest = {record.key: record.value for record in records}
    assert len(records) < 25_000
    assert latest[b"rare"] == b"kept"
    assert b"gone" not in latest
    assert [latest[f"{i}".encode()] for i in range(100)] == [f"{49_900 + i}".encode() for i in range(100)]
    assert [record.offset for record in records] == sorted(record.offset for record in records)
    assert records[-1].offset == 50_002


def test_a_waiting_poll_wakes_up(bus: MemoryBus) -> None:
    """Protects latency: a poll returns when something is written, and not only at its timeout, which would
    end this test."""
    session = bus.session(Subscription("group", ("samples",)))
    session.poll(0, 10)
    writer = threading.Timer(0.05, lambda: bus.write([Outgoing("samples", None, b"x", 0)]))
    writer.start()
    assert len(session.poll(600, 10).records) == 1
    writer.join()


def test_inputs_need_equal_partitions(bus: MemoryBus) -> None:
    """Protects a role with several inputs: partition p of each has to exist."""
    with pytest.raises(ConfigurationError, match="same number of partitions"):
        bus.session(Subscription("group", ("samples", "outputs")))
