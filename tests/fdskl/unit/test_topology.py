"""Trees, stars and rings: each part arrives once, in as many hops and messages as the formulas say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from streamfl.fdskl.sums.topology import Aggregation, aggregation, hops, totally_different

KINDS: tuple[Any, ...] = ("tree", "star", "ring")


def every() -> Iterator[tuple[Any, int, int]]:
    yield from (
        (kind, parties, root) for kind in KINDS for parties in (*range(1, 10), 16) for root in range(parties)
    )


def delivered(tree: Aggregation, taking_part: set[int]) -> tuple[list[int], int, int]:
    """Messages as a network brings them: a worker sends once it has heard all its children. Returns what is
    in the root's sum, how many messages there were, and after how many hops the last one was there.
    """
    held = {worker: [worker] for worker in taking_part}
    waits = {worker: sum(tree.parent[other] == worker for other in taking_part) for worker in taking_part}
    sent, round_trips = set[int](), 0
    while ready := [worker for worker in taking_part - sent - {tree.root} if not waits[worker]]:
        round_trips += 1
        for worker in ready:
            parent = tree.parent[worker]
            assert parent is not None
            held[parent] += held[worker]
            waits[parent] -= 1
        sent.update(ready)
    return sorted(held[tree.root]), len(sent), round_trips


def test_every_part_arrives_once_in_the_hops_and_messages_of_the_formulas() -> None:
    """Protects the sum, and the comparison of topologies: delivered message by message, for up to 16 parties
    and any root."""
    for kind, parties, root in every():
        tree = aggregation(kind, parties, root)
        parts, sent, steps = delivered(tree, set(range(parties)))
        assert parts == list(range(parties))
        assert sent == tree.messages == parties - 1
        assert steps == tree.hops == hops(kind, parties)
        assert tree.root == root
        assert tree.below(root) == set(range(parties))


def test_the_formulas_are_those_of_the_paper() -> None:
    """Protects Figure 4: a tree takes the logarithm of the parties, and not their number."""
    for parties in range(2, 200):
        assert hops("tree", parties) == 1 + math.floor(math.log2(parties - 1))
        assert hops("star", parties) == 1
        assert hops("ring", parties) == parties - 1


def test_a_second_tree_is_over_all_but_the_owner() -> None:
    """Protects the subtraction of masks: each other's is there once, the owner neither sends nor is waited
    for, in as many messages as a first tree over so many, and in no more hops than the first.
    """
    for kind, parties, root in every():
        for owner in range(parties):
            if owner == root:
                continue
            tree = aggregation(kind, parties, root, owner, second=True)
            parts, sent, steps = delivered(tree, set(range(parties)) - {owner})
            assert parts == [worker for worker in range(parties) if worker != owner]
            assert sent == tree.messages == parties - 2
            assert steps == tree.hops <= hops(kind, parties)
            assert tree.parent[owner] is None
            assert tree.children[owner] == ()


def test_the_two_trees_are_totally_different() -> None:
    """Protects what the paper asks of them (Definition 2), for any number of parties, any root and any
    owner."""
    for _, parties, root in filter(lambda one: one[0] == "tree", every()):
        first = aggregation("tree", parties, root)
        for owner in set(range(parties)) - {root}:
            assert totally_different(first, aggregation("tree", parties, root, owner, second=True)), (
                parties,
                root,
                owner,
            )


def test_trees_with_a_common_subtree_are_not_totally_different() -> None:
    """Protects the test above from a comparison that always says yes: by hand, on four workers."""

    def tree(*parent: int | None) -> Aggregation:
        children = tuple(
            tuple(one for one, to in enumerate(parent) if to == worker) for worker in range(len(parent))
        )
        return Aggregation(parent.index(None), tuple(parent), children, 0, 0)

    first = tree(None, 0, 0, 2)
    # 2 and 3 in both, the one way or the other; all the same but for one part; and none in common.
    assert not totally_different(first, Aggregation(0, (None, None, 3, 0), ((3,), (), (), (2,)), 2, 2))
    assert not totally_different(first, Aggregation(0, (None, None, 0, 2), ((2,), (), (3,), ()), 2, 2))
    assert not totally_different(first, Aggregation(0, (None, 0, 0, None), ((1, 2), (), (), ()), 1, 2))
    assert totally_different(first, Aggregation(0, (None, None, 0, 0), ((2, 3), (), (), ()), 1, 2))


def test_the_root_hears_one_message_of_a_tree() -> None:
    """Protects parts from the active party's subtraction of one message from another."""
    for kind, parties, root in every():
        if kind != "star" and parties > 1:
            assert len(aggregation(kind, parties, root).children[root]) == 1


def test_what_is_no_topology_is_refused() -> None:
    """Protects a role from a tree over the wrong parties: T2 is without one that is not the root, T1 without
    nobody."""
    wrong: list[tuple[Any, ...]] = [
        ("tree", 4, 4),
        ("tree", 4, -1),
        ("tree", 0, 0),
        ("tree", 4, 0, 1, False),
        ("tree", 4, 0, None, True),
        ("tree", 4, 0, 0, True),
        ("tree", 4, 0, 4, True),
        ("mesh", 4, 0),
    ]
    for one in wrong:
        with pytest.raises(ValueError):
            aggregation(*one)
