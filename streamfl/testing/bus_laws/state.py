"""What a member reads completely: tables before the first record, and the state of each assigned
partition."""

from __future__ import annotations

from streamfl.runtime.bus import Bus, Outgoing, Step
from streamfl.testing.bus_laws.members import TURN, eventually, joined, new_topic, records_of, until, values

__all__ = ["StateLaws"]


class StateLaws:
    """What a member reads completely: tables before the first record, and the state of each assigned
    partition."""

    def test_tables_come_whole_with_the_first_poll(self, bus: Bus) -> None:
        """Protects the first prediction: the model that existed at the start is there before any sample."""
        samples, model = new_topic(bus), new_topic(bus, partitions=2, compacted=True)
        bus.write([Outgoing(model, f"k{i}".encode(), b"old", i % 2) for i in range(40)])
        with joined(bus, samples, tables=(model,)) as (session, _):
            first = session.poll(TURN, 1)
            assert {record.key for record in first.tables} == {f"k{i}".encode() for i in range(40)}
            bus.write([Outgoing(model, b"k0", b"new", 0)])
            later = until(session, lambda seen: bool(seen.tables))
            assert values(later.tables) == [b"new"]

    def test_an_assignment_comes_with_the_tables_as_they_are(self, bus: Bus) -> None:
        """Protects against going back in time: state made with newer table records than its next owner has
        read."""
        samples, model = new_topic(bus), new_topic(bus, compacted=True)
        with joined(bus, samples, tables=(model,)) as (session, _):
            if session.poll(0.0, 1).assigned:
                # On this bus nothing can come between joining and the assignment.
                return
            bus.write([Outgoing(model, f"k{number}".encode(), b"value", 0) for number in range(3_000)])
            seen = until(session, lambda whole: bool(whole.assigned), most=1).tables
            assert len({record.key for record in seen}) == 3_000

    def test_every_member_reads_tables_whole(self, bus: Bus) -> None:
        """Protects clients on several workers: every member reads the whole table, whatever partitions it
        has."""
        samples, model = new_topic(bus, partitions=2), new_topic(bus, partitions=2, compacted=True)
        bus.write([Outgoing(model, b"a", b"1", 0), Outgoing(model, b"b", b"2", 1)])
        with (
            joined(bus, samples, tables=(model,)) as (first, group),
            joined(bus, samples, tables=(model,), group=group) as (second, _),
        ):
            assert sorted(values(first.poll(TURN, 1).tables)) == [b"1", b"2"]
            assert sorted(values(second.poll(TURN, 1).tables)) == [b"1", b"2"]

    def test_restore_gives_one_partition_to_its_end(self, bus: Bus) -> None:
        """Protects state: it is restored from its own partition, with tombstones and latest values, and
        restoring ends."""
        samples, state = new_topic(bus, partitions=2), new_topic(bus, partitions=2, compacted=True)
        bus.write([Outgoing(samples, None, b"x", 0)])
        with joined(bus, samples) as (session, _):
            records_of(session, 1)
            assert values(session.restore(state, 0)) == []
            mine = [
                Outgoing(state, b"a", b"1", 0),
                Outgoing(state, b"b", b"1", 0),
                Outgoing(state, b"a", None, 0),
            ]
            session.commit(Step({(samples, 0): 1}, [], [*mine, Outgoing(state, b"c", b"other", 1)]))
            eventually(
                lambda: {record.key: record.value for record in session.restore(state, 0)},
                {b"a": None, b"b": b"1"},
            )
