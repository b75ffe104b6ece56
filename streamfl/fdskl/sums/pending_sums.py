"""Sums that a party collects: its own part and the sums of the parties below it, until all are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.fdskl.messages import PartialSum, Round
from streamfl.fdskl.sums.topology import Aggregation, Kind, aggregation

__all__ = ["FIRST_MASK_STAGE", "STAGES", "SUM", "Key", "PendingSum", "PendingSums", "Stage", "trees_of"]

Key = tuple[int, int]
"""Names a round: the incarnation of the active party that asks, and the round's number in it."""

# Stages of the first active party's rounds are below this number. The next ``STAGES`` numbers are the
# second's, and so on.
STAGES = 128
# The sum of a round itself.
SUM = 1
# With mask = "paper" the masks of features that party p owns are summed in stage FIRST_MASK_STAGE + p.
FIRST_MASK_STAGE = SUM + 1


def trees_of(kind: Kind, parties: int, actives: Sequence[int], paper: bool) -> dict[int, Aggregation]:
    """The topology of each stage of a round, by stage. paper: whether the masks of features are summed
    too."""
    root = actives[0]
    trees = {STAGES * place + SUM: aggregation(kind, parties, active) for place, active in enumerate(actives)}
    if paper:
        others = [party for party in range(parties) if party != root]
        trees |= {
            FIRST_MASK_STAGE + owner: aggregation(kind, parties, root, without=owner, second=True)
            for owner in others
        }
    return trees


@dataclass
class Stage:
    """One of a round's sums so far. values: None if nothing came yet. contributors: the parties in it."""

    values: NDArray[Any] | None = None
    known: NDArray[np.uint8] | None = None
    contributors: set[int] = field(default_factory=set)

    def add(self, values: NDArray[Any], known: NDArray[np.uint8], contributors: Sequence[int]) -> None:
        """Add a part, modulo the size of its numbers. Once the parts of all parties are in, their masks have
        cancelled."""
        self.values = values.copy() if self.values is None else self.values + values
        self.known = known.copy() if self.known is None else self.known + known
        self.contributors.update(contributors)


@dataclass
class PendingSum:
    """A round that this party takes part in.

    since: when it was announced.
    announced, identity: of the round.
    total: the stage of the round's own sum, which says whose round it is.
    missing: entities whose own columns have not come.
    answered: whether the own part is in.
    sent: stages whose sum was sent on.
    """

    since: float
    announced: Round
    identity: bytes
    total: int = SUM
    missing: set[str] = field(default_factory=set)
    answered: bool = False
    stages: dict[int, Stage] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)

    def stage(self, number: int) -> Stage:
        return self.stages.setdefault(number, Stage())


class PendingSums:
    """The rounds of one partition that are under way. They are not remembered: a restart abandons them.

    own: this party's place among all.
    trees: by stage, who adds whose sums.
    limit: most rounds. Beyond it the oldest is given up.
    abandon: called with each round that is given up, and the reason.
    """

    def __init__(
        self,
        own: int,
        trees: dict[int, Aggregation],
        limit: int,
        abandon: Callable[[Key, PendingSum, str], None],
    ) -> None:
        self._own = own
        self._trees = trees
        self._limit = limit
        self._abandon = abandon
        self._rounds: dict[Key, PendingSum] = {}
        self._subtrees = {stage: _subtrees(tree) for stage, tree in trees.items()}

    def __len__(self) -> int:
        return len(self._rounds)

    def get(self, key: Key) -> PendingSum | None:
        return self._rounds.get(key)

    @property
    def oldest(self) -> float | None:
        """When the oldest round was announced."""
        return next(iter(self._rounds.values())).since if self._rounds else None

    def all(self) -> list[tuple[Key, PendingSum]]:
        """The rounds, the oldest first."""
        return list(self._rounds.items())

    def owing(self) -> dict[int, list[int]]:
        """The parties directly below this one whose sums have not come, each with those whose parts it
        passes on."""
        found = {}
        for _, pending in self.all():
            stage, below = pending.stages.get(pending.total), self._subtrees[pending.total]
            for child in self._trees[pending.total].children[self._own]:
                if stage is None or child not in stage.contributors:
                    found[child] = [party for party in below[child] if party != child]
        return found

    def waiting(self) -> Iterator[tuple[Key, PendingSum]]:
        """Rounds without the own part, the oldest first."""
        for key, pending in self.all():
            if not pending.answered:
                yield key, pending

    def begin(self, key: Key, pending: PendingSum) -> None:
        """Take part in a round that has not been announced before."""
        self._rounds[key] = pending
        if len(self._rounds) > self._limit:
            self.abandon(next(iter(self._rounds)), "displaced")

    def end(self, key: Key) -> None:
        """Forget a round whose sums were sent on or opened."""
        del self._rounds[key]

    def abandon(self, key: Key, reason: str) -> None:
        self._abandon(key, self._rounds.pop(key), reason)

    def abandon_all(self, reason: str, but: int | None = None, root: int | None = None) -> None:
        """Give up every round except those of the incarnation ``but``. root: only rounds that this active
        party asks."""
        for key, pending in self.all():
            if key[0] != but and root in (None, self.root_of(pending)):
                self.abandon(key, reason)

    def root_of(self, pending: PendingSum) -> int:
        """The active party that asks, where the round's sums end."""
        return self._trees[pending.total].root

    def expire(self, seconds: float, now: float) -> None:
        """Give up rounds that were announced ``seconds`` ago or earlier."""
        for key, pending in self.all():
            if pending.since + seconds <= now:
                self.abandon(key, "timeout")

    def set_back(self, now: float) -> None:
        """The clock was ahead: set later times back to ``now``."""
        for pending in self._rounds.values():
            pending.since = min(pending.since, now)

    def check_sender(self, party: int, message: PartialSum) -> None:
        """BadRecord unless this is the complete sum of a party directly below this one."""
        tree = self._trees.get(message.stage)
        if tree is None or party not in tree.children[self._own]:
            raise BadRecord(
                "topology", f"{message.sender!r} is not below this party in stage {message.stage} of a sum"
            )
        if message.contributors != self._subtrees[message.stage][party]:
            raise BadRecord(
                "topology",
                f"a sum of parties {message.contributors[:16]}, not of {message.sender!r} and all below it",
            )

    def add(self, pending: PendingSum, party: int, message: PartialSum, size: int, dtype: Any) -> bool:
        """Add a sum from below. Returns False for one that is in already. BadRecord for another round's, or
        wrong sizes."""
        if message.round != pending.identity:
            raise BadRecord(
                "configuration", f"a sum of {message.sender!r} of another round of the same number"
            )
        before = pending.stages.get(message.stage)
        if before is not None and party in before.contributors:
            return False
        width = np.dtype(dtype).itemsize
        if len(message.values) != size * width or len(message.known) != len(pending.announced.entities):
            raise BadRecord(
                "shape",
                f"a sum of {len(message.values)} bytes of {message.sender!r}: {size * width} are expected",
            )
        values = np.frombuffer(message.values, np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=False)
        known = np.frombuffer(message.known, np.uint8)
        if known.max(initial=0) > len(message.contributors):
            raise BadRecord(
                "implausible",
                f"a sum of {message.sender!r} says that more parties know an entity than are in it",
            )
        pending.stage(message.stage).add(values, known, message.contributors)
        return True

    def is_whole(self, pending: PendingSum, stage: int) -> bool:
        """Whether the own part and the parts of all parties below are in."""
        return pending.answered and not self.lacking(pending, stage)

    def lacking(self, pending: PendingSum, stage: int) -> list[int]:
        """Of this party and those below it, the ones whose part is not in."""
        return [
            one for one in self._subtrees[stage][self._own] if one not in pending.stage(stage).contributors
        ]


def _subtrees(tree: Aggregation) -> list[list[int]]:
    """By party, the parties whose parts are in its sum, in order."""

    def below(party: int) -> list[int]:
        return sorted([party, *(one for child in tree.children[party] for one in below(child))])

    return [below(party) for party in range(len(tree.parent))]
