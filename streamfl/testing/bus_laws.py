"""What streamfl relies on in a bus. A connector is good if these pass on it.

Subclass :class:`BusLaws` in a test module and give it a fixture ``bus``::

    class TestMyBus(BusLaws):
        @pytest.fixture
        def bus(self): ...

Every law uses topics and groups of its own, so one cluster serves them all. A bus whose members are only taken for dead after a
while has to be configured so that this is less than ``PATIENCE`` seconds.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep

import pytest

from streamfl.role import ConfigurationError, Record, TopicSpec
from streamfl.runtime.bus import Bus, CommitRefused, Outgoing, Polled, Session, Step, Subscription

__all__ = ["BusLaws"]

PATIENCE = 90.0
TURN = 0.2
QUIET = 2.0


class BusLaws:
    """The laws, for the bus that the fixture ``bus`` gives."""

    def test_a_commit_is_seen_whole(self, bus: Bus) -> None:
        """Protects the one step: outputs, changelog and positions appear together, and in the order they were given."""
        samples, outputs, state = _topic(bus), _topic(bus), _topic(bus, compacted=True)
        bus.write([Outgoing(samples, b"k", b"one", 0), Outgoing(samples, b"k", b"two", 0)])
        with _member(bus, samples) as (session, group):
            assert _values(_records(session, 2)) == [b"one", b"two"]
            sent = [Outgoing(outputs, b"k", b"first", 0), Outgoing(outputs, b"k", b"second", 0)]
            session.commit(Step({(samples, 0): 2}, sent, [Outgoing(state, b"key", b"value", 0)]))
            _eventually(lambda: _values(bus.read(outputs)), [b"first", b"second"])
            _eventually(lambda: _values(session.restore(state, 0)), [b"value"])
            assert session.committed(samples, 0) == 2
        bus.write([Outgoing(samples, b"k", b"three", 0)])
        with _member(bus, samples, group=group) as (session, _):
            assert _values(_records(session, 1)) == [b"three"]

    def test_a_commit_that_fails_is_not_seen_at_all(self, bus: Bus) -> None:
        """Protects against half a step: a record for a topic that is not there takes the good ones with it."""
        samples, outputs, state = _topic(bus), _topic(bus), _topic(bus, compacted=True)
        bus.write([Outgoing(samples, None, b"one", 0)])
        with _member(bus, samples) as (session, _):
            _records(session, 1)
            good = Outgoing(outputs, None, b"good", 0)
            missing = Outgoing(_name("missing"), None, b"bad", 0)
            with pytest.raises(ConfigurationError):
                session.commit(Step({(samples, 0): 1}, [good, missing], [Outgoing(state, b"k", b"v", 0)]))
            assert _values(bus.read(outputs)) == []
            assert _values(bus.read(state)) == []
            assert session.committed(samples, 0) is None

    def test_what_was_not_committed_is_read_again(self, bus: Bus) -> None:
        """Protects against loss: a worker that dies between poll and commit leaves its records to the next."""
        samples = _topic(bus)
        bus.write([Outgoing(samples, None, value, 0) for value in (b"a", b"b", b"c")])
        with _member(bus, samples) as (session, group):
            _records(session, 3)
            session.commit(Step({(samples, 0): 1}))
        with _member(bus, samples, group=group) as (session, _):
            assert _values(_records(session, 2)) == [b"b", b"c"]

    def test_no_record_comes_before_its_partition_was_restored(self, bus: Bus) -> None:
        """Protects restored state: a poll that reports a partition brings none of its records yet."""
        samples = _topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, b"a", 0), Outgoing(samples, None, b"b", 1)])
        with _member(bus, samples) as (session, _):
            reported: set[int] = set()

            def all_came(polled: Polled) -> bool:
                return len(polled.records) == 2

            for polled in _polls(session, all_came):
                assert {record.partition for record in polled.records} <= reported
                reported |= set(polled.assigned)

    def test_records_keep_their_order_and_content(self, bus: Bus) -> None:
        """Protects the per-partition order, keys, headers and missing values that decoding relies on."""
        samples = _topic(bus, partitions=3)
        written = [
            Outgoing(
                samples, None if i % 4 == 1 else f"k{i}".encode(), None if i % 4 == 2 else f"v{i}".encode(), i % 3, (("h", b"1"),)
            )
            for i in range(60)
        ]
        bus.write(written)
        with _member(bus, samples) as (session, _):
            records = _records(session, 60, most=7)
        for partition in range(3):
            mine = [record for record in records if record.partition == partition]
            assert [record.offset for record in mine] == list(range(20))
            assert [(r.key, r.value, r.headers) for r in mine] == [
                (o.key, o.value, o.headers) for o in written if o.partition == partition
            ]

    def test_a_key_always_has_the_same_partition(self, bus: Bus) -> None:
        """Protects a client's state: its records must all reach the one task that remembers it."""
        samples = _topic(bus, partitions=4)
        bus.write([Outgoing(samples, f"client-{i % 10}".encode(), b"x") for i in range(40)])
        places: dict[bytes | None, set[int]] = {}
        for record in bus.read(samples):
            places.setdefault(record.key, set()).add(record.partition)
        assert len(places) == 10
        assert all(len(partitions) == 1 for partitions in places.values())

    def test_a_poll_is_bounded(self, bus: Bus) -> None:
        """Protects memory: a poll never brings more input records than it was asked for."""
        samples = _topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, b"x", i % 2) for i in range(30)])
        with _member(bus, samples) as (session, _):
            for polled in _polls(session, lambda seen: len(seen.records) == 30, most=4):
                assert len(polled.records) <= 4

    def test_tables_come_whole_with_the_first_poll(self, bus: Bus) -> None:
        """Protects the first prediction: the model as it was at the start is there before any sample is."""
        samples, model = _topic(bus), _topic(bus, partitions=2, compacted=True)
        bus.write([Outgoing(model, f"k{i}".encode(), b"old", i % 2) for i in range(40)])
        with _member(bus, samples, tables=(model,)) as (session, _):
            first = session.poll(TURN, 1)
            assert {record.key for record in first.tables} == {f"k{i}".encode() for i in range(40)}
            bus.write([Outgoing(model, b"k0", b"new", 0)])
            later = _until(session, lambda seen: bool(seen.tables))
            assert _values(later.tables) == [b"new"]

    def test_an_assignment_comes_with_the_tables_as_they_are(self, bus: Bus) -> None:
        """Protects a state that was made with newer records of a table than its next owner has read: it would go back in time."""
        samples, model = _topic(bus), _topic(bus, compacted=True)
        with _member(bus, samples, tables=(model,)) as (session, _):
            if session.poll(0.0, 1).assigned:
                # Nothing can come between joining and the assignment on this bus.
                return
            bus.write([Outgoing(model, f"k{number}".encode(), b"value", 0) for number in range(3_000)])
            seen = _until(session, lambda whole: bool(whole.assigned), most=1).tables
            assert len({record.key for record in seen}) == 3_000

    def test_every_member_reads_tables_whole(self, bus: Bus) -> None:
        """Protects clients on other workers: a table is not shared out, whatever partitions a member has."""
        samples, model = _topic(bus, partitions=2), _topic(bus, partitions=2, compacted=True)
        bus.write([Outgoing(model, b"a", b"1", 0), Outgoing(model, b"b", b"2", 1)])
        with (
            _member(bus, samples, tables=(model,)) as (first, group),
            _member(bus, samples, tables=(model,), group=group) as (second, _),
        ):
            assert sorted(_values(first.poll(TURN, 1).tables)) == [b"1", b"2"]
            assert sorted(_values(second.poll(TURN, 1).tables)) == [b"1", b"2"]

    def test_restore_gives_one_partition_to_its_end(self, bus: Bus) -> None:
        """Protects state: it is taken back from its own partition, tombstones and latest values included, and restoring ends."""
        samples, state = _topic(bus, partitions=2), _topic(bus, partitions=2, compacted=True)
        bus.write([Outgoing(samples, None, b"x", 0)])
        with _member(bus, samples) as (session, _):
            _records(session, 1)
            assert _values(session.restore(state, 0)) == []
            mine = [Outgoing(state, b"a", b"1", 0), Outgoing(state, b"b", b"1", 0), Outgoing(state, b"a", None, 0)]
            session.commit(Step({(samples, 0): 1}, [], [*mine, Outgoing(state, b"c", b"other", 1)]))
            _eventually(
                lambda: {record.key: record.value for record in session.restore(state, 0)},
                {b"a": None, b"b": b"1"},
            )

    def test_seek_moves_the_position(self, bus: Bus) -> None:
        """Protects the changelog's positions: where the state left off is where reading goes on, forwards or back."""
        samples = _topic(bus)
        bus.write([Outgoing(samples, None, f"{i}".encode(), 0) for i in range(6)])
        with _member(bus, samples) as (session, _):
            _until(session, lambda seen: seen.assigned == [0])
            assert _values(_from(session, samples, 4, 2)) == [b"4", b"5"]
            assert _values(_from(session, samples, 1, 5)) == [b"1", b"2", b"3", b"4", b"5"]

    def test_paused_partitions_bring_nothing(self, bus: Bus) -> None:
        """Protects a role whose waiting room is full, and the other partitions, which go on; nothing is lost by it."""
        samples = _topic(bus, partitions=2)
        with _member(bus, samples) as (session, _):
            _until(session, lambda seen: sorted(seen.assigned) == [0, 1])
            session.pause([(samples, 0)])
            bus.write([Outgoing(samples, None, b"left", 0), Outgoing(samples, None, b"right", 1)])
            assert _values(_records(session, 1)) == [b"right"]
            assert session.poll(QUIET, 100).records == []
            session.pause([])
            assert _values(_records(session, 1)) == [b"left"]

    def test_a_paused_input_leaves_others_of_its_partition_alone(self, bus: Bus) -> None:
        """Protects a role that waits for one of its inputs to make room for another: what is paused is a place, not a number."""
        samples, answers = _topic(bus), _topic(bus)
        with _member(bus, samples, answers) as (session, _):
            _until(session, lambda seen: seen.assigned == [0])
            session.pause([(samples, 0)])
            bus.write([Outgoing(samples, None, b"sample", 0), Outgoing(answers, None, b"answer", 0)])
            assert _values(_records(session, 1)) == [b"answer"]
            assert session.poll(QUIET, 100).records == []
            session.pause([(answers, 0)])
            assert _values(_records(session, 1)) == [b"sample"]

    def test_lag_counts_what_is_not_taken(self, bus: Bus) -> None:
        """Protects the operator's main alarm: lag grows with what waits and falls when it is taken."""
        samples = _topic(bus)
        with _member(bus, samples) as (session, _):
            _until(session, lambda seen: seen.assigned == [0])
            session.pause([(samples, 0)])
            bus.write([Outgoing(samples, None, b"x", 0) for _ in range(10)])
            _wait(session, lambda: session.lag().get((samples, 0)) == 10)
            session.pause([])
            _records(session, 10)
            _wait(session, lambda: session.lag().get((samples, 0)) == 0)

    def test_lag_ends_at_nothing_after_a_commit(self, bus: Bus) -> None:
        """Protects ticks: a worker that waits for the end of a topic written by commits sees that it is there."""
        samples, outputs = _topic(bus), _topic(bus)
        bus.write([Outgoing(samples, None, b"x", 0)])
        with _member(bus, samples) as (session, _):
            _records(session, 1)
            session.commit(Step({(samples, 0): 1}, [Outgoing(outputs, None, b"y", 0)]))
        with _member(bus, outputs) as (session, _):
            _records(session, 1)
            _wait(session, lambda: session.lag().get((outputs, 0)) == 0)

    def test_members_share_the_partitions(self, bus: Bus) -> None:
        """Protects scale-out: a second member takes over a part, no partition has two owners, and a leaver's come back."""
        samples = _topic(bus, partitions=4)
        with _member(bus, samples) as (first, group):
            own = _Owned(first)
            _together([own], lambda: own.partitions == {0, 1, 2, 3})
            with _member(bus, samples, group=group) as (second, _):
                other = _Owned(second)
                _together([own, other], lambda: len(own.partitions) == len(other.partitions) == 2)
                assert own.partitions | other.partitions == {0, 1, 2, 3}
                bus.write([Outgoing(samples, None, f"{p}".encode(), p) for p in range(4)])
                _together([own, other], lambda: len(own.records) + len(other.records) == 4)
                assert {record.partition for record in own.records} == own.partitions
                assert {record.partition for record in other.records} == other.partitions
            _together([own], lambda: own.partitions == {0, 1, 2, 3})

    def test_members_are_counted(self, bus: Bus) -> None:
        """Protects standbys: a worker without partitions is told by the group's members from one that was given nothing."""
        samples, group = _topic(bus), _name("group")
        with _member(bus, samples, group=group) as (first, _):
            with _member(bus, samples, group=group) as (second, _):
                _together([_Owned(first), _Owned(second)], lambda: bus.members(group) == 2)
            _together([_Owned(first)], lambda: bus.members(group) == 1)
        _eventually(lambda: bus.members(group), 0)

    def test_inputs_are_shared_out_together(self, bus: Bus) -> None:
        """Protects a role with two inputs: partition p of both is with the same member."""
        samples, labels = _topic(bus, partitions=4), _topic(bus, partitions=4)
        with (
            _member(bus, samples, labels) as (first, group),
            _member(bus, samples, labels, group=group) as (second, _),
        ):
            members = [_Owned(first), _Owned(second)]
            _together(members, lambda: all(len(member.partitions) == 2 for member in members))
            bus.write([Outgoing(topic, None, b"x", p) for topic in (samples, labels) for p in range(4)])
            _together(members, lambda: sum(len(member.records) for member in members) == 8)
            for member in members:
                places = {(record.topic, record.partition) for record in member.records}
                assert places == {(topic, p) for topic in (samples, labels) for p in member.partitions}

    def test_a_moved_partition_goes_on_where_it_was_committed(self, bus: Bus) -> None:
        """Protects exactly-once at a rebalance: the new owner begins after the last committed record of the old one."""
        samples = _topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, f"{i}".encode(), i % 2) for i in range(8)])
        with _member(bus, samples) as (first, group):
            own = _Owned(first)
            _together([own], lambda: len(own.records) == 8)
            first.commit(Step({(samples, 0): 3, (samples, 1): 3}))
            with _member(bus, samples, group=group) as (second, _):
                other = _Owned(second)
                _together([own, other], lambda: len(other.records) == 1)
                assert [record.offset for record in other.records] == [3]

    def test_who_fell_silent_cannot_commit(self, bus: Bus) -> None:
        """Protects against two owners: a stalled worker's step on partitions that moved is refused whole, and it begins again."""
        samples, outputs, state = _topic(bus, partitions=2), _topic(bus), _topic(bus, partitions=2, compacted=True)
        bus.write([Outgoing(samples, None, b"x", partition) for partition in range(2)])
        with _member(bus, samples) as (silent, group):
            owned = _Owned(silent)
            _together([owned], lambda: len(owned.records) == 2)
            with _member(bus, samples, group=group) as (second, _):
                other = _Owned(second)
                _together([other], lambda: bool(other.records))
                taken = other.records[0].partition
                step = Step({(samples, taken): 1}, [Outgoing(outputs, None, b"late", 0)], [Outgoing(state, b"k", b"late", taken)])
                with pytest.raises(CommitRefused):
                    silent.commit(step)
                assert _values(bus.read(outputs)) == []
                assert _values(bus.read(state)) == []
                second.commit(Step({(samples, taken): 1}, [Outgoing(outputs, None, b"in time", 0)]))
                _eventually(lambda: _values(bus.read(outputs)), [b"in time"])

                again = _until(silent, lambda seen: bool(seen.revoked), others=[other])
                assert set(again.revoked) == {0, 1}
            left = _records(silent, 1)
            assert [record.partition for record in left] == [1 - taken]
            silent.commit(Step({(samples, 1 - taken): 1}, [Outgoing(outputs, None, b"again", 0)]))
            _eventually(lambda: _values(bus.read(outputs)), [b"in time", b"again"])

    def test_a_group_begins_where_it_is_told(self, bus: Bus) -> None:
        """Protects against silent loss and silent repetition: earliest, latest and a refusal to guess are three things."""
        samples = _topic(bus)
        bus.write([Outgoing(samples, None, b"old", 0)])
        with _session(bus, Subscription(_name("group"), (samples,), auto_offset_reset="latest")) as session:
            _until(session, lambda seen: seen.assigned == [0])
            # Where 'latest' is gets decided by the poll that begins the partition.
            session.poll(QUIET, 10)
            bus.write([Outgoing(samples, None, b"new", 0)])
            assert _values(_records(session, 1)) == [b"new"]
        undecided = Subscription(_name("group"), (samples,), auto_offset_reset="error")
        with _session(bus, undecided) as session, pytest.raises(ConfigurationError, match="auto_offset_reset"):
            _records(session, 1)

    def test_a_missing_topic_is_a_configuration_error(self, bus: Bus) -> None:
        """Protects the operator: a wrong topic name is said at once, not waited for."""
        missing = _name("missing")
        with pytest.raises(ConfigurationError, match=missing), _session(bus, Subscription(_name("group"), (missing,))) as session:
            session.poll(TURN, 1)
        with pytest.raises(ConfigurationError, match=missing):
            bus.write([Outgoing(missing, None, b"x")])

    def test_a_key_has_the_partition_that_the_bus_says(self, bus: Bus) -> None:
        """Protects checks of where a record lies: they ask the bus what its own writers would have chosen."""
        topic = _name("keys")
        bus.create([TopicSpec(topic, 3, compacted=False)])
        keys = [f"customer-{number}".encode() for number in range(20)]
        bus.write([Outgoing(topic, key, b"") for key in keys])
        found = {record.key: record.partition for record in bus.read(topic)}
        assert found == {key: bus.partition_of(key, 3) for key in keys}
        assert len(set(found.values())) == 3

    def test_topics_are_described_as_created(self, bus: Bus) -> None:
        """Protects the preflight: partitions and cleanup are reported as they are, and creating again changes nothing."""
        spec = TopicSpec(_name("topic"), 3, compacted=True)
        missing = _name("missing")
        bus.create([spec])
        bus.write([Outgoing(spec.name, b"k", b"v", 2)])
        bus.create([TopicSpec(spec.name, 1, compacted=False)])
        found = bus.describe([spec.name, missing])
        assert list(found) == [spec.name]
        assert (found[spec.name].partitions, found[spec.name].compacted, found[spec.name].error) == (3, True, None)
        assert found[spec.name].identity
        assert bus.describe([spec.name])[spec.name].identity == found[spec.name].identity
        assert _values(bus.read(spec.name)) == [b"v"]

    def test_a_look_takes_the_first_and_the_last(self, bus: Bus) -> None:
        """Protects the preflight: it sees what is written today, of every partition it asks for, however much lies before it."""
        samples = _topic(bus, partitions=3)
        bus.write([Outgoing(samples, None, b"%d" % number, 1) for number in range(300)])
        bus.write([Outgoing(samples, None, b"%d" % number, 2) for number in range(3)])
        assert [(record.partition, record.value) for record in bus.peek(samples, [0, 1], 2)] == [
            (1, b"0"),
            (1, b"1"),
            (1, b"298"),
            (1, b"299"),
        ]
        assert _values(bus.peek(samples, [2], 2)) == [b"0", b"1", b"2"]

    def test_reading_is_limited(self, bus: Bus) -> None:
        """Protects the preflight's look at a few records of a topic of millions."""
        samples = _topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, b"x", i % 2) for i in range(10)])
        assert len(list(bus.read(samples))) == 10
        assert len(list(bus.read(samples, limit=3))) == 3
        assert list(bus.read(samples, limit=0)) == []

    def test_one_place_can_be_looked_at(self, bus: Bus) -> None:
        """Protects whoever looks at one place: what lies before it, or in another partition, does not come."""
        samples = _topic(bus, partitions=2)
        bus.write([Outgoing(samples, None, b"%d" % number, number % 2) for number in range(10)])
        assert _values(bus.read_from(samples, 1, 3)) == [b"7", b"9"]
        assert list(bus.read_from(samples, 0, 5)) == []


class _Owned:
    """A member that polls, and what it has been told and given."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.partitions: set[int] = set()
        self.records: list[Record] = []

    def poll(self) -> None:
        polled = self.session.poll(TURN, 100)
        self.partitions = (self.partitions - set(polled.revoked)) | set(polled.assigned)
        self.records += polled.records


def _name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def _topic(bus: Bus, partitions: int = 1, compacted: bool = False) -> str:
    name = _name("topic")
    bus.create([TopicSpec(name, partitions, compacted)])
    return name


@contextmanager
def _session(bus: Bus, subscription: Subscription) -> Iterator[Session]:
    session = bus.session(subscription)
    try:
        yield session
    finally:
        session.close()


@contextmanager
def _member(bus: Bus, *inputs: str, tables: tuple[str, ...] = (), group: str | None = None) -> Iterator[tuple[Session, str]]:
    group = group or _name("group")
    with _session(bus, Subscription(group, inputs, tables)) as session:
        yield session, group


def _values(records: Iterator[Record] | Sequence[Record]) -> list[bytes]:
    return [record.value or b"" for record in records]


def _polls(session: Session, enough: Callable[[Polled], bool], most: int = 100, others: Sequence[_Owned] = ()) -> Iterator[Polled]:
    """Poll after poll until ``enough`` of all of them together has come."""
    whole = Polled()
    deadline = monotonic() + PATIENCE
    while not enough(whole):
        assert monotonic() < deadline, f"polling for {PATIENCE:g} s brought only {whole}"
        polled = session.poll(TURN, most)
        for other in others:
            other.poll()
        yield polled
        whole.revoked += polled.revoked
        whole.assigned += polled.assigned
        whole.tables += polled.tables
        whole.records += polled.records


def _until(session: Session, enough: Callable[[Polled], bool], most: int = 100, others: Sequence[_Owned] = ()) -> Polled:
    whole = Polled()
    for polled in _polls(session, enough, most, others):
        whole.revoked += polled.revoked
        whole.assigned += polled.assigned
        whole.tables += polled.tables
        whole.records += polled.records
    return whole


def _records(session: Session, count: int, most: int = 100) -> list[Record]:
    return _until(session, lambda seen: len(seen.records) >= count, most).records


def _from(session: Session, topic: str, offset: int, count: int) -> list[Record]:
    """What comes after a seek. A group may share its partitions out again at any time: who gets one again seeks again."""
    while True:
        session.seek(topic, 0, offset)
        seen = _until(session, lambda seen: len(seen.records) >= count or bool(seen.revoked))
        if not seen.revoked:
            return seen.records


def _together(members: Sequence[_Owned], enough: Callable[[], bool]) -> None:
    """Let members take turns until ``enough``."""
    deadline = monotonic() + PATIENCE
    while True:
        for member in members:
            member.poll()
        if enough():
            return
        assert monotonic() < deadline, f"after {PATIENCE:g} s: {[(m.partitions, m.records) for m in members]}"


def _eventually(look: Callable[[], object], expected: object) -> None:
    """A commit is decided before every partition has heard of it, so what was committed may take a moment to be seen."""
    deadline = monotonic() + PATIENCE
    while (found := look()) != expected:
        assert monotonic() < deadline, f"after {PATIENCE:g} s: {found!r}, expected {expected!r}"
        sleep(0.02)


def _wait(session: Session, enough: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE
    while not enough():
        assert monotonic() < deadline, f"after {PATIENCE:g} s: lag is {dict(session.lag())}"
        session.poll(TURN, 100)
