"""Features that the active party keeps in memory, so that it need not ask for them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.messages import FeatureRange

__all__ = ["FeatureCache"]

FEWEST_ROWS = 64


class FeatureCache:
    """phi of some entities for kept features, in blocks. It is not remembered: after a restart it fills as
    blocks are asked for.

    Predicted entities without a label use the room that labelled ones leave, and are dropped when these need
    it.

    block: features of a block, R.
    limit: most features kept, C, a multiple of R.
    size: most bytes; an entity takes 4 C.
    """

    def __init__(self, block: int, limit: int, size: int) -> None:
        self._block = block
        self._limit = limit
        self._most = size // (4 * limit)
        self._rows: dict[str, int] = {}
        # The entities without a label, the one that has been there longest first.
        self._unlabelled: dict[str, None] = {}
        self._free: list[int] = []
        self._features = np.zeros((0, limit), np.float32)
        # By row and place of a block, the number of the block that is there; below 0: none.
        self._blocks = np.zeros((0, limit // block), np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def rows_of(self, entities: Sequence[str]) -> NDArray[np.intp]:
        """Rows of entities, (n,), valid until others are put or forgotten; below 0: they are not here."""
        find = self._rows.get
        return np.fromiter((find(entity, -1) for entity in entities), np.intp, len(entities))

    def has(self, rows: NDArray[np.intp], blocks: Sequence[FeatureRange]) -> NDArray[np.bool_]:
        """Whether all of these blocks are here, (n,)."""
        numbers = np.array([one.first // self._block for one in blocks], np.int64)
        found = np.full(len(rows), not blocks)
        here = rows >= 0
        held = self._blocks[rows[here, np.newaxis], numbers % self._blocks.shape[1]]
        found[here] = (held == numbers).all(axis=1)
        return found

    def get(self, rows: NDArray[np.intp], blocks: Sequence[FeatureRange]) -> list[NDArray[np.float32]]:
        """Features of these blocks, (n, R) each, of entities that have them."""
        return [self._features[rows, self._columns(block.first)] for block in blocks]

    def put(
        self,
        entities: Sequence[str],
        ranges: Sequence[FeatureRange],
        features: NDArray[np.float32],
        labelled: bool = True,
    ) -> None:
        """Keep features of whole blocks, (n, features), of as many entities as there is room for."""
        rows = [self._row(entity, labelled) for entity in entities]
        kept = np.array([row is not None for row in rows], np.bool_)
        if not kept.any():
            return
        here = np.array([row for row in rows if row is not None], np.intp)
        if not kept.all():
            features = features[kept]
        at, places = 0, []
        for one in ranges:
            places += [
                (first, at + first - one.first)
                for first in range(one.first, one.first + one.count, self._block)
            ]
            at += one.count
        # A new block and the one that it replaces have the same place.
        for first, place in sorted(places):
            self._features[here, self._columns(first)] = features[:, place : place + self._block]
            self._blocks[here, first // self._block % self._blocks.shape[1]] = first // self._block

    def label(self, entity: str) -> None:
        """The entity has a label now: it is not dropped for others."""
        self._unlabelled.pop(entity, None)

    def keep_only(self, entities: Iterable[str]) -> None:
        """Forget all labelled entities but these."""
        kept = set(entities)
        for entity in [one for one in self._rows if one not in kept and one not in self._unlabelled]:
            self.forget(entity)

    def forget(self, entity: str) -> None:
        """The entity is gone, or has other columns now."""
        self._unlabelled.pop(entity, None)
        if (row := self._rows.pop(entity, None)) is not None:
            self._free.append(row)

    def forget_unlabelled(self, entity: str) -> None:
        """Forget an entity whose label is not waited for any more."""
        if entity in self._unlabelled:
            self.forget(entity)

    def _columns(self, first: int) -> slice:
        """The columns of a block."""
        begin = first % self._limit
        return slice(begin, begin + self._block)

    def _row(self, entity: str, labelled: bool) -> int | None:
        """The row for the entity's features, taken if it has none; None: there is no room."""
        if labelled:
            self.label(entity)
        if (row := self._rows.get(entity)) is not None:
            return row
        if len(self._rows) >= self._most:
            if not self._unlabelled:
                return None
            self.forget(next(iter(self._unlabelled)))
        if not self._free:
            old = len(self._features)
            more = max(FEWEST_ROWS, min(old, self._most - old))
            # Memory that was never written costs nothing yet.
            grown = np.empty((old + more, self._limit), np.float32)
            grown[:old] = self._features
            self._features = grown
            self._blocks = np.concatenate(
                [self._blocks, np.full((more, self._blocks.shape[1]), -1, np.int64)]
            )
            self._free = list(range(old + more - 1, old - 1, -1))
        row = self._rows[entity] = self._free.pop()
        self._blocks[row] = -1
        if not labelled:
            self._unlabelled[entity] = None
        return row
