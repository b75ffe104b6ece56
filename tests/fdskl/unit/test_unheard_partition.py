"""A partition where another party is never heard: the topics of members have different numbers of them."""

from __future__ import annotations

from typing import Any

from fdskl.makers import life_of, make_worker, settings_of

from streamfl.contract.role import Received, Record
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.messages import INCARNATION, Incarnation
from streamfl.fdskl.party.role import FdsklParty
from streamfl.records.samples import Sample

PATIENCE = 600.0


def party_of(*partitions: int) -> FdsklParty:
    role = make_worker(settings_of("p1", 2, alignment={"patience_seconds": PATIENCE}))
    for partition in partitions:
        role.open(partition)
    return role


def received(channel: str, message: Any, partition: int, value: bytes = b"", key: str = "") -> Received:
    return Received(channel, message, Record(channel, partition, 0, key.encode(), value, (), 0.0))


def heard(role: FdsklParty, partition: int, now: float) -> None:
    """p0 announces its life in this partition."""
    life = life_of(0, partition)
    message = Incarnation(VERSION, role.settings.fingerprint, "p0", life.number, life.public, 1, 0)
    role.receive([received("incarnations", message, partition, INCARNATION.encode(message))], now)


def samples_until(role: FdsklParty, partition: int, begin: float, end: float) -> None:
    """A sample every ten seconds, and a tick after each."""
    for number in range(int(begin), int(end) + 1, 10):
        sample = Sample(f"e{number}", "s", (1.0, float(number)), None)
        role.receive([received("samples", sample, partition, key=sample.client)], float(number))
        role.receive([], float(number))


def test_a_partition_that_another_party_does_not_have_is_told() -> None:
    """Protects a party whose topic has more partitions than the others': it was ready, and a third of the
    entities were predicted without its columns."""
    role = party_of(0, 1)
    heard(role, 0, 0.0)
    samples_until(role, 1, 0, 120)
    assert (role.backlog or "").startswith("waits for p0 in partition 1 since 1970-01-01T00:00:00Z")
    assert role.trouble is None
    samples_until(role, 1, 130, PATIENCE)
    assert "nothing has come of p0 in partition 1" in (role.trouble or "")
    heard(role, 1, PATIENCE + 1)
    assert role.trouble is None


def test_who_is_heard_nowhere_or_has_no_samples_there_is_not_told() -> None:
    """Protects parties that start before the others, and partitions without records, from a false alarm."""
    role = party_of(0, 1)
    samples_until(role, 1, 0, PATIENCE + 100)
    assert role.trouble is None
    role = party_of(0, 1)
    heard(role, 0, 0.0)
    samples_until(role, 0, 0, PATIENCE + 100)
    assert role.trouble is None
