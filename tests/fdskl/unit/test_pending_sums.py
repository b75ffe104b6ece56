"""Sums that are being made: bounds, expiry, who may add what, and that nobody counts twice."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.messages import PHASES, FeatureRange, PartialSum, Round
from streamfl.fdskl.sums.early_sums import EarlySums
from streamfl.fdskl.sums.pending_sums import SUM, Key, PendingSum, PendingSums
from streamfl.fdskl.sums.topology import aggregation


def sums(own: int = 1, limit: int = 3) -> tuple[PendingSums, list[tuple[Key, str]]]:
    given_up: list[tuple[Key, str]] = []
    trees = {SUM: aggregation("tree", 4, 0)}
    return PendingSums(
        own, trees, limit, lambda key, pending, reason: given_up.append((key, reason))
    ), given_up


def part(sender: int = 2, **changes: Any) -> PartialSum:
    values = np.arange(4, dtype="<u4").tobytes()
    message = PartialSum(VERSION, 1, f"p{sender}", 5, 0, b"name", SUM, [sender], bytes([1, 0]), values)
    return msgspec.structs.replace(message, **changes)


def begun(owner: PendingSums, key: Key = (5, 0), since: float = 0.0) -> PendingSum:
    announced = Round(VERSION, 1, "p0", [5, 6, 7, 8], key[1], PHASES, 1.0, [FeatureRange(0, 1)], ["a", "b"])
    pending = PendingSum(since, announced, b"name")
    owner.begin(key, pending)
    return pending


def test_a_sum_is_whole_with_the_own_part_and_all_below_and_none_twice() -> None:
    """Protects sums from a part that is missing or added twice: masks would not cancel."""
    owner, _ = sums()
    pending = begun(owner)
    pending.stage(SUM).add(np.full(4, 2**32 - 1, np.uint32), np.array([1, 1], np.uint8), [1])
    pending.answered = True
    assert owner.add(pending, 2, part(2), 4, np.uint32)
    assert not owner.add(pending, 2, part(2), 4, np.uint32)
    assert not owner.is_whole(pending, SUM)
    assert owner.lacking(pending, SUM) == [3]
    assert owner.add(pending, 3, part(3), 4, np.uint32)
    assert owner.is_whole(pending, SUM)
    values, known = pending.stage(SUM).values, pending.stage(SUM).known
    assert values is not None
    assert known is not None
    assert values.tolist() == [2**32 - 1, 1, 3, 5]
    assert known.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (part(0), "topology"),
        (part(stage=7), "topology"),
        (part(contributors=[2, 3]), "topology"),
        (part(contributors=[]), "topology"),
        (part(round=b"other"), "configuration"),
        (part(values=bytes(12)), "shape"),
        (part(known=bytes(3)), "shape"),
        (part(known=bytes([2, 0])), "implausible"),
    ],
)
def test_a_part_that_cannot_be_is_refused_and_leaves_the_sum_as_it_was(
    message: PartialSum, reason: str
) -> None:
    """Protects a round from a part that is of somebody else, of another round, or of another size."""
    owner, _ = sums()
    pending = begun(owner)
    party = int(message.sender[1:])

    def take() -> None:
        owner.check_sender(party, message)
        owner.add(pending, party, message, 4, np.uint32)

    with pytest.raises(BadRecord) as refused:
        take()
    assert refused.value.reason == reason
    assert pending.stage(SUM).values is None
    assert owner.add(pending, 2, part(), 4, np.uint32)


def test_rounds_give_way_expire_and_end_with_a_life() -> None:
    """Protects memory, and whoever waits for a round that never comes to its end."""
    owner, given_up = sums()
    for number in range(4):
        begun(owner, (5, number), float(number))
    assert given_up == [((5, 0), "displaced")]
    assert (len(owner), owner.oldest) == (3, 1.0)
    owner.expire(2.0, 3.5)
    assert given_up[1:] == [((5, 1), "timeout")]
    begun(owner, (9, 0), 4.0)
    owner.abandon_all("incarnation", but=9)
    assert given_up[2:] == [((5, 2), "incarnation"), ((5, 3), "incarnation")]
    owner.set_back(1.0)
    assert owner.oldest == 1.0
    owner.end((9, 0))
    assert (len(owner), owner.oldest) == (0, None)


def test_early_sums_wait_for_their_round_within_bounds() -> None:
    """Protects memory from sums of rounds that are never announced, and a round from a sum that came before
    it."""
    early = EarlySums(limit=2)
    assert early.put((5, 0), part(2), 1.0) == 0
    assert early.put((5, 0), part(2), 1.5) is None
    assert early.put((5, 0), part(3), 2.0) == 0
    assert early.put((5, 1), part(2), 3.0) == 0
    assert early.put((5, 2), part(2), 4.0) == 2
    assert (len(early), early.oldest) == (2, 3.0)
    assert early.take((5, 1)) == [part(2)]
    assert early.take((5, 1)) == []
    early.set_back(2.0)
    assert early.expire(2.0, 3.9) == 0
    assert early.expire(2.0, 4.0) == 1
    assert (len(early), early.oldest) == (0, None)
