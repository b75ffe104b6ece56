"""The memory bus obeys the laws of every bus, and a few of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamfl.contract.role import TopicSpec
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
