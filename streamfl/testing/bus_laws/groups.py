"""How a group assigns its partitions to members, and what happens to partitions that move."""

from __future__ import annotations

import pytest

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Bus, Outgoing, Step, Subscription
from streamfl.testing.bus_laws.members import Owned, eventually, joined, new_name, new_topic, opened, together

__all__ = ["GroupLaws"]


class GroupLaws:
    """How a group assigns its partitions to members, and what happens to partitions that move."""

    def test_members_share_the_partitions(self, bus: Bus) -> None:
        """Protects scale-out: a second member takes over some partitions, none has two owners, and a leaver's
        are assigned again."""
        samples = new_topic(bus, partitions=4)
        with joined(bus, samples) as (first, group):
            own = Owned(first)
            together([own], lambda: own.partitions == {0, 1, 2, 3})
            with joined(bus, samples, group=group) as (second, _):
                other = Owned(second)
                together([own, other], lambda: len(own.partitions) == len(other.partitions) == 2)
                assert own.partitions | other.partitions == {0, 1, 2, 3}
                bus.write([Outgoing(samples, None, f"{p}".encode(), p) for p in range(4)])
                together([own, other], lambda: len(own.records) + len(other.records) == 4)
                assert {record.partition for record in own.records} == own.partitions
                assert {record.partition for record in other.records} == other.partitions
            together([own], lambda: own.partitions == {0, 1, 2, 3})

    def test_members_are_counted(self, bus: Bus) -> None:
        """Protects standbys: the number of members tells a worker without partitions from one whose
        assignment is missing."""
        samples, group = new_topic(bus), new_name("group")
        with joined(bus, samples, group=group) as (first, _):
            with joined(bus, samples, group=group) as (second, _):
                together([Owned(first), Owned(second)], lambda: bus.members(group) == 2)
            together([Owned(first)], lambda: bus.members(group) == 1)
        eventually(lambda: bus.members(group), 0)

    def test_inputs_are_shared_out_together(self, bus: Bus) -> None:
        """Protects a role with two inputs: one member has partition p of both."""
        samples, labels = new_topic(bus, partitions=4), new_topic(bus, partitions=4)
        with (
            joined(bus, samples, labels) as (first, group),
            joined(bus, samples, labels, group=group) as (second, _),
        ):
            members = [Owned(first), Owned(second)]
            together(members, lambda: all(len(member.partitions) == 2 for member in members))
            bus.write([Outgoing(topic, None, b"x", p) for topic in (samples, labels) for p in range(4)])
            together(members, lambda: sum(len(member.records) for member in members) == 8)
            for member in members:
                places = {(record.topic, record.partition) for record in member.records}
                assert places == {(topic, p) for topic in (samples, labels) for p in member.partitions}

    def test_further_partitions_of_a_placed_input_are_not_assigned(self, bus: Bus) -> None:
        """Protects a federation to one of whose topics somebody adds partitions: Kafka removes none. Members
        share what the role reads, and nobody is given a partition that the other inputs do not have."""
        samples, replies = new_topic(bus, partitions=2), new_topic(bus, partitions=5)
        placed = frozenset({replies})
        subscription = Subscription(new_name("group"), (samples, replies), placed=placed)
        with opened(bus, subscription) as first, opened(bus, subscription) as second:
            members = [Owned(first), Owned(second)]
            together(members, lambda: sorted(map(len, (one.partitions for one in members))) == [1, 1])
            assert members[0].partitions | members[1].partitions == {0, 1}
            bus.write([Outgoing(samples, None, b"x", p) for p in range(2)])
            bus.write([Outgoing(replies, None, b"x", p) for p in range(5)])
            together(members, lambda: sum(len(one.records) for one in members) == 4)
            for one in members:
                places = {(record.topic, record.partition) for record in one.records}
                assert places == {(topic, p) for topic in (samples, replies) for p in one.partitions}

    def test_an_input_may_be_read_in_part(self, bus: Bus) -> None:
        """Protects a role that peers alone write to, as many partitions as its settings say. With fewer than
        these it does not begin."""
        replies, narrow = new_topic(bus, partitions=3), new_topic(bus, partitions=1)
        bus.write([Outgoing(replies, None, b"x", p) for p in range(3)])
        placed = frozenset({replies, narrow})
        with opened(bus, Subscription(new_name("group"), (replies,), placed=placed, partitions=2)) as session:
            own = Owned(session)
            together([own], lambda: len(own.records) >= 2)
            for _ in range(5):
                own.poll()
            assert own.partitions == {record.partition for record in own.records} == {0, 1}
        subscription = Subscription(new_name("group"), (replies, narrow), placed=placed, partitions=2)
        with pytest.raises(ConfigurationError, match=f"2 each .*{narrow}: 1"), opened(bus, subscription):
            pass

    def test_a_moved_partition_goes_on_where_it_was_committed(self, bus: Bus) -> None:
        """Protects exactly-once at a rebalance: the new owner begins after the old owner's last committed
        record."""
        samples = new_topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, f"{i}".encode(), i % 2) for i in range(8)])
        with joined(bus, samples) as (first, group):
            own = Owned(first)
            together([own], lambda: len(own.records) == 8)
            first.commit(Step({(samples, 0): 3, (samples, 1): 3}))
            with joined(bus, samples, group=group) as (second, _):
                other = Owned(second)
                together([own, other], lambda: len(other.records) == 1)
                assert [record.offset for record in other.records] == [3]
