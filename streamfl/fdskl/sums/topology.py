"""Who sends partial sums to whom: trees, stars and rings that end at the active party.

Under the paper's masks a feature's phase needs two sums, of masked parts over T1 and of masks over T2
(Algorithm 3). The paper requires T1 and T2 to be totally different (Definition 2). This is not enough: a
worker that receives a leaf's part in T1 and the leaf's mask in T2 can unmask the part, and so can one that
gets both by subtraction. What counts is the rank of all that a worker receives. One-time
masks need no T2.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["Aggregation", "aggregation", "hops", "totally_different"]

Kind = Literal["tree", "star", "ring"]


@dataclass(frozen=True)
class Aggregation:
    """Each worker adds what its children sent to its own, and sends the sum to its parent.

    root: where the sum ends.
    parent: by worker; None for the root, and for one that takes no part.
    children: by worker, in the order in which they are added.
    hops: messages of the longest chain in which each waits for the one before.
    messages: how many in all.
    """

    root: int
    parent: tuple[int | None, ...]
    children: tuple[tuple[int, ...], ...]
    hops: int
    messages: int

    def below(self, worker: int) -> frozenset[int]:
        """The workers whose parts are in the sum that this worker sends, itself included."""
        return frozenset((worker,)).union(*(self.below(child) for child in self.children[worker]))


def aggregation(
    kind: Kind, parties: int, root: int, without: int | None = None, second: bool = False
) -> Aggregation:
    """T1 over all parties; with ``second``, T2 over all but ``without``, for the masks of a feature that this
    party owns.

    - tree: in T1 the others are paired up, pairs are paired up, and the last sends to the root: its only
      message, from three parties on. A worker other than the root that receives something in T1 receives
      nothing in T2, so that no part meets its mask. The two are totally different for any number of parties,
      any root and any owner: T1 depends on the root, because with one T1 for all roots there is no T2 of
      three parties. With two parties T2 is the root alone, which receives nothing. Where T1 without the owner
      is a subtree of T1 (2^k + 2 parties, the owner the last), T2 comes to the root in two halves.
    - ring: T1 runs up from the worker after the root to the root, T2 runs down. Not totally different where
      the owner is the last of T1, but without unmasked combinations.
    - star: all send to the root, in both. Under the paper's masks it subtracts each one's mask from its part:
      for comparison only.

    kind: of T1 and T2.
    parties: how many, one or more.
    root: the active party.
    without: p', the feature's owner, any party but the root; only with ``second``.
    second: whether to return T2.
    """
    if not 0 <= root < parties:
        raise ValueError(f"the root {root} is not among {parties} parties")
    if second != (without is not None) or without == root or not 0 <= (without or 0) < parties:
        raise ValueError(
            f"T2 is over all but one other than the root, and T1 over all: not without {without}"
        )
    others = [(root + step) % parties for step in range(1, parties)]
    if kind == "star":
        return _made(parties, root, {other: root for other in others if other != without})
    if kind == "ring":
        line = [other for other in (reversed(others) if second else others) if other != without]
        return _made(parties, root, dict(zip(line, [*line[1:], root], strict=False)))
    if kind == "tree":
        first = _made(parties, root, _paired(others, root))
        return first if without is None else _second_tree(first, others, without)
    raise ValueError(f"{kind!r} is not one of tree, star, ring")


def hops(kind: Kind, parties: int) -> int:
    """Hops of T1: 1 + floor(log2(parties - 1)) of a tree, 1 of a star, parties - 1 of a ring; 0 for one party
    alone."""
    return {"tree": (parties - 1).bit_length(), "star": min(parties - 1, 1), "ring": parties - 1}[kind]


def totally_different(first: Aggregation, second: Aggregation) -> bool:
    """Whether no subtree of more than one leaf is in both (Definition 2).

    The workers are the leaves. Each adds its children's sums one after the other. Every sum on the way is a
    subtree, identified by its leaves: trees over the same leaves count as the same, whatever their order,
    which is stricter than the paper.
    """
    return _subtrees(first).isdisjoint(_subtrees(second))


def _made(parties: int, root: int, parent: dict[int, int]) -> Aggregation:
    children = tuple(tuple(one for one, to in parent.items() if to == worker) for worker in range(parties))

    def depth(worker: int) -> int:
        return max((1 + depth(child) for child in children[worker]), default=0)

    return Aggregation(
        root, tuple(parent.get(worker) for worker in range(parties)), children, depth(root), len(parent)
    )


def _paired(line: list[int], root: int) -> dict[int, int]:
    """Neighbours in pairs, pairs of pairs, and so on, the first of each receiving; the first of all sends to
    the root."""
    # An index without its lowest set bit is the index of the first of its pair.
    return {worker: line[index & (index - 1)] if index else root for index, worker in enumerate(line)}


def _second_tree(first: Aggregation, others: list[int], without: int) -> Aggregation:
    parties, root = len(first.parent), first.root
    deaf = [other for other in others if other != without and not first.children[other]]
    hearing = [other for other in others if other != without and first.children[other]]
    # Except with few parties, one rotation of one list against the other separates the pairs of T1.
    for halves, turn, shift in itertools.product(
        (False, True), range(len(deaf) or 1), range(len(hearing) or 1)
    ):
        late, free = hearing[shift:] + hearing[:shift], deaf[turn:] + deaf[:turn]
        # A worker at an even place may receive something, except at the last place, which has no worker
        # behind it.
        line = [
            (free or late).pop(0) if place % 2 == 0 else (late or free).pop(0)
            for place in range(len(deaf) + len(hearing))
        ]
        parent = _paired(line, root)
        if halves:
            parent[line[1 << (len(line) - 1).bit_length() - 1]] = root
        second = _made(parties, root, parent)
        if totally_different(first, second):
            return second
    raise AssertionError(f"no T2 for {parties} parties without {without}")


def _subtrees(tree: Aggregation) -> set[frozenset[int]]:
    return set(_sums(tree, tree.root))


def _sums(tree: Aggregation, worker: int) -> Iterator[frozenset[int]]:
    """The leaves of each sum on the way to the worker's, of two or more."""
    leaves = frozenset((worker,))
    for child in tree.children[worker]:
        yield from _sums(tree, child)
        leaves |= tree.below(child)
        yield leaves
