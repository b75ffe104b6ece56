"""The role laws on a role that obeys them, and on broken roles for each law: a law that cannot fail protects
nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest
from counting import CountingRole, Message, decode_number, number
from hypothesis import strategies as st
from msgspec.structs import replace

from streamfl.contract.role import BadRecord, Received, Record, Rejection, Role, Send, StateChange
from streamfl.testing.role_laws import (
    Extreme,
    Move,
    RoleLaws,
    Subject,
    Traffic,
    law_accepted_can_be_written,
    law_batch_equals_singles,
    law_clock_ahead,
    law_clock_is_right_again,
    law_clock_jumps,
    law_deterministic,
    law_duplicates,
    law_moves,
    law_rejects_leave_state,
    law_restore,
    law_waiting,
)

PARTITIONS = (0, 1)


def received(
    message: Message, key: bytes = b"pump", partition: int = 0, offset: int = 0, channel: str = "numbers"
) -> Received:
    """A message in the form that a worker passes on."""
    return Received(channel, message, Record(channel, partition, offset, key, b""))


@st.composite
def traffics(draw: st.DrawFn, least: int) -> Traffic:
    """Numbers, at least ``least``, and factors."""
    offsets = itertools.count()
    sequences = itertools.count(1)
    one = st.tuples(
        st.integers(least, 9),
        st.sampled_from([(b"pump", 0), (b"fan", 0), (b"valve", 1)]),
        st.sampled_from(["numbers"] * 4 + ["factor"]),
    )
    batches = draw(st.lists(st.lists(one, max_size=6), max_size=6))
    return Traffic(
        [
            (
                float(now),
                [
                    received((next(sequences), amount), *place, next(offsets), channel)
                    for amount, place, channel in batch
                ],
            )
            for now, batch in enumerate(batches)
        ],
        PARTITIONS,
        tables=("factor",),
    )


BAD = [
    (received((10**6, -1), offset=10**6), "negative"),
    (received((10**6, -5), b"valve", 1, 10**6), "negative"),
    (received((1, -1), channel="factor"), "negative"),
]

EXAMPLE = Traffic(
    [
        (0.0, [received((1, 2), offset=0), received((2, 3), offset=1)]),
        (1.0, [received((3, 4), offset=2), received((1, 5), b"valve", 1, 0)]),
        (2.0, [received((4, 6), offset=3)]),
    ],
    PARTITIONS,
)


def anybody(extreme: Extreme) -> list[tuple[str, Record]]:
    """A number under a name as its key, and one under the key, then a factor that makes them larger."""
    return [
        ("numbers", Record("numbers", 0, 0, extreme.name.encode(), number(1, extreme.whole))),
        ("factor", Record("factor", 0, 0, extreme.key, number(extreme.whole, extreme.whole))),
        ("numbers", Record("numbers", 0, 1, extreme.key, number(extreme.whole, 7))),
    ]


DECODE = {"numbers": decode_number, "factor": decode_number}


def subject(role: Callable[[], Role]) -> Subject:
    return Subject(role, traffics(1), anybody, DECODE, bad=BAD, repeatable=["numbers"])


# A reset by zero forgets a key and its sequence, so a later copy is new to the role.
WITH_RESETS = Subject(CountingRole, traffics(0), anybody, DECODE, bad=BAD)


@pytest.mark.parametrize("subject", [subject(CountingRole), WITH_RESETS], ids=["adding", "resetting"])
class TestCountingRole(RoleLaws):
    """A correct role passes all laws on any traffic, so they are not too strict."""


class Moody(CountingRole):
    """Answers differently from one object to the next."""

    made = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1 + next(self.made)


class Summing(CountingRole):
    """Answers only the last message of a batch."""

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        return super().receive(batch, now)[-1:]


class Forgetful(CountingRole):
    """Does not restore everything."""

    def restore(self, change: StateChange) -> None:
        if change.key != b"pump":
            super().restore(change)


class Secretive(CountingRole):
    """Has state that it does not write."""

    def __init__(self) -> None:
        super().__init__()
        self.bonus = 0

    def _take(self, received: Received) -> list[Send]:
        self.bonus += 1
        self.factor = self.bonus
        return super()._take(received)


class Hasty(CountingRole):
    """Changes its state before it checks the message."""

    def _take(self, received: Received) -> list[Send]:
        totals, key = self.totals[received.partition], received.record.key or b""
        sequence, total = totals.get(key, (0, 0))
        totals[key] = (sequence, total + 1)
        return super()._take(received)


class Lenient(CountingRole):
    """Ignores mistakes without a refusal."""

    def _take(self, received: Received) -> list[Send]:
        try:
            return super()._take(received)
        except BadRecord:
            return []


class Gullible(CountingRole):
    """Adds a repeated number again."""

    def _take(self, received: Received) -> list[Send]:
        totals, key = self.totals[received.partition], received.record.key or b""
        if key in totals:
            totals[key] = (0, totals[key][1])
        return super()._take(received)


class Clinging(CountingRole):
    """Keeps the state of a partition that now belongs to another worker."""

    def open(self, partition: int) -> None:
        self.totals.setdefault(partition, {})

    def close(self, partition: int) -> None:
        """Nothing is forgotten."""


class Talkative(CountingRole):
    """Still writes state for a partition that now belongs to another worker."""

    def close(self, partition: int) -> None:
        del self.totals[partition]


class Waiting(CountingRole):
    """Waits until a minute after its last message, by the clock at that time."""

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        if batch:
            self.wake_at = now + 60.0
        return super().receive(batch, now)


class Dated(CountingRole):
    """Remembers the time of its last message, by the clock at that time."""

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        if batch:
            self.changes.append(StateChange("state", 0, b"when", msgspec.msgpack.encode({"at": [now]})))
        return super().receive(batch, now)

    def restore(self, change: StateChange) -> None:
        if change.key != b"when":
            super().restore(change)


class Hurried(CountingRole):
    """Forgets entries older than a minute, by a clock that may be ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = 0.0

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        if now > self.latest + 60.0:
            self.changes += [
                StateChange("state", partition, key, None)
                for partition, own in self.totals.items()
                for key in own
            ]
            self.totals = {partition: {} for partition in self.totals}
        self.latest = now
        return super().receive(batch, now)


class Sulking(CountingRole):
    """Does not answer after the clock was set back."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = 0.0

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        self.latest = max(self.latest, now)
        replies = super().receive(batch, now)
        return replies if now == self.latest else []


class Counting(CountingRole):
    """Reports every message since it was made as waiting."""

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        waiting = self.waiting.get("numbers", 0) + len(batch)
        self.waiting = {"numbers": waiting} if waiting else {}
        return super().receive(batch, now)


class Idle(CountingRole):
    """Reports a count of 0 as waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = {"numbers": 0}


class Haunted(CountingRole):
    """Reports waiting messages for a partition that is gone."""

    def close(self, partition: int) -> None:
        super().close(partition)
        self.waiting = {"numbers": 1}


def law_of_a_clock_ahead(subject: Subject, traffic: Traffic) -> None:
    """The law, for a role that stayed and for a restored one."""
    for restart in (False, True):
        law_clock_ahead(subject, traffic, 1, 3, False, restart=restart)


def law_of_a_clock_set_right(subject: Subject, traffic: Traffic) -> None:
    """The law, with one batch before, one during and one after."""
    law_clock_is_right_again(subject, traffic, 1, 2)


def law_of_some_moves(subject: Subject, traffic: Traffic) -> None:
    """The law of moves, with moves that a role must survive."""
    law_moves(
        subject,
        traffic,
        [[Move(0, 0, lost=True)], [Move(0, 1, lost=False)], [Move(1, 1, lost=True), Move(0, 0, lost=True)]],
    )


class Verbose(CountingRole):
    """Sends a value that repeats the key 16 times."""

    def _take(self, received: Received) -> list[Send]:
        super()._take(received)
        key = received.record.key or b""
        return [Send("totals", key, key * 16)]


class Hoarder(CountingRole):
    """Its state is larger than fits, and nothing reports that."""

    def changed_state(self) -> Iterable[StateChange]:
        return [
            replace(change, value=(change.value or b"") + b" " * 20 * len(change.key))
            for change in super().changed_state()
        ]


class Choosy(CountingRole):
    """Refuses to restore a total that it wrote itself."""

    def restore(self, change: StateChange) -> None:
        super().restore(change)
        if self.totals[change.partition][change.key][1] > 2**53:
            raise BadRecord("malformed", "a total beyond 2^53")


def law_of_extremes(subject: Subject, _traffic: Traffic) -> None:
    """The law finds its messages itself."""
    law_accepted_can_be_written(subject)


@pytest.mark.parametrize(
    ("role", "law"),
    [
        (Moody, law_deterministic),
        (Summing, law_batch_equals_singles),
        (Forgetful, law_restore),
        (Secretive, law_restore),
        (Counting, law_waiting),
        (Idle, law_waiting),
        (Haunted, law_waiting),
        (Forgetful, law_of_some_moves),
        (Clinging, law_of_some_moves),
        (Talkative, law_of_some_moves),
        (Hasty, law_rejects_leave_state),
        (Lenient, law_rejects_leave_state),
        (Gullible, law_duplicates),
        (Verbose, law_of_extremes),
        (Hoarder, law_of_extremes),
        (Choosy, law_of_extremes),
        (Waiting, law_of_a_clock_ahead),
        (Dated, law_of_a_clock_ahead),
        (Hurried, law_clock_jumps),
        (Sulking, law_of_a_clock_set_right),
    ],
)
def test_a_broken_role_is_found(role: type[CountingRole], law: Callable[[Subject, Traffic], None]) -> None:
    """Protects the laws from being empty: each law finds the role that breaks it."""
    with pytest.raises(AssertionError):
        law(subject(role), EXAMPLE)
