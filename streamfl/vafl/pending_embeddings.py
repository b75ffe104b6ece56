"""Entities of which a newer embedding, or the learning quorum, is awaited."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["PendingEmbeddings"]


class PendingEmbeddings:
    """Since when, by name and by row.

    seconds: how long it is waited for.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, float] = {}
        # Whether the one that waits longest is the first.
        self._in_order = True
        self._by_row = np.zeros(0)

    def __contains__(self, name: str) -> bool:
        return name in self._since

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._since)

    @property
    def wake_at(self) -> float | None:
        """When the one that waits longest has waited for long enough."""
        return next(iter(self._ordered().values())) + self._seconds if self._since else None

    def since(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """Since when, in seconds; NaN where nothing is awaited."""
        return self._by_row.take(rows)

    def blank(self, rows: Sequence[int], capacity: int) -> None:
        """New entities were given these rows. capacity: of how many there are."""
        if capacity > len(self._by_row):
            self._by_row = np.concatenate([self._by_row, np.full(capacity - len(self._by_row), np.nan)])
        self._by_row[rows] = np.nan

    def settle(
        self, names: Sequence[str], rows: NDArray[np.intp], now: float, asked: NDArray[np.bool_], waits: NDArray[np.bool_]
    ) -> None:
        """Which of these entities wait from now on. Who is asked has the whole time from now; others have it since they began.

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
        """Whatever was known before, it is awaited since then."""
        self._since[name] = self._by_row[row] = since
        self._in_order = False

    def not_later_than(self, name: str, row: int, now: float) -> None:
        """The clock was ahead: what is awaited since later than now is awaited since now."""
        if name in self._since:
            self.put(name, row, min(self._since[name], now))

    def remove(self, name: str) -> None:
        """The entity is forgotten."""
        self._since.pop(name, None)

    def overdue(self, now: float) -> list[str]:
        """Names of those that have waited for long enough. Those of one moment by name: they may be restored in another order."""
        due = []
        for name, since in self._ordered().items():
            if since + self._seconds > now:
                break
            due.append((since, name))
        return [name for _, name in sorted(due)]

    def give_up(self, names: Sequence[str], rows: NDArray[np.intp]) -> None:
        """These wait no longer."""
        self._by_row[rows] = np.nan
        for name in names:
            del self._since[name]

    def _ordered(self) -> dict[str, float]:
        if not self._in_order:
            self._since = dict(sorted(self._since.items(), key=lambda item: item[1]))
            self._in_order = True
        return self._since
