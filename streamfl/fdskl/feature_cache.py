"""Features of labelled entities that the active party keeps in memory, so that it need not ask for them again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.messages import FeatureRange

__all__ = ["FeatureCache"]

FEWEST_ROWS = 64


class FeatureCache:
    """phi of some entities for kept features, in blocks. It is not remembered: after a restart it fills as blocks are asked for.

    block: features of a block, R.
    limit: features that are kept at most, C, a multiple of R.
    size: bytes at most; an entity takes 4 C.
    """

    def __init__(self, block: int, limit: int, size: int) -> None:
        self._block = block
        self._limit = limit
        self._most = size // (4 * limit)
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._features = np.zeros((0, limit), np.float32)
        # By row and place of a block, the number of the block that is there; below 0: none.
        self._blocks = np.zeros((0, limit // block), np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def has(self, entities: Sequence[str], blocks: Sequence[FeatureRange]) -> NDArray[np.bool_]:
        """Whether all of these blocks are there, (n,)."""
        numbers = np.array([one.first // self._block for one in blocks], np.int64)
        rows = np.array([self._rows.get(entity, -1) for entity in entities], np.intp)
        found = np.full(len(entities), not blocks)
        here = rows >= 0
        held = self._blocks[rows[here, np.newaxis], numbers % self._blocks.shape[1]]
        found[here] = (held == numbers).all(axis=1)
        return found

    def get(self, entities: Sequence[str], block: FeatureRange) -> NDArray[np.float32]:
        """Features of a block, of entities that have it, (n, R)."""
        rows = np.array([self._rows[entity] for entity in entities], np.intp)
        return np.asarray(self._features[rows[:, np.newaxis], self._columns(block.first, block.count)])

    def put(self, entities: Sequence[str], ranges: Sequence[FeatureRange], features: NDArray[np.float32]) -> None:
        """Keep features of whole blocks, (n, features), of as many entities as there is room for."""
        rows = [self._row(entity) for entity in entities]
        kept = [place for place, row in enumerate(rows) if row is not None]
        if not kept:
            return
        numbers = np.concatenate([np.arange(one.first, one.first + one.count, self._block) for one in ranges]) // self._block
        # A new block and the one that gives way to it have one place.
        latest: dict[int, int] = {}
        for place in np.argsort(numbers).tolist():
            latest[int(numbers[place]) % self._blocks.shape[1]] = place
        chosen = list(latest.values())
        here = np.array([row for row in rows if row is not None], np.intp)[:, np.newaxis]
        columns = np.concatenate([self._columns(int(one) * self._block, self._block) for one in numbers[chosen]])
        self._features[here, columns] = features.reshape(len(entities), -1, self._block)[kept][:, chosen].reshape(len(kept), -1)
        self._blocks[here, list(latest)] = numbers[chosen]

    def keep_only(self, entities: Sequence[str]) -> None:
        """Forget all others."""
        kept = set(entities)
        for entity in [one for one in self._rows if one not in kept]:
            self.forget(entity)

    def forget(self, entity: str) -> None:
        """The entity is gone, or has other columns now."""
        if (row := self._rows.pop(entity, None)) is not None:
            self._free.append(row)

    def _columns(self, first: int, count: int) -> NDArray[np.intp]:
        return np.arange(first, first + count) % self._limit

    def _row(self, entity: str) -> int | None:
        """Where the entity's features are, or may be; None: there is no room."""
        if (row := self._rows.get(entity)) is not None:
            return row
        if len(self._rows) >= self._most:
            return None
        if not self._free:
            old = len(self._features)
            more = max(FEWEST_ROWS, min(old, self._most - old))
            self._features = np.concatenate([self._features, np.zeros((more, self._limit), np.float32)])
            self._blocks = np.concatenate([self._blocks, np.full((more, self._blocks.shape[1]), -1, np.int64)])
            self._free = list(range(old + more - 1, old - 1, -1))
        row = self._rows[entity] = self._free.pop()
        self._blocks[row] = -1
        return row
