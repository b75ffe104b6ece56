"""What a poll returns: a bounded number of records in order, from the member's position; and the lag."""

from __future__ import annotations

import pytest

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Bus, Outgoing, Polled, Step, Subscription
from streamfl.testing.bus_laws.members import (
    QUIET,
    joined,
    new_name,
    new_topic,
    opened,
    poll_until,
    polls,
    records_from,
    records_of,
    until,
    values,
)

__all__ = ["PollLaws"]


class PollLaws:
    """What a poll returns: a bounded number of records in order, from the member's position; and the lag."""

    def test_no_record_comes_before_its_partition_was_restored(self, bus: Bus) -> None:
        """Protects restored state: the poll that reports a partition returns none of its records yet."""
        samples = new_topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, b"a", 0), Outgoing(samples, None, b"b", 1)])
        with joined(bus, samples) as (session, _):
            reported: set[int] = set()

            def all_came(polled: Polled) -> bool:
                return len(polled.records) == 2

            for polled in polls(session, all_came):
                assert {record.partition for record in polled.records} <= reported
                reported |= set(polled.assigned)

    def test_records_keep_their_order_and_content(self, bus: Bus) -> None:
        """Protects decoding, which relies on the order within a partition, keys, headers and missing
        values."""
        samples = new_topic(bus, partitions=3)
        written = [
            Outgoing(
                samples,
                None if i % 4 == 1 else f"k{i}".encode(),
                None if i % 4 == 2 else f"v{i}".encode(),
                i % 3,
                (("h", b"1"),),
            )
            for i in range(60)
        ]
        bus.write(written)
        with joined(bus, samples) as (session, _):
            records = records_of(session, 60, most=7)
        for partition in range(3):
            mine = [record for record in records if record.partition == partition]
            assert [record.offset for record in mine] == list(range(20))
            assert [(r.key, r.value, r.headers) for r in mine] == [
                (o.key, o.value, o.headers) for o in written if o.partition == partition
            ]

    def test_a_poll_is_bounded(self, bus: Bus) -> None:
        """Protects memory: a poll never returns more input records than requested."""
        samples = new_topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, b"x", i % 2) for i in range(30)])
        with joined(bus, samples) as (session, _):
            for polled in polls(session, lambda seen: len(seen.records) == 30, most=4):
                assert len(polled.records) <= 4

    def test_seek_moves_the_position(self, bus: Bus) -> None:
        """Protects the changelog's positions: reading continues where the state ends, forwards or back."""
        samples = new_topic(bus)
        bus.write([Outgoing(samples, None, f"{i}".encode(), 0) for i in range(6)])
        with joined(bus, samples) as (session, _):
            until(session, lambda seen: seen.assigned == [0])
            assert values(records_from(session, samples, 4, 2)) == [b"4", b"5"]
            assert values(records_from(session, samples, 1, 5)) == [b"1", b"2", b"3", b"4", b"5"]

    def test_an_input_that_was_not_sought_begins_as_the_group_does(self, bus: Bus) -> None:
        """Protects a worker that restarts before one of its inputs had a record: it seeks only the others.
        Ticks wait for the end of every input, so the lag of that one must be known; and 'latest' stays
        latest."""
        samples, answers = new_topic(bus), new_topic(bus)
        bus.write([Outgoing(samples, None, f"{i}".encode(), 0) for i in range(3)])
        bus.write([Outgoing(answers, None, b"old", 0)])
        latest = Subscription(new_name("group"), (samples, answers), auto_offset_reset="latest")
        with opened(bus, latest) as session:
            until(session, lambda seen: seen.assigned == [0])
            assert values(records_from(session, samples, 1, 2)) == [b"1", b"2"]
            poll_until(session, lambda: session.lag() == {(samples, 0): 0, (answers, 0): 0})
            bus.write([Outgoing(answers, None, b"new", 0)])
            assert values(records_of(session, 1)) == [b"new"]

    def test_paused_partitions_bring_nothing(self, bus: Bus) -> None:
        """Protects a role with a full waiting room: a pause holds back one partition only, and loses
        nothing."""
        samples = new_topic(bus, partitions=2)
        with joined(bus, samples) as (session, _):
            until(session, lambda seen: sorted(seen.assigned) == [0, 1])
            session.pause([(samples, 0)])
            bus.write([Outgoing(samples, None, b"left", 0), Outgoing(samples, None, b"right", 1)])
            assert values(records_of(session, 1)) == [b"right"]
            assert session.poll(QUIET, 100).records == []
            session.pause([])
            assert values(records_of(session, 1)) == [b"left"]

    def test_a_paused_input_leaves_others_of_its_partition_alone(self, bus: Bus) -> None:
        """Protects a role that waits for one input to make room for another: a pause applies to one topic's
        partition."""
        samples, answers = new_topic(bus), new_topic(bus)
        with joined(bus, samples, answers) as (session, _):
            until(session, lambda seen: seen.assigned == [0])
            session.pause([(samples, 0)])
            bus.write([Outgoing(samples, None, b"sample", 0), Outgoing(answers, None, b"answer", 0)])
            assert values(records_of(session, 1)) == [b"answer"]
            assert session.poll(QUIET, 100).records == []
            session.pause([(answers, 0)])
            assert values(records_of(session, 1)) == [b"sample"]

    def test_what_was_fetched_before_a_pause_comes_after_it(self, bus: Bus) -> None:
        """Protects a role that has room again. A client library sets aside what it fetched of a paused
        partition; others' records must not delay it for ever.
        """
        samples, answers = new_topic(bus), new_topic(bus)
        bus.write([Outgoing(samples, None, f"{i}".encode(), 0) for i in range(6)])
        with joined(bus, samples, answers) as (session, _):
            first = records_of(session, 1, most=2)
            session.pause([(samples, 0)])
            bus.write([Outgoing(answers, None, b"answer", 0)])
            assert values(records_of(session, 1)) == [b"answer"]
            session.pause([])
            left = records_of(session, 6 - len(first))
            assert values([*first, *left]) == [f"{i}".encode() for i in range(6)]

    def test_lag_counts_what_is_not_taken(self, bus: Bus) -> None:
        """Protects the operator's main alarm: lag counts unread records and falls when they are read."""
        samples = new_topic(bus)
        with joined(bus, samples) as (session, _):
            until(session, lambda seen: seen.assigned == [0])
            session.pause([(samples, 0)])
            bus.write([Outgoing(samples, None, b"x", 0) for _ in range(10)])
            poll_until(session, lambda: session.lag().get((samples, 0)) == 10)
            session.pause([])
            records_of(session, 10)
            poll_until(session, lambda: session.lag().get((samples, 0)) == 0)

    def test_lag_ends_at_nothing_after_a_commit(self, bus: Bus) -> None:
        """Protects ticks: a worker that waits for the end of a topic written in transactions must notice the
        end."""
        samples, outputs = new_topic(bus), new_topic(bus)
        bus.write([Outgoing(samples, None, b"x", 0)])
        with joined(bus, samples) as (session, _):
            records_of(session, 1)
            session.commit(Step({(samples, 0): 1}, [Outgoing(outputs, None, b"y", 0)]))
        with joined(bus, outputs) as (session, _):
            records_of(session, 1)
            poll_until(session, lambda: session.lag().get((outputs, 0)) == 0)

    def test_a_group_begins_where_it_is_told(self, bus: Bus) -> None:
        """Protects against silent loss and silent repetition: earliest, latest and none are three different
        starts."""
        samples = new_topic(bus)
        bus.write([Outgoing(samples, None, b"old", 0)])
        with opened(bus, Subscription(new_name("group"), (samples,), auto_offset_reset="latest")) as session:
            until(session, lambda seen: seen.assigned == [0])
            # The poll that begins the partition decides where 'latest' is.
            session.poll(QUIET, 10)
            bus.write([Outgoing(samples, None, b"new", 0)])
            assert values(records_of(session, 1)) == [b"new"]
        undecided = Subscription(new_name("group"), (samples,), auto_offset_reset="error")
        with opened(bus, undecided) as session, pytest.raises(ConfigurationError, match="auto_offset_reset"):
            records_of(session, 1)
