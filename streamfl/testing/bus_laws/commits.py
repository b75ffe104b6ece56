"""A step becomes visible whole or not at all, and only if its member still has its partitions."""

from __future__ import annotations

import pytest

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Bus, CommitRefused, Guarantee, Outgoing, Step
from streamfl.testing.bus_laws.members import (
    Owned,
    eventually,
    joined,
    new_name,
    new_topic,
    records_of,
    together,
    until,
    values,
)

__all__ = ["CommitLaws"]


class CommitLaws:
    """A step becomes visible whole or not at all, and only if its member still has its partitions."""

    def test_a_commit_is_seen_whole(self, bus: Bus) -> None:
        """Protects the atomic step: outputs, changelog and positions appear together, and in the given
        order."""
        samples, outputs, state = new_topic(bus), new_topic(bus), new_topic(bus, compacted=True)
        bus.write([Outgoing(samples, b"k", b"one", 0), Outgoing(samples, b"k", b"two", 0)])
        with joined(bus, samples) as (session, group):
            assert values(records_of(session, 2)) == [b"one", b"two"]
            sent = [Outgoing(outputs, b"k", b"first", 0), Outgoing(outputs, b"k", b"second", 0)]
            session.commit(Step({(samples, 0): 2}, sent, [Outgoing(state, b"key", b"value", 0)]))
            eventually(lambda: values(bus.read(outputs)), [b"first", b"second"])
            eventually(lambda: values(session.restore(state, 0)), [b"value"])
            assert session.committed(samples, 0) == 2
        bus.write([Outgoing(samples, b"k", b"three", 0)])
        with joined(bus, samples, group=group) as (session, _):
            assert values(records_of(session, 1)) == [b"three"]

    def test_a_record_has_the_time_that_it_is_given(self, bus: Bus) -> None:
        """Protects readers that go by time. A record without a time, or with one in the future, gets the time
        of writing."""
        samples, outputs = new_topic(bus), new_topic(bus)
        bus.write([Outgoing(samples, None, b"one", 0)])
        with joined(bus, samples) as (session, _):
            records_of(session, 1)
            times = (1_700_000_000.25, None, 4_000_000_000.0, 0.0, -5.0)
            session.commit(
                Step({(samples, 0): 1}, [Outgoing(outputs, None, b"x", 0, (), at) for at in times])
            )
            eventually(lambda: values(bus.read(outputs)), [b"x"] * len(times))
        given, usual, *others = (record.timestamp for record in bus.read(outputs))
        assert abs(given - 1_700_000_000.25) < 0.002
        assert all(abs(at - usual) < 60 for at in others)

    def test_a_commit_that_fails_is_not_seen_at_all(self, bus: Bus) -> None:
        """Protects against half a step: a record for a missing topic makes the whole step fail."""
        samples, outputs, state = new_topic(bus), new_topic(bus), new_topic(bus, compacted=True)
        bus.write([Outgoing(samples, None, b"one", 0)])
        with joined(bus, samples) as (session, _):
            records_of(session, 1)
            good = Outgoing(outputs, None, b"good", 0)
            missing = Outgoing(new_name("missing"), None, b"bad", 0)
            with pytest.raises(ConfigurationError):
                session.commit(Step({(samples, 0): 1}, [good, missing], [Outgoing(state, b"k", b"v", 0)]))
            assert values(bus.read(outputs)) == []
            assert values(bus.read(state)) == []
            assert session.committed(samples, 0) is None

    def test_what_was_not_committed_is_read_again(self, bus: Bus) -> None:
        """Protects against loss: when a worker dies between poll and commit, the next worker gets its
        records."""
        samples = new_topic(bus)
        bus.write([Outgoing(samples, None, value, 0) for value in (b"a", b"b", b"c")])
        with joined(bus, samples) as (session, group):
            records_of(session, 3)
            session.commit(Step({(samples, 0): 1}))
        with joined(bus, samples, group=group) as (session, _):
            assert values(records_of(session, 2)) == [b"b", b"c"]

    def test_a_groups_offsets_are_known_to_all(self, bus: Bus) -> None:
        """Protects `streamfl check`: it compares the group's offsets with the state without joining the
        group."""
        samples = new_topic(bus)
        bus.write([Outgoing(samples, None, value, 0) for value in (b"a", b"b")])
        with joined(bus, samples) as (session, group):
            records_of(session, 2)
            assert bus.committed(group) == {}
            session.commit(Step({(samples, 0): 2}))
        eventually(lambda: bus.committed(group), {(samples, 0): 2})

    @pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
    def test_who_fell_silent_cannot_commit(self, bus: Bus, guarantee: Guarantee) -> None:
        """Protects against two owners: a stalled worker's step on moved partitions is refused whole, and the
        worker starts again. Its state and positions would replace the new owner's in the changelog."""
        samples = new_topic(bus, partitions=2)
        outputs = new_topic(bus)
        state = new_topic(bus, partitions=2, compacted=True)
        bus.write([Outgoing(samples, None, b"x", partition) for partition in range(2)])
        with joined(bus, samples, guarantee=guarantee) as (silent, group):
            owned = Owned(silent)
            together([owned], lambda: len(owned.records) == 2)
            with joined(bus, samples, group=group, guarantee=guarantee) as (second, _):
                other = Owned(second)
                together([other], lambda: bool(other.records))
                taken = other.records[0].partition
                step = Step(
                    {(samples, taken): 1},
                    [Outgoing(outputs, None, b"late", 0)],
                    [Outgoing(state, b"k", b"late", taken)],
                )
                with pytest.raises(CommitRefused):
                    silent.commit(step)
                assert values(bus.read(outputs)) == []
                assert values(bus.read(state)) == []
                second.commit(Step({(samples, taken): 1}, [Outgoing(outputs, None, b"in time", 0)]))
                eventually(lambda: values(bus.read(outputs)), [b"in time"])

                again = until(silent, lambda seen: bool(seen.revoked), others=[other])
                assert set(again.revoked) == {0, 1}
            left = records_of(silent, 1)
            assert [record.partition for record in left] == [1 - taken]
            silent.commit(Step({(samples, 1 - taken): 1}, [Outgoing(outputs, None, b"again", 0)]))
            eventually(lambda: values(bus.read(outputs)), [b"in time", b"again"])
