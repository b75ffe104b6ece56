"""What a poll brings: records in order, bounded, from where the member stands, and how far behind it is."""

from __future__ import annotations

import pytest

from streamfl.role import ConfigurationError
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
    """What a poll brings: records in order, bounded, from where the member stands, and how far behind it is."""

    def test_no_record_comes_before_its_partition_was_restored(self, bus: Bus) -> None:
        """Protects restored state: a poll that reports a partition brings none of its records yet."""
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
        """Protects the per-partition order, keys, headers and missing values that decoding relies on."""
        samples = new_topic(bus, partitions=3)
        written = [
            Outgoing(
                samples, None if i % 4 == 1 else f"k{i}".encode(), None if i % 4 == 2 else f"v{i}".encode(), i % 3, (("h", b"1"),)
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
        """Protects memory: a poll never brings more input records than it was asked for."""
        samples = new_topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, b"x", i % 2) for i in range(30)])
        with joined(bus, samples) as (session, _):
            for polled in polls(session, lambda seen: len(seen.records) == 30, most=4):
                assert len(polled.records) <= 4

    def test_seek_moves_the_position(self, bus: Bus) -> None:
        """Protects the changelog's positions: where the state left off is where reading goes on, forwards or back."""
        samples = new_topic(bus)
        bus.write([Outgoing(samples, None, f"{i}".encode(), 0) for i in range(6)])
        with joined(bus, samples) as (session, _):
            until(session, lambda seen: seen.assigned == [0])
            assert values(records_from(session, samples, 4, 2)) == [b"4", b"5"]
            assert values(records_from(session, samples, 1, 5)) == [b"1", b"2", b"3", b"4", b"5"]

    def test_paused_partitions_bring_nothing(self, bus: Bus) -> None:
        """Protects a role whose waiting room is full, and the other partitions, which go on; nothing is lost by it."""
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
        """Protects a role that waits for one of its inputs to make room for another: what is paused is a place, not a number."""
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
        """Protects a role that has room again: a client library sets aside what it has of a paused partition, and other partitions'
        records must not bury it.
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
        """Protects the operator's main alarm: lag grows with what waits and falls when it is taken."""
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
        """Protects ticks: a worker that waits for the end of a topic written by commits sees that it is there."""
        samples, outputs = new_topic(bus), new_topic(bus)
        bus.write([Outgoing(samples, None, b"x", 0)])
        with joined(bus, samples) as (session, _):
            records_of(session, 1)
            session.commit(Step({(samples, 0): 1}, [Outgoing(outputs, None, b"y", 0)]))
        with joined(bus, outputs) as (session, _):
            records_of(session, 1)
            poll_until(session, lambda: session.lag().get((outputs, 0)) == 0)

    def test_a_group_begins_where_it_is_told(self, bus: Bus) -> None:
        """Protects against silent loss and silent repetition: earliest, latest and a refusal to guess are three things."""
        samples = new_topic(bus)
        bus.write([Outgoing(samples, None, b"old", 0)])
        with opened(bus, Subscription(new_name("group"), (samples,), auto_offset_reset="latest")) as session:
            until(session, lambda seen: seen.assigned == [0])
            # Where 'latest' is gets decided by the poll that begins the partition.
            session.poll(QUIET, 10)
            bus.write([Outgoing(samples, None, b"new", 0)])
            assert values(records_of(session, 1)) == [b"new"]
        undecided = Subscription(new_name("group"), (samples,), auto_offset_reset="error")
        with opened(bus, undecided) as session, pytest.raises(ConfigurationError, match="auto_offset_reset"):
            records_of(session, 1)
