"""What each worker can combine of all that it hears: the rank that Definition 2 and Lemma 8 of the paper are
meant to bound."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from fdskl.combinations import unmasked_combinations

from streamfl.fdskl.sums.topology import Aggregation, aggregation, totally_different

PARTIES = (2, 3, 4, 5, 6, 8, 9, 16)


def test_one_time_masks_leave_the_answer_alone() -> None:
    """Protects columns: in every topology, for up to 16 parties, the active party has one combination without
    masks, which is the answer, and nobody else has any.
    """
    for kind, parties in itertools.product(("tree", "star", "ring"), PARTIES):
        for root in {0, 1, parties - 1}:
            tree = aggregation(kind, parties, root)  # type: ignore[arg-type]
            found = [unmasked_combinations(worker, "one-time", tree) for worker in range(parties)]
            assert found == [int(worker == root) for worker in range(parties)], (kind, parties, root)


@pytest.mark.parametrize("kind", ["tree", "ring"])
def test_the_papers_masks_leave_the_answer_alone_on_trees_and_reversed_rings(kind: Any) -> None:
    """Protects the comparison with the paper: whoever owns the feature, for up to 16 parties and any root."""
    for parties in PARTIES:
        for root, owner in itertools.permutations(range(parties), 2):
            first = aggregation(kind, parties, root)
            second = aggregation(kind, parties, root, owner, second=True)
            found = [
                unmasked_combinations(worker, "paper", first, second, owner) for worker in range(parties)
            ]
            assert found == [int(worker == root) for worker in range(parties)], (parties, root, owner)


def test_a_star_leaks_under_the_papers_masks() -> None:
    """Protects users of a star from believing in them: the active party has each part but the owner's alone,
    besides the answer."""
    for parties in PARTIES:
        first, second = aggregation("star", parties, 0), aggregation("star", parties, 0, 1, second=True)
        assert unmasked_combinations(0, "paper", first, second, 1) == 1 + (parties - 2)
        assert all(
            unmasked_combinations(worker, "paper", first, second, 1) == 0 for worker in range(1, parties)
        )


def test_without_masks_all_that_is_heard_is_seen() -> None:
    """Protects the count from one that finds nothing: each message is a combination."""
    for kind, parties in itertools.product(("tree", "star", "ring"), PARTIES):
        tree = aggregation(kind, parties, 0)  # type: ignore[arg-type]
        found = [unmasked_combinations(worker, "none", tree) for worker in range(parties)]
        assert found == [len(children) for children in tree.children]


def test_two_rings_in_one_direction_leak() -> None:
    """Protects the reversal: with T2 in the direction of T1 some worker hears the same neighbour's sum and
    masks."""
    parties, leaking = 8, 0
    first = aggregation("ring", parties, 0)
    for owner in range(1, parties):
        line = [worker for worker in range(1, parties) if worker != owner]
        parent = dict(zip(line, [*line[1:], 0], strict=True))
        children = tuple(
            tuple(one for one, to in parent.items() if to == worker) for worker in range(parties)
        )
        second = Aggregation(
            0, tuple(parent.get(worker) for worker in range(parties)), children, len(line), len(line)
        )
        found = [unmasked_combinations(worker, "paper", first, second, owner) for worker in range(parties)]
        leaking += found != [1] + [0] * (parties - 1)
    assert leaking >= 5


def test_totally_different_trees_can_leak() -> None:
    """Protects the reason for the rank: 1 and 2 send to 0 in T1, 2 alone in T2. No subtree is in both, and 0
    has the part of 2."""
    first = aggregation("star", 3, 0)
    second = Aggregation(0, (None, None, 0), ((2,), (), ()), 1, 1)
    assert unmasked_combinations(0, "paper", first, second, 1) == 2
    # 0 adds 1 first: {0, 1} and {0, 1, 2} are not in T2, which has {0, 2} alone.
    assert totally_different(first, second)
