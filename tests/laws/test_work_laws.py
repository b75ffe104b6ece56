"""The role laws for a role that requests work, and for broken ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence

import pytest
from hypothesis import strategies as st
from making import BlockMaker, decode_order, order

from streamfl.contract.role import Received, Record, Rejection, Send, Work
from streamfl.testing.extremes import Extreme
from streamfl.testing.role_laws import Move, RoleLaws, Subject, Traffic, law_deterministic, law_moves

PLACES = {b"pump": 0, b"fan": 0, b"valve": 1}


def received(number: int, key: bytes, offset: int) -> Received:
    record = Record("orders", PLACES.get(key, 0), offset, key, order(number))
    return Received("orders", decode_order(record), record)


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    """Orders with rising numbers for each key."""
    numbers, offsets = itertools.count(1), itertools.count()
    batches = draw(st.lists(st.lists(st.sampled_from(sorted(PLACES)), max_size=4), max_size=5))
    return Traffic(
        [
            (float(now), [received(next(numbers), key, next(offsets)) for key in batch])
            for now, batch in enumerate(batches)
        ],
        (0, 1),
    )


def anybody(extreme: Extreme) -> list[tuple[str, Record]]:
    """An order with a number, once with a name as the key, and once with a key."""
    return [
        ("orders", Record("orders", 0, place, key, order(extreme.whole)))
        for place, key in enumerate((extreme.name.encode(), extreme.key))
    ]


def subject(role: Callable[[], BlockMaker]) -> Subject:
    return Subject(role, traffics(), anybody, {"orders": decode_order}, repeatable=["orders"])


@pytest.mark.parametrize("subject", [subject(BlockMaker)])
class TestBlockMaker(RoleLaws):
    """A role that requests work obeys every law. If its partition is lost during the work, the work is done
    again."""


def roll(content: bytes) -> bytes:
    return os.urandom(8)


class Rolling(BlockMaker):
    """Its work differs each time."""

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
        replies = super().receive(batch, now)
        return [
            Work(one.channel, one.partition, one.key, roll, one.content) if isinstance(one, Work) else one
            for one in replies
        ]


class Waiting(BlockMaker):
    """Waits for results of work that was given up with its partition."""

    def close(self, partition: int) -> None:
        kept = dict(self.under_way)
        super().close(partition)
        self.under_way = kept


EXAMPLE = Traffic(
    [(0.0, [received(1, b"pump", 0)]), (1.0, [received(2, b"pump", 1), received(1, b"valve", 0)])], (0, 1)
)


def law_of_a_lost_step(subject: Subject, traffic: Traffic) -> None:
    law_moves(subject, traffic, [[Move(0, 1, lost=True)], [Move(0, 0, lost=True), Move(1, 1, lost=True)]])


@pytest.mark.parametrize(("role", "law"), [(Rolling, law_deterministic), (Waiting, law_of_a_lost_step)])
def test_a_broken_role_is_found(role: type[BlockMaker], law: Callable[[Subject, Traffic], None]) -> None:
    """Protects the laws from ignoring work: they find impure work, and waiting for work that was given up."""
    law(subject(BlockMaker), EXAMPLE)
    with pytest.raises(AssertionError):
        law(subject(role), EXAMPLE)
