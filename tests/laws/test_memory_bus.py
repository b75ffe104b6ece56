"""The memory bus obeys the laws of every bus, and a few of its own."""

from __future__ import annotations

import pytest

from streamfl.runtime.bus import connect
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.testing.bus_laws import BusLaws


class TestMemoryBus(BusLaws):
    @pytest.fixture
    def bus(self) -> MemoryBus:
        return MemoryBus()


def test_a_url_names_one_bus() -> None:
    """Protects the embedded federation: roles with the same URL share a bus, others do not."""
    assert connect("memory://laws-here") is connect("memory://laws-here")
    assert connect("memory://laws-here") is not connect("memory://laws-there")
