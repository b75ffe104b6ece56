"""Changelog records that were damaged, cut short or moved after they were written, whatever Kafka's own
checksums say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from counting import CountingRole, bus_of, counting_worker, drain, number
from msgspec import structs

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.checksum import is_damaged
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.runtime.worker import Worker

KEYS = (b"pump", b"press")


@dataclass
class Left:
    """The topics of a stopped worker that has added two numbers."""

    bus: MemoryBus
    records: dict[bytes, Record]

    def comes_back(self) -> Worker:
        returned = counting_worker(self.bus)
        drain(returned)
        return returned


@pytest.fixture
def left() -> Left:
    bus = bus_of()
    bus.write([Outgoing("numbers", key, number(1, 5), 0) for key in KEYS])
    first = counting_worker(bus)
    drain(first)
    first.close()
    return Left(bus, {record.key or b"": record for record in bus.read("state")})


def written(record: Record, **changes: object) -> Outgoing:
    found = structs.replace(record, **changes)
    return Outgoing(found.topic, found.key, found.value, found.partition, found.headers)


DAMAGES: dict[str, Callable[[Record, Record], Outgoing]] = {
    "a bit": lambda one, other: written(one, value=bytes([one.value[0] ^ 1]) + one.value[1:]),  # type: ignore[index]
    "cut short": lambda one, other: written(one, value=one.value[:-1]),  # type: ignore[index]
    "another's value": lambda one, other: written(one, value=other.value, headers=other.headers),
    "another's key": lambda one, other: written(one, key=other.key),
    "another partition": lambda one, other: written(one, partition=1),
    "a checksum cut short": lambda one, other: written(
        one, headers=((one.headers[0][0], one.headers[0][1][:-1]),)
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_its_checksum_does_not_fit_is_named(left: Left, damage: str) -> None:
    """Protects against state that is wrong but looks right: the refusal names its place and the remedy."""
    one, other = (left.records[key] for key in KEYS)
    record = DAMAGES[damage](one, other)
    left.bus.write([record])
    with pytest.raises(
        ConfigurationError, match=f"topic state, partition {record.partition}, key"
    ) as refused:
        left.comes_back()
    assert repr(record.key) in str(refused.value)
    assert "restore a copy of the topic" in str(refused.value)


def test_a_record_without_a_checksum_is_taken_back(left: Left) -> None:
    """Protects an upgrade: earlier releases wrote none."""
    for record in left.records.values():
        left.bus.write([written(record, headers=())])
    role = left.comes_back().role
    assert isinstance(role, CountingRole)
    assert role.totals[0] == dict.fromkeys(KEYS, (1, 5))


@pytest.mark.parametrize("stranger", [True, False])
def test_a_record_without_a_checksum_after_others_is_named(
    left: Left, caplog: pytest.LogCaptureFixture, stranger: bool
) -> None:
    """Protects the operator from another's record in a state that is used in silence: the log names its
    place. A tombstone never has a checksum."""
    record = left.records[KEYS[0]]
    left.bus.write([Outgoing("state", record.key, record.value if stranger else None, 0)])
    left.comes_back()
    assert caplog.text.count("has no checksum") == stranger
    assert (repr(KEYS[0]) in caplog.text) == stranger


@pytest.mark.parametrize("value", [b"", b"\1\2\3", b"\xff" * 8, b"\1" * 9])
@pytest.mark.parametrize("topic", [b"numbers", b"\xff\xfe", b"x" * 100_000])
def test_a_position_that_is_none_is_named(left: Left, value: bytes, topic: bytes) -> None:
    """Protects the operator from a traceback, and from a line of any length: an invalid position without a
    checksum is reported with its place."""
    left.bus.write([Outgoing("state", POSITION_KEY + topic, value, 0)])
    with pytest.raises(ConfigurationError, match="topic state, partition 0, key") as refused:
        left.comes_back()
    assert len(str(refused.value)) < 3_000


def test_what_was_replaced_since_does_not_count(left: Left) -> None:
    """Protects a start: only the last record of a key is restored, so only that one has to be sound."""
    one = left.records[KEYS[0]]
    left.bus.write([written(one, value=b"nonsense"), written(one)])
    left.comes_back()


def test_every_record_of_a_changelog_has_a_checksum(left: Left) -> None:
    """Protects the check from finding nothing: both the state and the position beside it have a checksum."""
    assert any(key.startswith(POSITION_KEY) for key in left.records)
    for record in left.records.values():
        assert record.headers
        assert not is_damaged(record)
