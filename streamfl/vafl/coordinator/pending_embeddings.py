"""Entities that wait for a newer embedding, or for the learning quorum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["PendingEmbeddings"]


class PendingEmbeddings:
    """Since when each entity waits, by name and by row.

    seconds: how long an entity waits.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, float] = {}
        # Whether the names are in order of their times.
        self._in_order = True
        self._by_row = np.zeros(0)

    def __contains__(self, name: str) -> bool:
        return name in self._since

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._since)

    @property
    def wake_at(self) -> float | None:
        """When the entity that has waited longest is overdue."""
        return next(iter(self._ordered().values())) + self._seconds if self._since else None

    def since(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """Since when each row waits, in seconds; NaN where it does not wait."""
        return self._by_row.take(rows)

    def blank(self, rows: Sequence[int], capacity: int) -> None:
        """Clear rows that were given to new entities. capacity: the number of rows."""
        if capacity > len(self._by_row):
            self._by_row = np.concatenate([self._by_row, np.full(capacity - len(self._by_row), np.nan)])
        self._by_row[rows] = np.nan

    def settle(
        self,
        names: Sequence[str],
        rows: NDArray[np.intp],
        now: float,
        asked: NDArray[np.bool_],
        waits: NDArray[np.bool_],
    ) -> None:
        """Start and stop waiting. The time starts anew where an embedding is asked for, and goes on for
        others that already wait.

        asked: a newer embedding was asked for just now.
        waits: something is awaited.
        """
        by_row = self._by_row.take(rows)
        for place in np.flatnonzero(asked | (waits == np.isnan(by_row))).tolist():
            self._since.pop(names[place], None)
            by_row[place] = np.nan
            if asked[place] or waits[place]:
                self._since[names[place]] = by_row[place] = now
        self._by_row[rows] = by_row

    def put(self, name: str, row: int, since: float) -> None:
        """Set since when an entity waits."""
        self._since[name] = self._by_row[row] = since
        self._in_order = False

    def not_later_than(self, name: str, row: int, now: float) -> None:
        """Move a start after ``now`` back to ``now``: the clock was ahead."""
        if name in self._since:
            self.put(name, row, min(self._since[name], now))

    def remove(self, name: str) -> None:
        """Forget an entity."""
        self._since.pop(name, None)

    def overdue(self, now: float) -> list[str]:
        """Names of entities that have waited for their time, sorted by start and then by name: a restore may
        change the order."""
        due = []
        for name, since in self._ordered().items():
            if since + self._seconds > now:
                break
            due.append((since, name))
        return [name for _, name in sorted(due)]

    def give_up(self, names: Sequence[str], rows: NDArray[np.intp]) -> None:
        """End the waiting of these entities."""
        self._by_row[rows] = np.nan
        for name in names:
            del self._since[name]

    def _ordered(self) -> dict[str, float]:
        if not self._in_order:
            self._since = dict(sorted(self._since.items(), key=lambda item: item[1]))
            self._in_order = True
        return self._since
