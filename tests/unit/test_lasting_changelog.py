"""A changelog that outlives federations: budget spent by one counts for the next."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from counting import CHANNELS, TOPICS, CountingRole, number

from streamfl.contract.channels import Channels, TopicSpec
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Outgoing, Subscription
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.remembered_settings import is_settings
from streamfl.runtime.worker import Worker
from streamfl.state.state_settings import StateSettings

# The role's state goes to the channel "state"; the other channel holds the read positions.
LEDGER = {"state": "state", "positions": "own"}


def bus_with(*values: bytes) -> MemoryBus:
    bus = MemoryBus()
    bus.create([*TOPICS, TopicSpec("own", 2, compacted=True), TopicSpec("other", 2, compacted=True)])
    bus.write([Outgoing("numbers", b"pump", value, 0) for value in values])
    return bus


def run(bus: MemoryBus, federation: str, own: str, lasting: Collection[str]) -> None:
    channels = Channels(
        CHANNELS.inputs, CHANNELS.outputs, {**LEDGER, "positions": own}, CHANNELS.tables, lasting=lasting
    )
    subscription = Subscription(federation, ("numbers",), ("factor",))
    worker = Worker(
        CountingRole(), channels, bus, subscription, "dead-letters", restore_seconds=0.0,
        state_settings=StateSettings({"federation.name": federation}),
    )  # fmt: skip
    while worker.step(0):
        pass
    worker.close()


def test_another_federation_takes_it_over() -> None:
    """Protects a lifetime budget: a second federation on the same data begins with what the first one
    spent."""
    bus = bus_with(number(1, 5))
    run(bus, "first", "own", {"state"})
    bus.write([Outgoing("numbers", b"pump", number(2, 7), 0)])
    run(bus, "second", "other", {"state"})
    assert [record.value for record in bus.read("totals")] == [number(1, 5), number(2, 12)]
    # Settings and positions belong to one federation only.
    assert [record.key for record in bus.read("state")] == [b"pump", b"pump"]
    assert any(is_settings(record) for record in bus.read("own"))


def test_a_state_of_its_own_is_not_taken_over() -> None:
    """Protects the test above: without the mark, another federation's state is refused."""
    bus = bus_with(number(1, 5))
    run(bus, "first", "own", ())
    with pytest.raises(ConfigurationError, match="made with other settings"):
        run(bus, "second", "other", ())


def test_nobody_is_told_to_delete_it() -> None:
    """Protects a ledger from its operator: deleting it would allow all releases again."""
    bus = bus_with(number(1, 5))
    run(bus, "first", "own", {"state"})
    bus.write([Outgoing("state", b"pump", b"damaged", 0, (("crc", b"0000"),))])
    with pytest.raises(ConfigurationError) as refused:
        run(bus, "first", "own", {"state"})
    assert "restore a copy" in str(refused.value)
    assert "delete" not in str(refused.value).replace("do not delete it", "")
