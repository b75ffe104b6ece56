"""What a bus tells without joining a group: its topics, and their records."""

from __future__ import annotations

import math
import time

import pytest

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Bus, Outgoing, Subscription
from streamfl.testing.bus_laws.members import TURN, new_name, new_topic, opened, values

__all__ = ["TopicLaws"]


class TopicLaws:
    """What a bus tells without joining a group: its topics, and their records."""

    def test_a_missing_topic_is_a_configuration_error(self, bus: Bus) -> None:
        """Protects the operator: a wrong topic name fails at once instead of waiting."""
        missing = new_name("missing")
        with (
            pytest.raises(ConfigurationError, match=missing),
            opened(bus, Subscription(new_name("group"), (missing,))) as session,
        ):
            session.poll(TURN, 1)
        with pytest.raises(ConfigurationError, match=missing):
            bus.write([Outgoing(missing, None, b"x")])

    def test_topics_are_described_as_created(self, bus: Bus) -> None:
        """Protects the preflight: partitions and cleanup policy are reported correctly, and creating again
        changes nothing."""
        spec = TopicSpec(new_name("topic"), 3, compacted=True)
        missing = new_name("missing")
        bus.create([spec])
        bus.write([Outgoing(spec.name, b"k", b"v", 2)])
        bus.create([TopicSpec(spec.name, 1, compacted=False)])
        found = bus.describe([spec.name, missing])
        assert list(found) == [spec.name]
        assert (found[spec.name].partitions, found[spec.name].compacted, found[spec.name].error) == (
            3,
            True,
            None,
        )
        assert found[spec.name].identity
        assert bus.describe([spec.name])[spec.name].identity == found[spec.name].identity
        assert values(bus.read(spec.name)) == [b"v"]

    def test_a_key_always_has_the_same_partition(self, bus: Bus) -> None:
        """Protects a client's state: all of its records must reach the one task that has it."""
        samples = new_topic(bus, partitions=4)
        bus.write([Outgoing(samples, f"client-{i % 10}".encode(), b"x") for i in range(40)])
        places: dict[bytes | None, set[int]] = {}
        for record in bus.read(samples):
            places.setdefault(record.key, set()).add(record.partition)
        assert len(places) == 10
        assert all(len(partitions) == 1 for partitions in places.values())

    def test_a_key_has_the_partition_that_the_bus_says(self, bus: Bus) -> None:
        """Protects checks of a record's partition: the bus names the partition that its own writers
        choose."""
        topic = new_name("keys")
        bus.create([TopicSpec(topic, 3, compacted=False)])
        keys = [f"customer-{number}".encode() for number in range(20)]
        bus.write([Outgoing(topic, key, b"") for key in keys])
        found = {record.key: record.partition for record in bus.read(topic)}
        assert found == {key: bus.partition_of(key, 3) for key in keys}
        assert len(set(found.values())) == 3

    def test_a_look_takes_the_first_and_the_last(self, bus: Bus) -> None:
        """Protects the preflight: it reads the newest records of every requested partition, however many
        older ones there are."""
        samples = new_topic(bus, partitions=3)
        bus.write([Outgoing(samples, None, b"%d" % number, 1) for number in range(300)])
        bus.write([Outgoing(samples, None, b"%d" % number, 2) for number in range(3)])
        assert [(record.partition, record.value) for record in bus.peek(samples, [0, 1], 2)] == [
            (1, b"0"),
            (1, b"1"),
            (1, b"298"),
            (1, b"299"),
        ]
        assert values(bus.peek(samples, [2], 2)) == [b"0", b"1", b"2"]

    def test_reading_is_limited(self, bus: Bus) -> None:
        """Protects the preflight, which reads a few records of a topic with millions."""
        samples = new_topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, b"x", i % 2) for i in range(10)])
        assert len(list(bus.read(samples))) == 10
        assert len(list(bus.read(samples, limit=3))) == 3
        assert list(bus.read(samples, limit=0)) == []

    def test_one_place_can_be_looked_at(self, bus: Bus) -> None:
        """Protects reading a single place: earlier records and other partitions are left out."""
        samples = new_topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, b"%d" % number, number % 2) for number in range(10)])
        assert values(bus.read_from(samples, 1, 3)) == [b"7", b"9"]
        assert list(bus.read_from(samples, 0, 5)) == []

    def test_a_time_has_an_offset(self, bus: Bus) -> None:
        """Protects a reset to a time, and following a topic from its end: no record is skipped or read
        twice."""
        samples = new_topic(bus, partitions=2)
        assert bus.offsets(samples, -math.inf) == bus.offsets(samples, math.inf) == {0: 0, 1: 0}
        bus.write([Outgoing(samples, None, b"early", 0), Outgoing(samples, None, b"early", 1)])
        # Timestamps in a log are whole milliseconds.
        time.sleep(0.01)
        bus.write([Outgoing(samples, None, b"late", 1)])
        late = max(record.timestamp for record in bus.read(samples))
        found = bus.offsets(samples, late)
        assert values(bus.read_from(samples, 0, found[0])) == []
        assert values(bus.read_from(samples, 1, found[1])) == [b"late"]
        begins, ends = bus.offsets(samples, -math.inf), bus.offsets(samples, math.inf)
        assert [values(bus.read_from(samples, 1, offsets[1])) for offsets in (begins, ends)] == [
            [b"early", b"late"],
            [],
        ]
