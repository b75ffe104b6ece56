"""The assignment of partition numbers to kafka-python's consumers, without a broker."""

from __future__ import annotations

import random

from streamfl_connectors.kafka.assignor import deal

NOBODY: set[int] = set()


def settle(numbers: set[int], held: dict[str, set[int]]) -> tuple[dict[str, set[int]], int]:
    """Rebalances until every number has a member. Each member gives up the numbers that it does not get."""
    for generation in range(1, 10):
        dealt = deal(numbers, {member: (generation, owned) for member, owned in held.items()})
        before = {number: member for member, owned in held.items() for number in owned}
        for member, owned in dealt.items():
            assert all(before.get(number, member) == member for number in owned), (
                "given while another member has it"
            )
        assert sum(map(len, dealt.values())) == len(set().union(*dealt.values()))
        held = dealt
        if set().union(*held.values()) == numbers:
            return held, generation
    raise AssertionError(f"never settled: {held}")


def test_a_number_is_given_only_when_nobody_has_it_and_all_shares_get_equal() -> None:
    """Protects against two owners, unread partitions and unfair shares, whichever members come and go."""
    chance = random.Random(5)
    numbers = set(range(12))
    held = {"a": NOBODY}
    for step in range(300):
        if len(held) > 1 and chance.random() < 0.45:
            del held[chance.choice(sorted(held))]
        else:
            held[f"{chance.random()}"] = set()
        before = dict(held)
        held, generations = settle(numbers, held)
        sizes = sorted(map(len, held.values()))
        assert sizes[-1] - sizes[0] <= 1, step
        assert generations <= 2
        for member, owned in before.items():
            # Members keep as many numbers as fairness allows.
            assert len(held[member] & owned) >= min(len(owned), len(numbers) // len(held))


def test_who_was_put_out_is_not_believed() -> None:
    """Protects against an endless rebalance: a claim from an earlier generation does not take a partition
    from its owner."""
    claims = {"back again": (3, {0, 1}), "owner": (7, {0, 1, 2, 3})}
    assert deal({0, 1, 2, 3}, claims) == {"owner": {0, 1}, "back again": NOBODY}
    assert deal({0, 1, 2, 3}, {"back again": (8, NOBODY), "owner": (8, {0, 1})}) == {
        "owner": {0, 1},
        "back again": {2, 3},
    }


def test_what_two_claim_nobody_gets() -> None:
    """Protects against two owners: if two claims are equal, both members have to give up first."""
    assert deal({0, 1}, {"a": (4, {0}), "b": (4, {0})}) == {"a": {1}, "b": NOBODY}


def test_more_members_than_partitions() -> None:
    """Protects small topics: members beyond the number of partitions stand by and take nothing from
    others."""
    assert deal({0}, {"a": (2, NOBODY), "b": (2, {0}), "c": (-1, NOBODY)}) == {
        "a": NOBODY,
        "b": {0},
        "c": NOBODY,
    }
