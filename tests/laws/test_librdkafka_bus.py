"""The bus on librdkafka obeys the laws of every bus, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker import Broker
from named_bus import named_bus

from streamfl.runtime.bus import Bus, connect
from streamfl.testing.bus_laws import BusLaws

pytestmark = pytest.mark.broker


class TestLibrdkafkaBus(BusLaws):
    @pytest.fixture
    def bus(self, request: pytest.FixtureRequest) -> Iterator[Bus]:
        # A silent member is removed after this time, not after Kafka's five minutes.
        options = {"max.poll.interval.ms": 8000, "session.timeout.ms": 6000}
        if (named := named_bus("kafka+librdkafka", options)) is not None:
            yield from named
            return
        broker: Broker = request.getfixturevalue("broker")
        bus = connect(f"kafka+librdkafka://{broker.address}", options)
        yield bus
        bus.close()
