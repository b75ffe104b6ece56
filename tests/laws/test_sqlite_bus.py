"""The SQLite bus obeys the laws of every bus, and a few of its own: a file has rights, versions and an end of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamfl.runtime.bus import Bus, connect
from streamfl.testing.bus_laws import BusLaws


class TestSqliteBus(BusLaws):
    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[Bus]:
        bus = connect(f"sqlite://{tmp_path}/bus.db", {"session_timeout_seconds": 3})
        yield bus
        bus.close()
