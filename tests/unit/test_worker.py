"""The worker loop, on the memory bus with a role that counts: whatever happens, every number is added exactly
once."""

from __future__ import annotations

import math
import resource
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from counting import CHANNELS, CountingRole, bus_of, counting_worker, decode_number, drain, number

from streamfl.contract.channels import Channels, Input, TopicSpec
from streamfl.contract.role import ConfigurationError, IgnoredRecord, Record, StateChange
from streamfl.encoding.wire import encoded_size, record_size
from streamfl.runtime import role_figures
from streamfl.runtime.bus import (
    BusUnavailable,
    CommitRefused,
    Guarantee,
    Moved,
    Outgoing,
    Polled,
    Step,
    Subscription,
)
from streamfl.runtime.memory_bus import MemoryBus, MemorySession
from streamfl.runtime.pending_step import LARGEST_LETTER
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.runtime.worker import Worker


@pytest.fixture(name="bus")
def _bus() -> MemoryBus:
    return bus_of()


def worker(
    bus: MemoryBus,
    role: CountingRole,
    guarantee: Guarantee = "exactly_once",
    max_records: int = 4000,
    channels: Channels = CHANNELS,
    clock: Callable[[], float] = lambda: 100.0,
) -> Worker:
    subscription = Subscription(
        "counters", tuple(source.topic for source in channels.inputs.values()), ("factor",), guarantee
    )
    return Worker(
        role,
        channels,
        bus,
        subscription,
        "dead-letters",
        clock=clock,
        max_records=max_records,
        restore_seconds=0.0,
    )


def send(bus: MemoryBus, *values: bytes, partition: int = 0, key: bytes = b"pump") -> None:
    bus.write([Outgoing("numbers", key, value, partition) for value in values])


def trouble(counting: Worker) -> str:
    return counting.health.trouble or ""


def totals(bus: MemoryBus) -> list[bytes | None]:
    return [record.value for record in bus.read("totals")]


def test_a_step_commits_outputs_state_and_position(bus: MemoryBus) -> None:
    """Protects the atomic step: input positions, outputs and state are all there afterwards."""
    send(bus, number(1, 5), number(2, 7))
    counting = worker(bus, CountingRole())
    drain(counting)
    assert totals(bus) == [number(1, 5), number(2, 12)]
    state = {record.key: record.value for record in bus.read("state")}
    topic = state.pop(POSITION_KEY + b"\0topic/numbers")
    assert topic is not None
    assert len(topic) == 8
    assert state == {b"pump": number(2, 12), POSITION_KEY + b"numbers": struct.pack("<q", 2)}
    session = bus.session(Subscription("counters", ("numbers",)))
    assert session.committed("numbers", 0) == 2


def test_an_undecodable_record_is_a_dead_letter(bus: MemoryBus) -> None:
    """Protects the stream from bad records: the record is dead-lettered unchanged, with its cause, and its
    batch goes on."""
    bus.write(
        [
            Outgoing("numbers", b"pump", number(1, 5), 0),
            Outgoing("numbers", b"pump", b"five", 0, (("trace", b"t1"),)),
            Outgoing("numbers", b"pump", number(2, 7), 0),
        ]
    )
    counting = worker(bus, CountingRole())
    drain(counting)
    assert totals(bus) == [number(1, 5), number(2, 12)]
    [letter] = bus.read("dead-letters")
    assert (letter.key, letter.value) == (b"pump", b"five")
    assert letter.headers == (
        ("trace", b"t1"),
        ("__connect.errors.topic", b"numbers"),
        ("__connect.errors.partition", b"0"),
        ("__connect.errors.offset", b"1"),
        ("__connect.errors.exception.class.name", b"streamfl.contract.role.BadRecord"),
        ("__connect.errors.exception.message", b"malformed: not two whole numbers: b'five'"),
        ("__streams.errors.topic", b"numbers"),
        ("__streams.errors.partition", b"0"),
        ("__streams.errors.offset", b"1"),
        ("__streams.errors.exception", b"streamfl.contract.role.BadRecord"),
        ("__streams.errors.message", b"malformed: not two whole numbers: b'five'"),
        ("topic", b"numbers"),
        ("partition", b"0"),
        ("offset", b"1"),
        ("error", b"malformed"),
        ("text", b"not two whole numbers: b'five'"),
    )
    assert 'streamfl_dead_letters_total{reason="malformed"} 1.0' in counting.metrics.render().decode()


def test_what_is_no_message_is_counted_and_passed_over(bus: MemoryBus) -> None:
    """Protects the dead letters of a change log's topic: a deletion is not an error, and its batch goes
    on."""

    def decode(record: Record) -> object:
        if record.value == b"deleted":
            raise IgnoredRecord("deletion")
        return decode_number(record)

    send(bus, number(1, 5), b"deleted", number(2, 7))
    inputs = {name: replace(source, decode=decode) for name, source in CHANNELS.inputs.items()}
    counting = worker(bus, CountingRole(), channels=replace(CHANNELS, inputs=inputs))
    figures = counting.metrics.render().decode()
    assert 'streamfl_records_passed_over_total{reason="deletion"} 0.0' in figures
    drain(counting)
    assert totals(bus) == [number(1, 5), number(2, 12)]
    assert not list(bus.read("dead-letters"))
    assert 'streamfl_records_passed_over_total{reason="deletion"} 1.0' in counting.metrics.render().decode()
    state = {record.key: record.value for record in bus.read("state")}
    assert state[POSITION_KEY + b"numbers"] == struct.pack("<q", 3)


def test_an_empty_record_is_a_dead_letter_too(bus: MemoryBus) -> None:
    """Protects the stream from a record with neither key nor value, which Kafka's client would refuse to
    write unchanged."""
    bus.write([Outgoing("numbers", None, None, 0)])
    drain(worker(bus, CountingRole()))
    [letter] = bus.read("dead-letters")
    assert (letter.key, letter.value) == (None, b"")
    assert dict(letter.headers)["error"] == b"malformed"


def test_a_record_that_the_role_refuses_is_a_dead_letter(bus: MemoryBus) -> None:
    """Protects against mistakes that only the role can see: they are dead-lettered too, and not read again
    after a restart."""
    send(bus, number(1, 5), number(2, -7), number(3, 1))
    first = worker(bus, CountingRole())
    drain(first)
    first.close()
    second = worker(bus, CountingRole())
    drain(second)
    assert totals(bus) == [number(1, 5), number(3, 6)]
    assert [dict(letter.headers)["error"] for letter in bus.read("dead-letters")] == [b"negative"]


def test_nothing_is_cut_to_say_the_cause_under_other_names(bus: MemoryBus) -> None:
    """Protects a replay: a record that fits with streamfl's headers must not be cut to make room for other
    systems' headers."""
    value = b"x" * (LARGEST_LETTER - 2_000)
    bus.write([Outgoing("numbers", b"pump", value, 0)])
    drain(worker(bus, CountingRole()))
    [letter] = bus.read("dead-letters")
    assert letter.value == value
    assert [name for name, _ in letter.headers] == ["topic", "partition", "offset", "error", "text"]


@pytest.mark.parametrize("where", ["value", "key", "headers"])
def test_a_letter_too_large_is_cut_short(bus: MemoryBus, where: str) -> None:
    """Protects the stream from a record that leaves no room for its cause: a refused write would stop it for
    ever."""
    large = b"x" * (LARGEST_LETTER - 20)
    key, value = large if where == "key" else b"pump", large if where == "value" else b"five"
    sent = Outgoing("numbers", key, value, 0, (("trace", large if where == "headers" else b"t1"),))
    bus.write([sent])
    drain(worker(bus, CountingRole()))
    [letter] = bus.read("dead-letters")
    assert record_size(letter) <= LARGEST_LETTER
    headers = dict(letter.headers)
    assert headers["error"] == b"malformed"
    assert int(headers["truncated_from"]) == encoded_size(sent.key, sent.value, sent.headers)
    if where == "value":
        assert letter.key == b"pump"
        assert headers["trace"] == b"t1"
        assert record_size(letter) == LARGEST_LETTER
    else:
        assert letter.value == b"five"


def test_a_bad_table_record_is_counted_only(bus: MemoryBus) -> None:
    """Protects the dead letters from one copy for each worker: every worker reads the whole table."""
    bus.write(
        [
            Outgoing("factor", b"f", b"nonsense"),
            Outgoing("factor", b"f", number(1, -1)),
            Outgoing("factor", b"f", number(1, 3)),
        ]
    )
    send(bus, number(1, 5))
    counting = worker(bus, CountingRole())
    drain(counting)
    assert totals(bus) == [number(1, 15)]
    assert list(bus.read("dead-letters")) == []
    text = counting.metrics.render().decode()
    assert 'streamfl_table_rejections_total{reason="malformed"} 1.0' in text
    assert 'streamfl_table_rejections_total{reason="negative"} 1.0' in text


def test_a_restart_goes_on(bus: MemoryBus) -> None:
    """Protects what was learnt: another process restores the state and reads on from there. Forgotten keys
    stay forgotten."""
    send(bus, number(1, 5))
    send(bus, number(1, 9), number(2, 0), key=b"valve")
    first = worker(bus, CountingRole())
    drain(first)
    first.close()
    send(bus, number(2, 7))
    role = CountingRole()
    drain(worker(bus, role))
    assert role.totals == {0: {b"pump": (2, 12)}, 1: {}}
    assert totals(bus) == [number(1, 5), number(1, 9), number(2, 12)]


def test_a_refused_commit_is_done_again(bus: MemoryBus, caplog: pytest.LogCaptureFixture) -> None:
    """Protects exactly-once: a step that came too late leaves no trace, in the topics, the role, the log or
    the figures, and is repeated. Table records are read once, so theirs count at once."""
    role = CountingRole()
    counting = worker(bus, role)
    drain(counting)

    def lose_the_group() -> None:
        role.before_reply = lambda: None
        bus.session(Subscription("counters", ("numbers",))).close()

    bus.write([Outgoing("factor", b"f", b"nonsense")])
    send(bus, number(1, 5), b"five", number(2, 7))
    role.before_reply = lose_the_group
    assert counting.step(0)
    assert totals(bus) == []
    assert role.totals == {}
    text = counting.metrics.render().decode()
    assert 'streamfl_dead_letters_total{reason="malformed"} 0.0' in text
    assert "streamfl_records_total 0.0" in text
    assert "numbers-0-" not in caplog.text
    drain(counting)
    assert totals(bus) == [number(1, 5), number(2, 12)]
    assert role.totals[0] == {b"pump": (2, 12)}
    text = counting.metrics.render().decode()
    for figure in (
        "commits_refused_total 1.0",
        'dead_letters_total{reason="malformed"} 1.0',
        "records_total 3.0",
        'table_rejections_total{reason="malformed"} 1.0',
    ):
        assert f"streamfl_{figure}" in text
    assert caplog.text.count("numbers-0-1") == 1


class MovingSession(MemorySession):
    """A session whose partitions move away while the first is being restored."""

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        if "moved" not in vars(self._bus):
            vars(self._bus)["moved"] = True
            raise CommitRefused("partitions moved")
        return super().restore(topic, partition)


def test_table_records_survive_a_refusal_before_the_role_heard_them() -> None:
    """Protects the model: table records of a poll must not be lost because partitions moved before they were
    processed."""
    bus = bus_of(MovingSession)
    bus.write([Outgoing("factor", b"f", number(1, 3))])
    send(bus, number(1, 5))
    role = CountingRole()
    counting = worker(bus, role)
    assert counting.step(0)
    assert role.totals == {}
    drain(counting)
    assert totals(bus) == [number(1, 15)]


def test_a_worker_takes_part_in_its_group_while_it_takes_state_back(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a worker with much to take back: a group drops a member that is silent for long, and the
    worker would restore the same again for ever."""
    for sequence in range(1, 6):
        send(bus, number(sequence, 1), key=b"p%d" % sequence)
    before = worker(bus, CountingRole())
    drain(before)
    before.close()
    signs, began = 0, []

    def attend(_session: MemorySession) -> None:
        nonlocal signs
        signs += 1

    class Slow(CountingRole):
        def restore(self, change: StateChange) -> None:
            began.append(signs)
            super().restore(change)

    monkeypatch.setattr(MemorySession, "attend", attend)
    drain(worker(bus, Slow()))
    assert len(began) > 1
    assert sorted(set(began)) == began, "a sign before each value"


def test_a_full_partition_waits(bus: MemoryBus) -> None:
    """Protects a role's memory: a full partition is not read, the other goes on, and nothing is lost
    afterwards."""
    role = CountingRole()
    counting = worker(bus, role)
    drain(counting)
    role.full = [0]
    send(bus, number(1, 5), partition=0)
    send(bus, number(1, 9), partition=1, key=b"valve")
    drain(counting)
    assert totals(bus) == [number(1, 9)]
    role.full = []
    drain(counting)
    assert totals(bus) == [number(1, 9), number(1, 5)]


def test_what_makes_room_is_read_while_a_partition_is_full(bus: MemoryBus) -> None:
    """Protects a role that waits for one of its inputs: if that were paused too, the partition would stay
    full for ever."""
    bus.create([TopicSpec("answers", 2, compacted=False)])
    role = CountingRole()
    inputs = {**CHANNELS.inputs, "answers": Input("answers", decode_number, makes_room=True)}
    counting = worker(bus, role, channels=replace(CHANNELS, inputs=inputs))
    drain(counting)
    role.full = [0]
    send(bus, number(1, 5), partition=0)
    bus.write([Outgoing("answers", b"valve", number(1, 9), 0)])
    drain(counting)
    assert totals(bus) == [number(1, 9)]
    role.full = []
    drain(counting)
    assert totals(bus) == [number(1, 9), number(1, 5)]


def test_a_tick_comes_when_the_role_wants_it(bus: MemoryBus) -> None:
    """Protects timeouts: without any record, a role gets an empty batch when its time has come, and not
    before."""
    role = CountingRole()
    counting = worker(bus, role)
    drain(counting)
    # Perhaps no further message comes to trigger what waits in restored state.
    assert role.batches == [0]
    role.batches.clear()
    role.wake_at = 100.5
    assert not counting.step(0)
    role.wake_at = 100.0
    assert counting.step(0)
    assert role.batches == [0]
    assert totals(bus) == [b"tick"]
    # A tick is a batch of its own, after the step's messages.
    role.wake_at = 100.0
    send(bus, number(1, 5))
    assert counting.step(0)
    assert role.batches == [0, 1, 0]
    assert totals(bus)[1:] == [number(1, 5), b"tick"]


def test_a_clock_that_is_set_back_brings_a_tick(bus: MemoryBus) -> None:
    """Protects everything noted by a clock that was ahead: otherwise the role would wait until that time
    comes again."""
    role, now = CountingRole(), [100.0]
    counting = worker(bus, role, clock=lambda: now[0])
    drain(counting)
    role.batches.clear()
    role.wake_at = 110.0
    now[0] = 40.0
    assert counting.step(0)
    assert role.batches == [0]
    assert not counting.step(0)
    now[0] = 39.0
    send(bus, number(1, 5))
    assert counting.step(0)
    assert role.batches == [0, 1, 0]


def away(bus: MemoryBus) -> None:
    """A worker has read one record and is gone; three more came meanwhile."""
    send(bus, number(1, 5))
    first = worker(bus, CountingRole())
    drain(first)
    first.close()
    send(bus, number(2, 1), number(3, 1), number(4, 1))


def returned(bus: MemoryBus) -> tuple[CountingRole, Worker]:
    """Its successor, which reads one record a step and whose tick is long overdue."""
    role = CountingRole()
    role.wake_at = 50.0
    return role, worker(bus, role, max_records=1)


def test_who_was_away_hears_first_and_ticks_after(bus: MemoryBus) -> None:
    """Protects peers of a worker that was away: their timely messages are read before time passes for the
    role."""
    away(bus)
    role, counting = returned(bus)
    drain(counting)
    assert role.batches == [1, 1, 1, 0]
    assert totals(bus)[-1] == b"tick"


def test_records_that_came_after_the_opening_hold_no_tick_back(bus: MemoryBus) -> None:
    """Protects timeouts on a busy topic, which always has unread records: only those present at the start are
    waited for."""
    away(bus)
    role, counting = returned(bus)
    for sequence in range(5, 15):
        counting.step(0)
        send(bus, number(sequence, 1))
    assert role.batches[:4] == [1, 1, 1, 0]


def test_a_full_partition_holds_no_tick_back(bus: MemoryBus) -> None:
    """Protects against a deadlock: a full role gets no records, so only a tick can make room."""
    away(bus)
    role, counting = returned(bus)
    role.full = [0]
    drain(counting)
    assert role.batches == [0]
    role.full = []
    drain(counting)
    assert role.batches == [0, 1, 1, 1]


def test_a_partition_that_is_gone_holds_no_tick_back(bus: MemoryBus) -> None:
    """Protects timeouts of a worker that lost partitions before it had read to their end at the time of
    opening."""
    role = CountingRole()
    first = worker(bus, role)
    drain(first)
    # As if nothing had been read from a partition whose end could not be determined.
    first._ticks.opened({("numbers", partition): math.inf for partition in first._tasks})
    moved = len(first._tasks)
    second = worker(bus, CountingRole())
    drain(first, second)
    drain(first, second)
    assert 0 < len(first._tasks) < moved
    role.wake_at = 50.0
    role.batches.clear()
    drain(first, second)
    assert role.batches == [0]


def test_a_role_that_is_not_prompt_gathers(bus: MemoryBus) -> None:
    """Protects throughput: records of several polls form one batch up to the limit on records, and never
    more."""
    role = CountingRole()
    role.prompt = False
    counting = worker(bus, role, max_records=3)
    counting.step(0)
    role.batches.clear()
    send(bus, *(number(n, 1) for n in range(1, 5)))
    send(bus, *(number(n, 1) for n in range(1, 3)), partition=1)
    assert counting.step(0)
    assert counting.step(0)
    assert role.batches == [3, 3]


class SharingSession(MemorySession):
    """A session that has to give up a partition after it first returned records."""

    def poll(self, timeout: float, max_records: int) -> Polled:
        polled = super().poll(timeout, max_records)
        if polled.records and len(self._group.members) == 1:
            self._bus.session(Subscription("counters", ("numbers",)))
        return polled


def test_what_was_gathered_of_a_partition_that_went_is_left_to_its_new_owner() -> None:
    """Protects both workers: the old owner has no state for these records any more, and its whole step would
    be refused."""
    bus = bus_of(SharingSession)
    role = CountingRole()
    counting = worker(bus, role)
    drain(counting)
    send(bus, number(1, 5))
    send(bus, number(1, 9), partition=1, key=b"valve")
    assert counting.step(0)
    assert role.totals == {0: {b"pump": (1, 5)}}
    assert totals(bus) == [number(1, 5)]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_the_position_beside_the_state_counts(bus: MemoryBus, guarantee: Guarantee) -> None:
    """Protects against doubling after a crash between changelog and offsets: records in the state are not
    read again."""
    send(bus, number(1, 5), number(2, 7), number(3, 1))
    bus.write(
        [
            Outgoing("state", b"pump", number(2, 12), 0),
            Outgoing("state", POSITION_KEY + b"numbers", struct.pack("<q", 2), 0),
        ]
    )
    drain(worker(bus, CountingRole(), guarantee))
    assert totals(bus) == [number(3, 13)]


class DeafSession(MemorySession):
    """A session that ignores seeks."""

    def seek(self, topic: str, partition: int, offset: int, epoch: int = -1) -> None:
        pass


def test_records_below_the_position_are_skipped() -> None:
    """Protects law 5 for any input: a repeated record whose effect is in the state does not reach the
    role."""
    bus = bus_of(DeafSession)
    # The role would count this one: the sequence is new, only the offset is old.
    send(bus, number(9, 5), number(10, 7))
    bus.write([Outgoing("state", POSITION_KEY + b"numbers", struct.pack("<q", 1), 0)])
    counting = worker(bus, CountingRole())
    drain(counting)
    assert totals(bus) == [number(10, 7)]
    assert "streamfl_repeated_records_total 1.0" in counting.metrics.render().decode()


@pytest.mark.parametrize("records", [2, 5])
@pytest.mark.parametrize("again", ["before the worker starts", "while it runs"])
def test_a_topic_that_was_made_again_is_told_of(bus: MemoryBus, again: str, records: int) -> None:
    """Protects against silent loss: the records of a topic that was deleted and created again are below the
    stored position."""
    send(bus, number(1, 5), number(2, 7), number(3, 1))
    counting = worker(bus, CountingRole())
    drain(counting)
    del bus._topics["numbers"]
    bus.create([TopicSpec("numbers", 2, compacted=False)])
    send(bus, *[number(4 + one, 1) for one in range(records)])
    if again == "while it runs":
        assert counting._session is not None
        counting._session.seek("numbers", 0, 0)
    else:
        counting.close()
        counting = worker(bus, CountingRole())
    with pytest.raises(
        ConfigurationError,
        match="'numbers' was deleted and created again since its partition 0 was last read",
    ):
        drain(counting)
    assert totals(bus) == [number(1, 5), number(2, 12), number(3, 13)]


class TruncatedSession(MemorySession):
    """A session whose cluster has truncated a log below what was read."""

    cut: Moved | None = None

    def poll(self, timeout: float, max_records: int) -> Polled:
        cut, self.cut = self.cut, None
        if cut is None:
            return super().poll(timeout, max_records)
        self._positions[cut.topic, cut.partition] = cut.following
        return Polled(moved=[cut])


def test_what_the_cluster_has_lost_is_counted_and_read_anew() -> None:
    """Protects records written in place of those that a cluster lost: they used to count as already read."""
    bus = bus_of(TruncatedSession)
    send(bus, number(1, 5), number(2, 7), number(3, 1))
    counting = worker(bus, CountingRole())
    drain(counting)
    log = bus._topics["numbers"].partitions[0]
    del log._records[1:]
    log.end = 1
    send(bus, number(4, 1), number(5, 1), number(6, 1))
    assert isinstance(counting._session, TruncatedSession)
    counting._session.cut = Moved("numbers", 0, 3, 1)
    drain(counting)
    assert totals(bus)[3:] == [number(4, 14), number(5, 15), number(6, 16)]
    assert 'streamfl_lost_records_total{topic="numbers"} 2.0' in counting.metrics.render().decode()


def test_a_changelog_that_is_behind_is_not_trusted(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects exactly-once: a state older than the group's offsets would lose records, so the worker waits
    and logs why.

    If a transaction holds the changelog back, the log says so, because the remedy is different.
    """
    send(bus, number(1, 5), number(2, 7))
    session = bus.session(Subscription("counters", ("numbers",)))
    session.poll(0, 10)
    session.commit(Step({("numbers", 0): 1}))
    session.close()
    counting = worker(bus, CountingRole())
    assert not counting.step(0)
    assert "numbers is committed up to 1" in trouble(counting)
    assert "A transaction" not in trouble(counting)
    monkeypatch.setattr(bus, "undecided", lambda topic: {0: (4, 9)} if topic == "state" else {})
    assert not counting.step(0)
    assert "A transaction that began at offset 4 of 'state' is open, and 5 offsets follow it." in trouble(
        counting
    )
    assert totals(bus) == []
    bus.write(
        [
            Outgoing("state", b"pump", number(1, 5), 0),
            Outgoing("state", POSITION_KEY + b"numbers", struct.pack("<q", 1), 0),
        ]
    )
    drain(counting)
    assert totals(bus) == [number(2, 12)]
    assert trouble(counting) == ""


def test_a_worker_that_waits_for_its_changelog_ends_when_it_is_told(bus: MemoryBus) -> None:
    """Protects rolling updates: a worker that waited for the state of a killed one heard for half a minute
    of nothing. Told to end, it ended by exit code 70, as if it hung."""
    send(bus, number(1, 5))
    session = bus.session(Subscription("counters", ("numbers",)))
    session.poll(0, 10)
    session.commit(Step({("numbers", 0): 1}))
    session.close()
    stop, waits = threading.Event(), []

    def told(seconds: float) -> None:
        waits.append(seconds)
        assert len(waits) < 3
        stop.set()

    subscription = Subscription("counters", ("numbers",), ("factor",), "exactly_once")
    waiting = Worker(
        CountingRole(), CHANNELS, bus, subscription, "dead-letters", restore_seconds=1e9, sleep=told
    )
    waiting.run(stop)
    assert len(waits) == 1
    assert totals(bus) == []


class BrokenSession(MemorySession):
    """A session whose cluster goes away at the first commit of the bus."""

    def commit(self, step: Step) -> None:
        if "failed" not in vars(self._bus):
            vars(self._bus)["failed"] = True
            raise BusUnavailable("the cable was pulled")
        super().commit(step)


def test_an_outage_is_waited_out() -> None:
    """Protects against loss and doubling when the cluster goes away: the worker is not ready meanwhile, then
    repeats everything."""
    bus = bus_of(BrokenSession)
    bus.write([Outgoing("factor", b"f", number(1, 3))])
    role = CountingRole()
    counting = worker(bus, role)
    send(bus, number(1, 5))
    while "cable" not in trouble(counting):
        counting.step(0)
    assert role.totals == {}
    drain(counting)
    assert trouble(counting) == ""
    assert totals(bus) == [number(1, 15)]
    assert "streamfl_bus_failures_total 1.0" in counting.metrics.render().decode()


def test_a_worker_that_can_open_no_file_ends() -> None:
    """Protects an operator with a low ulimit -n: client libraries take that for a cluster that is away, and
    the worker tried again for ever."""
    bus, stop = bus_of(BrokenSession), threading.Event()
    send(bus, number(1, 5))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        (endless := threading.Timer(30, stop.set)).start()
        held.callback(endless.cancel)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        with pytest.raises(OSError, match="ulimit -n"):
            worker(bus, CountingRole()).run(stop)


def test_running_ends_when_told(bus: MemoryBus) -> None:
    """Protects a rolling restart: the loop ends by itself, commits what it read, and leaves the group."""
    counting = worker(bus, CountingRole())
    stop = threading.Event()
    thread = threading.Thread(target=counting.run, args=(stop,))
    thread.start()
    send(bus, number(1, 5))
    follower = bus.session(Subscription("followers", ("totals",)))
    while not follower.poll(1, 1).records:
        pass
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    successor = bus.session(Subscription("counters", ("numbers",)))
    assert successor.poll(0, 1).assigned == [0, 1]
    assert successor.committed("numbers", 0) == 1


def test_figures_of_role_and_session_are_served(bus: MemoryBus) -> None:
    """Protects the operator's view: the role's metrics, lag by partition and the time of steps are in one
    answer."""
    role = CountingRole()
    counting = worker(bus, role)
    drain(counting)
    send(bus, number(1, 5))
    drain(counting)
    role.full = [1]
    counting.step(0)
    send(bus, number(1, 9), number(2, 9), partition=1)
    text = counting.metrics.render().decode()
    assert "streamfl_samples_total 1.0" in text
    assert 'streamfl_consumer_lag_records{partition="1",topic="numbers"} 2.0' in text
    assert "streamfl_partitions 2.0" in text
    assert 'streamfl_step_seconds_bucket{le="5.0"}' in text
    assert 'streamfl_batch_seconds_bucket{le="5e-05"}' in text


def test_two_inputs_on_one_topic_are_refused(bus: MemoryBus) -> None:
    """Protects against a role that silently reads only one of its inputs."""
    channels = Channels(
        inputs={"a": Input("numbers", decode_number), "b": Input("numbers", decode_number)},
        outputs={},
        changelogs={},
    )
    with pytest.raises(ConfigurationError, match="same topic"):
        Worker(CountingRole(), channels, bus, Subscription("g", ("numbers",)), "dead-letters")


@pytest.mark.long
def test_the_log_of_a_worker_tells_refusals_and_progress(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects the operator who only reads the log: the first refusal, the number of further ones, and a line
    while idle."""
    now = iter(range(0, 10_000, 5))
    seconds = [0.0]

    def monotonic() -> float:
        return seconds[0]

    stop = threading.Event()

    class Stopping(CountingRole):
        @property
        def trouble(self) -> str | None:
            seconds[0] = float(next(now))
            if seconds[0] > 75.0:
                stop.set()
            return None

    send(bus, *[b"nonsense"] * 60)
    caplog.set_level("INFO")
    Worker(
        Stopping(),
        CHANNELS,
        bus,
        Subscription("counters", ("numbers",), ("factor",)),
        "dead-letters",
        progress_seconds=60.0,
        monotonic=monotonic,
        commit_interval=0.0,
    ).run(stop)
    told = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    refused = [line for line in told if line["event"] == "a record was refused"]
    assert [(line["record"], line.get("more")) for line in refused] == [
        ("numbers-0-0", None),
        ("numbers-0-59", 59),
    ]
    progress = [line for line in told if line["event"] == "progress"]
    assert [(line["dead_letters"], line["records"], line["partitions"]) for line in progress] == [
        (60, 60, 2),
        (0, 0, 2),
    ]
    assert progress[0]["dead_letters_by_reason"] == {"malformed": 60}
    assert [line["seconds"] for line in progress] == [10, 60]


def test_a_partition_that_cannot_be_read_stops_no_time_for_others(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the timeouts of a worker's other partitions from one that cannot be read: ticks used to be
    withheld for ever."""
    away(bus)
    monkeypatch.setattr(MemorySession, "_take_records", lambda self, taken, max_records: None)
    now = [0.0]
    role = CountingRole()
    role.wake_at = 0.0
    subscription = Subscription("counters", ("numbers",), ("factor",))
    alone = Worker(
        role, CHANNELS, bus, subscription, "dead-letters", clock=lambda: 1.0, monotonic=lambda: now[0]
    )
    for _ in range(3):
        alone.step(0.0)
    assert role.batches.count(0) == 0
    now[0] = 31.0
    alone.step(0.0)
    assert role.batches.count(0) == 1


class LongRestore(CountingRole):
    """Calls a function at each record of its state."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def restore(self, change: StateChange) -> None:
        super().restore(change)
        self._meanwhile()


def with_state(bus: MemoryBus, keys: int) -> None:
    bus.write([Outgoing("state", f"pump-{one}".encode(), number(1, one), 0) for one in range(keys)])
    send(bus, number(1, 5))


def test_a_long_restore_is_no_hang(bus: MemoryBus) -> None:
    """Protects a worker with much state: the watchdog ended it amid its restore, two minutes after the start,
    and the next start too. Restoring that stops for so long is a hang still."""
    with_state(bus, 300)
    now, hung = [0.0], list[bool]()

    def second() -> None:
        now[0] += 1.0
        hung.append(restoring.health.stuck or not restoring.health.alive)

    restoring = counting_worker(bus, LongRestore(second), monotonic=lambda: now[0], stall_seconds=120.0)
    drain(restoring)
    assert hung == [False] * 300
    assert now[0] == 300.0
    restoring.health.begin()
    now[0] += 121.0
    assert restoring.health.stuck


def test_metrics_are_served_while_state_is_restored(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a worker with much state from its own probes: one scrape waited for the end of the restore,
    and the probes waited behind it, so that Kubernetes ended the worker."""
    monkeypatch.setattr(role_figures, "WAIT_SECONDS", 0.01)
    with_state(bus, 1)
    begun, over = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert over.wait(60)

    restoring = counting_worker(bus, LongRestore(wait))
    thread = threading.Thread(target=drain, args=(restoring,))
    thread.start()
    try:
        assert begun.wait(60)
        text = restoring.metrics.render().decode()
        assert not over.is_set()
    finally:
        over.set()
        thread.join()
    assert 'streamfl_not_ready{reason="restoring"} 1.0' in text
    assert 'streamfl_not_ready{reason="restoring"} 0.0' in restoring.metrics.render().decode()
    assert "streamfl_samples_total 2.0" in restoring.metrics.render().decode()
