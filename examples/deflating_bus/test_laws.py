"""The connector obeys the laws that every connector has to obey."""

import pytest
from deflating_bus import connect

from streamfl.testing.bus_laws import BusLaws


class TestDeflatingBus(BusLaws):
    """On a bus in memory."""

    @pytest.fixture
    def bus(self):
        return connect("deflate+memory://laws", {})
