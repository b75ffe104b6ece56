"""Features of labelled entities that the active party keeps in memory, so that it need not ask for them again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["FeatureCache"]

FEWEST_ROWS = 64


class FeatureCache:
    """phi of some entities for all kept features. It is not remembered: a restart asks anew.

    limit: features that are kept at most, C.
    size: bytes at most; an entity takes 4 C.
    """

    def __init__(self, limit: int, size: int) -> None:
        self._limit = limit
        self._most = size // (4 * limit)
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._features = np.zeros((0, limit), np.float32)
        # By row, the feature after the last that is there.
        self._next = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def has(self, entities: Sequence[str], upto: int) -> NDArray[np.bool_]:
        """Whether all kept features before ``upto`` are there, (n,)."""
        return np.array([(row := self._rows.get(entity)) is not None and self._next[row] >= upto for entity in entities], np.bool_)

    def get(self, entities: Sequence[str], first: int, count: int) -> NDArray[np.float32]:
        """Features ``first`` to ``first + count - 1`` of entities that have them, (n, count)."""
        rows = np.array([self._rows[entity] for entity in entities], np.intp)
        return np.asarray(self._features[rows[:, np.newaxis], self._columns(first, count)])

    def put(self, entities: Sequence[str], first: int, features: NDArray[np.float32]) -> None:
        """Keep features from ``first`` on, (n, count), of as many entities as there is room for."""
        count = features.shape[1]
        columns = self._columns(first, count)
        for entity, own in zip(entities, features, strict=True):
            row = self._rows.get(entity)
            if row is None:
                row = self._new_row(entity)
                if row is None:
                    continue
            self._features[row, columns] = own
            self._next[row] = first + count

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

    def _new_row(self, entity: str) -> int | None:
        if len(self._rows) >= self._most:
            return None
        if not self._free:
            old = len(self._features)
            more = max(FEWEST_ROWS, min(old, self._most - old))
            self._features = np.concatenate([self._features, np.zeros((more, self._limit), np.float32)])
            self._next = np.concatenate([self._next, np.zeros(more, np.int64)])
            self._free = list(range(old + more - 1, old - 1, -1))
        row = self._rows[entity] = self._free.pop()
        self._next[row] = 0
        return row
