"""The laws that every role (:mod:`streamfl.contract.role`) obeys. A role is correct if these tests pass.

In a test module, define how to make the role and what to feed it, and subclass :class:`RoleLaws`::

    subject = Subject(
        make=MyRole,
        traffic=my_strategy(),
        anybody=my_records,
        decode={"numbers": my_decode},
        bad=[(wrong_message, "malformed")],
    )

    @pytest.mark.parametrize("subject", [subject])
    class TestMyRole(RoleLaws):
        pass

The sixth law, bounded memory, has no general form: each role tests its own bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from streamfl.contract.role import Received, Rejection, Send, StateChange
from streamfl.testing.agreement import assert_same_sends, assert_same_state, rejected
from streamfl.testing.bound_laws import law_accepted_can_be_written
from streamfl.testing.clock_laws import law_clock_ahead, law_clock_is_right_again, law_clock_jumps
from streamfl.testing.extremes import Extreme
from streamfl.testing.run_laws import law_runs
from streamfl.testing.subjects import LONG, RoleRun, Same, State, Subject, Traffic, answers, equal

__all__ = [
    "Extreme",
    "Move",
    "RoleLaws",
    "Same",
    "State",
    "Subject",
    "Traffic",
    "law_accepted_can_be_written",
    "law_batch_equals_singles",
    "law_clock_ahead",
    "law_clock_is_right_again",
    "law_clock_jumps",
    "law_deterministic",
    "law_duplicates",
    "law_moves",
    "law_rejects_leave_state",
    "law_restore",
    "law_runs",
    "law_waiting",
]


@dataclass(frozen=True)
class Move:
    """Moves a partition to one of two workers, possibly to the one that already has it.

    lost: the old worker received the batch, but its step was not committed. Then all partitions of that
    worker are restored."""

    partition: int
    worker: int
    lost: bool


class RoleLaws:
    """The laws, for every ``subject`` of the subclass's parametrisation, on traffic from its strategy."""

    @given(data=st.data())
    @settings(max_examples=20, deadline=None)
    def test_it_is_deterministic(self, subject: Subject, data: st.DataObject) -> None:
        """Protects reproducible runs: the same input gives the same output and the same state."""
        law_deterministic(subject, data.draw(subject.traffic))

    @given(data=st.data())
    @settings(max_examples=20, deadline=None)
    def test_a_batch_equals_its_messages(self, subject: Subject, data: st.DataObject) -> None:
        """Protects results from depending on how records were divided into polls."""
        law_batch_equals_singles(subject, data.draw(subject.traffic))

    @given(data=st.data())
    @settings(max_examples=20, deadline=None)
    def test_runs_equal_their_messages(self, subject: Subject, data: st.DataObject) -> None:
        """Protects results from depending on which records were decoded together."""
        law_runs(subject, data.draw(subject.traffic), data)

    @given(data=st.data())
    # Every cut of every example is tried.
    @settings(max_examples=10, deadline=None)
    def test_it_goes_on_after_restoring(self, subject: Subject, data: st.DataObject) -> None:
        """Protects against messages that are lost, doubled or changed by a restart at any point."""
        law_restore(subject, data.draw(subject.traffic))

    @given(data=st.data())
    @settings(max_examples=10, deadline=None)
    def test_what_waits_is_remembered(self, subject: Subject, data: st.DataObject) -> None:
        """Protects tests and commands that wait until a federation is idle: a role must not forget its
        pending work."""
        law_waiting(subject, data.draw(subject.traffic))

    @given(data=st.data())
    @settings(max_examples=30, deadline=None)
    def test_its_partitions_move(self, subject: Subject, data: st.DataObject) -> None:
        """Protects workers that come and go: a leaving partition leaves nothing behind, and an arriving one
        is complete."""
        traffic = data.draw(subject.traffic)
        move = st.builds(Move, st.sampled_from(traffic.partitions), st.sampled_from((0, 1)), st.booleans())
        law_moves(subject, traffic, [data.draw(st.lists(move, max_size=3)) for _ in traffic.batches])

    @given(data=st.data())
    @settings(max_examples=20, deadline=None)
    def test_a_wrong_message_is_refused_alone(self, subject: Subject, data: st.DataObject) -> None:
        """Protects all members from one broken or hostile peer."""
        law_rejects_leave_state(subject, data.draw(subject.traffic))

    @given(data=st.data())
    @settings(max_examples=20, deadline=None)
    def test_a_message_twice_counts_once(self, subject: Subject, data: st.DataObject) -> None:
        """Protects against a sender's retry after a lost answer."""
        law_duplicates(subject, data.draw(subject.traffic))

    @given(data=st.data())
    @settings(max_examples=12, deadline=None)
    def test_a_clock_that_is_set_right_holds_nothing_up(self, subject: Subject, data: st.DataObject) -> None:
        """Protects timers: after a clock was ahead and was set right, nothing waits an hour or a year."""
        traffic = data.draw(subject.traffic)
        if not traffic.batches:
            return
        begin = data.draw(st.integers(0, len(traffic.batches) - 1))
        end = data.draw(st.integers(begin + 1, len(traffic.batches)))
        law_clock_ahead(
            subject, traffic, begin, end, data.draw(st.booleans()), restart=data.draw(st.booleans())
        )
        law_clock_is_right_again(subject, traffic, begin, end)

    @given(data=st.data())
    @settings(max_examples=6, deadline=None)
    def test_a_clock_that_jumps_loses_nothing(self, subject: Subject, data: st.DataObject) -> None:
        """Protects pending work: a clock that is ahead for a moment does not expire it."""
        law_clock_jumps(subject, data.draw(subject.traffic))

    def test_what_it_accepts_can_be_written(self, subject: Subject) -> None:
        """Protects a role from a message whose results do not fit into a record: the role would fail at every
        start."""
        law_accepted_can_be_written(subject)


def law_deterministic(subject: Subject, traffic: Traffic) -> None:
    """1. The same input gives two new roles the same replies and the same state, bit for bit and in the same
    order."""
    first = RoleRun(subject, traffic).feed_all(traffic.batches)
    second = RoleRun(subject, traffic).feed_all(traffic.batches)
    assert answers(first.replies) == answers(second.replies), "the same input gave two answers"
    assert first.changes == second.changes, "the same input was remembered in two ways"


def law_batch_equals_singles(subject: Subject, traffic: Traffic) -> None:
    """2. Messages one by one, at the time of their batch, have the same effect as the batch.

    Messages to one channel, key and partition keep their order; the order between those is free.
    """
    together = RoleRun(subject, traffic).feed_all(traffic.batches)
    alone = RoleRun(subject, traffic)
    for now, batch in traffic.batches:
        alone.feed_all((now, part) for part in [part for part in traffic.parts(batch) if part] or [[]])
    assert_same_sends(together.replies, alone.replies, subject.same)
    assert rejected(together.replies) == rejected(alone.replies), (
        "a batch refuses what its messages alone do not"
    )
    assert_same_state(together.state, alone.state, subject.same)


def law_restore(subject: Subject, traffic: Traffic) -> None:
    """3. A new role that is restored after any batch, and reads the tables again, goes on as the old one
    does.

    As with a worker, the new one then gets a tick, the old one only if it is due.
    """
    for cut in range(len(traffic.batches) + 1):
        before, after = traffic.batches[:cut], traffic.batches[cut:]
        stayed = RoleRun(subject, traffic).feed_all(before)
        moved = RoleRun(subject, traffic)
        for (channel, partition, key), value in stayed.state.items():
            moved.role.restore(StateChange(channel, partition, key, value))
        moved.changes += [StateChange(*slot, value) for slot, value in stayed.state.items()]
        stayed.replies.clear()
        if before:
            now = before[-1][0]
            tables = [
                received for _, batch in before for received in batch if received.channel in traffic.tables
            ]
            if tables:
                moved.feed(now, tables)
                # Bad table records were refused before the cut. The new owner refuses them again.
                moved.replies = [reply for reply in moved.replies if isinstance(reply, Send)]
            moved.feed(now, [])
            if stayed.role.wake_at is not None and stayed.role.wake_at <= now:
                stayed.feed(now, [])
        stayed.feed_all(after)
        moved.feed_all(after)
        try:
            assert_same_sends(stayed.replies, moved.replies, subject.same_restored)
            assert rejected(stayed.replies) == rejected(moved.replies), "one refuses what the other does not"
            assert_same_state(
                subject.canonical(stayed.state), subject.canonical(moved.state), subject.same_restored
            )
        except AssertionError as error:
            raise AssertionError(
                f"a role restored after batch {cut} of {len(traffic.batches)} goes another way: {error}"
            ) from error


def law_waiting(subject: Subject, traffic: Traffic) -> None:
    """3. Waiting work is state: after any batch a restored role has the same waiting work. A role without
    partitions has none."""
    for cut in range(1, len(traffic.batches) + 1):
        before = traffic.batches[:cut]
        now = before[-1][0]
        run = RoleRun(subject, traffic).feed_all([*before, (now, [])])
        waiting = dict(run.role.waiting)
        assert all(count > 0 for count in waiting.values()), f"what does not wait is told of: {waiting}"
        successor = run.restored(now, before)
        successor.feed(now, [])
        assert waiting == dict(successor.role.waiting), (
            f"after batch {cut} waits {waiting}, and in a role that was restored "
            f"{dict(successor.role.waiting)}"
        )
        for partition in traffic.partitions:
            run.role.close(partition)
        assert not run.role.waiting, f"without a partition waits {dict(run.role.waiting)}"


def law_moves(subject: Subject, traffic: Traffic, moves: Sequence[Sequence[Move]]) -> None:
    """3. Partitions that move between two workers, before any batch and any number of times, go on as if one
    worker kept them all.

    Both workers read every table, whatever partitions they have. A worker that gets a partition has read the
    tables up to then. All get a tick after each batch: what may be sent depends on real time, so it can only
    be compared at equal times.
    """
    stayed, moved = RoleRun(subject, traffic), _Workers(subject, traffic)
    for (now, batch), moving in zip(traffic.batches, moves, strict=True):
        stayed.feed_some(now, batch)
        stayed.feed(now, [])
        moved.step(now, batch, moving)
    assert_same_sends(stayed.replies, moved.log.replies, subject.same_restored)
    # Each worker refuses bad table records.
    assert rejected(stayed.replies, traffic.tables) == rejected(moved.log.replies, traffic.tables), (
        "one refuses, another not"
    )
    assert_same_state(
        subject.canonical(stayed.state), subject.canonical(moved.log.state), subject.same_restored
    )


def law_rejects_leave_state(subject: Subject, traffic: Traffic) -> None:
    """4. Each bad message is refused for its reason wherever it comes. Everything else is as if it had not
    come.

    It comes twice: with the timestamp of its batch, and with one long after all others. Its timestamp has no
    effect either."""
    spared = RoleRun(subject, traffic).feed_all(traffic.batches)
    troubled = RoleRun(subject, traffic)
    expected: dict[int, str] = {}
    # The copies are told apart by their id, so they must stay alive.
    kept: list[Received] = []

    def bad(now: float, of_tables: bool) -> list[Received]:
        copies: list[Received] = []
        for received, reason in subject.bad:
            if (received.channel in traffic.tables) == of_tables:
                for written_at in (now, now + LONG):
                    copies.append(replace(received, record=replace(received.record, timestamp=written_at)))
                    expected[id(copies[-1])] = reason
        kept.extend(copies)
        return copies

    for now, batch in traffic.batches:
        tables, *singles = traffic.parts(batch)
        spoilt = [*bad(now, True), *tables, *bad(now, True), *bad(now, False)]
        for part in singles:
            spoilt += [*part, *bad(now, False)]
        if spoilt:
            troubled.feed(now, spoilt)
        if not batch:
            troubled.feed(now, [])
    refused = {
        id(reply.received): reply.error.reason for reply in troubled.replies if isinstance(reply, Rejection)
    }
    found = {number: reason for number, reason in refused.items() if number in expected}
    assert found == expected, f"refused were {sorted(found.values())}, not {sorted(expected.values())}"
    others = [
        reply for reply in troubled.replies if isinstance(reply, Send) or id(reply.received) not in expected
    ]
    # The order between channels, keys and partitions is free: a byte budget allows pending messages at any
    # call, also at that of a bad message.
    assert_same_sends(others, spared.replies, equal)
    assert rejected(others) == rejected(spared.replies), "a message that was refused had an effect on another"
    assert troubled.state == spared.state, "a message that was refused had an effect on the state"


def law_duplicates(subject: Subject, traffic: Traffic) -> None:
    """5. An accepted message that comes again, at once or with the next batch, changes nothing the second
    time.

    The copy is a record of its own, like a sender's retry. The worker skips a record that the bus delivers
    twice. A refused message may be valid when it comes again.
    """
    once = RoleRun(subject, traffic).feed_all(traffic.batches)
    refused = {id(reply.received) for reply in once.replies if isinstance(reply, Rejection)}
    twice = RoleRun(subject, traffic)
    late: list[Received] = []
    for now, batch in traffic.batches:
        copies = {
            id(received): _copy(received)
            for received in batch
            if received.channel in subject.repeatable and id(received) not in refused
        }
        doubled = [
            one for received in batch for one in (received, copies.get(id(received))) if one is not None
        ]
        if batch or late:
            twice.feed(now, traffic.tables_first([*late, *doubled]))
        if not batch:
            twice.feed(now, [])
        late = list(copies.values())
    if late:
        twice.feed(traffic.batches[-1][0], late)
    # Equal up to rounding, as in the second law: copies change which messages are computed together.
    assert_same_sends(once.replies, twice.replies, subject.same)
    assert rejected(once.replies) == rejected(twice.replies), "a copy was refused"
    assert_same_state(once.state, twice.state, subject.same)


class _Workers:
    """Two roles with a common changelog, kept by the first, and the place of each partition."""

    def __init__(self, subject: Subject, traffic: Traffic) -> None:
        self.tables = traffic.tables
        self.log = RoleRun(subject, traffic)
        self.runs = [self.log, RoleRun(subject, Traffic([], []), self.log.replies, self.log.changes)]
        self.places = dict.fromkeys(traffic.partitions, 0)

    def step(self, now: float, batch: Sequence[Received], moves: Sequence[Move]) -> None:
        """Move partitions, then give each worker its part of the batch and a tick."""
        tables = [received for received in batch if received.channel in self.tables]
        inputs = [received for received in batch if received.channel not in self.tables]
        unheard = [tables, tables]

        def unread(worker: int, partitions: Collection[int]) -> list[Received]:
            heard, unheard[worker] = unheard[worker], []
            return [*heard, *(received for received in inputs if received.partition in partitions)]

        for move in moves:
            here = self.places[move.partition]
            leaving = self._partitions(here) if move.lost else [move.partition]
            if move.lost:
                self.runs[here].role.receive(unread(here, leaving), now)
            for partition in leaving:
                self.runs[here].role.close(partition)
            if move.lost:
                # The worker goes on before any partition is assigned again: anything it still wrote about
                # them would be restored.
                self.runs[here].feed(now, [])
            self.places[move.partition] = move.worker
            for partition in leaving:
                place = self.places[partition]
                self.runs[place].feed_some(now, unread(place, ()))
                self._open(place, partition)
        for place, run in enumerate(self.runs):
            run.feed_some(now, unread(place, self._partitions(place)))
            run.feed(now, [])

    def _partitions(self, worker: int) -> list[int]:
        return [partition for partition, place in self.places.items() if place == worker]

    def _open(self, worker: int, partition: int) -> None:
        role = self.runs[worker].role
        role.open(partition)
        for slot, value in self.log.state.items():
            if slot[1] == partition:
                role.restore(StateChange(*slot, value))


def _copy(received: Received) -> Received:
    return replace(received, record=replace(received.record, offset=received.record.offset + 1_000_000))
