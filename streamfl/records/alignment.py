"""Entities that several streams speak of, a row each in the arrays of whoever remembers something of them.

Records of one entity come from several members, each in its own time, and some never come. So whoever brings them together has to
bound how many entities it remembers, and to forget those of which nothing more comes. This is the part of that which is the same
for every way of bringing them together: which entity has which row, in which order they were heard of, which are too old, and which
changed or are gone since the last commit. What is remembered of an entity is its owner's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

__all__ = ["EntityRows"]

FEWEST_ROWS = 16


class EntityRows:
    """The entities of a partition, the one that was heard of longest ago first.

    limit: so many at most; before a new one is heard of, its owner makes room by forgetting :attr:`oldest`.
    expiry: seconds after an entity was last heard of that it is too old.

    >>> rows = EntityRows(limit=2, expiry=60.0)
    >>> rows.mark(rows.hear(["a", "b"]), now=0.0)
    >>> rows.mark(rows.hear(["a"]), now=30.0)
    >>> list(rows), rows.full, rows.wake_at, next(rows.overdue(now=60.0))
    (['b', 'a'], True, 60.0, ('b', 1))
    """

    def __init__(self, limit: int, expiry: float) -> None:
        self._limit = limit
        self._expiry = expiry
        self._rows: OrderedDict[str, int] = OrderedDict()
        self._free: list[int] = []
        self._given_out: list[int] = []
        self._since = np.zeros(0)
        # Changed since the last commit, and ever committed.
        self._touched = np.zeros(0, np.bool_)
        self._written = np.zeros(0, np.bool_)
        # Forgotten since the last commit, and committed before.
        self._gone: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> int:
        """The row of an entity; KeyError without one."""
        return self._rows[name]

    def get(self, name: str) -> int | None:
        """The row of an entity, if it has one."""
        return self._rows.get(name)

    @property
    def oldest(self) -> str:
        """The entity that was heard of longest ago."""
        return next(iter(self._rows))

    @property
    def full(self) -> bool:
        """Whether there is no room for another one."""
        return len(self._rows) >= self._limit

    def has_room(self, count: int) -> bool:
        """Whether so many new ones have room."""
        return len(self._rows) + count <= self._limit

    @property
    def wake_at(self) -> float | None:
        """When the oldest is too old."""
        return float(self._since[self._rows[self.oldest]]) + self._expiry if self._rows else None

    # ---- hearing of entities

    def hear(self, names: Sequence[str]) -> list[int]:
        """Hear of entities in this order, whether they are known or new: their rows. :meth:`mark` has to follow."""
        rows = self._rows
        for name in names:
            if name in rows:
                rows.move_to_end(name)
            else:
                rows[name] = self._new_row()
        return [rows[name] for name in names]

    def mark(self, rows: Sequence[int] | NDArray[np.intp], now: float) -> None:
        """These were heard of just now, and changed."""
        self._since[rows], self._touched[rows] = now, True

    @property
    def capacity(self) -> int:
        """How many rows an owner's arrays need."""
        return len(self._since)

    def given_out(self) -> list[int]:
        """Rows that new entities were given since the last call. An owner's arrays may still hold something of earlier entities."""
        rows, self._given_out = self._given_out, []
        return rows

    def since(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """When these were last heard of, in seconds."""
        return self._since.take(rows)

    # ---- forgetting entities

    def remove(self, name: str) -> None:
        row = self._rows.pop(name)
        self._free.append(row)
        if self._written[row]:
            self._gone[name] = None

    def overdue(self, now: float) -> Iterator[tuple[str, int]]:
        """Names and rows of those that are too old, the oldest first; each has to be removed before the next is asked for."""
        while self._rows:
            name, row = next(iter(self._rows.items()))
            if self._since[row] + self._expiry > now:
                return
            yield name, row

    def set_back(self, now: float) -> tuple[list[str], NDArray[np.intp]]:
        """Let everything that was heard of after ``now`` have been heard of now: the clock was ahead. Returns names and rows."""
        ahead = [(name, row) for name, row in self._rows.items() if self._since[row] > now]
        for name, _ in ahead:
            self._rows.move_to_end(name)
        rows = np.array([row for _, row in ahead], np.intp)
        self.mark(rows, now)
        return [name for name, _ in ahead], rows

    # ---- state

    @property
    def touched(self) -> bool:
        """Whether anything changed since the last commit."""
        return bool(self._gone) or bool(self._rows and self._touched[next(reversed(self._rows.values()))])

    def take_changed(self) -> tuple[list[str], list[str], NDArray[np.intp]]:
        """What changed since the last call: names that are gone, and names and rows of those that have to be written, in order.

        Entities that were heard of are the youngest. So those that are restored, in the order of the last writing, are in the order
        of age.
        """
        gone = [name for name in self._gone if name not in self._rows]
        self._gone = {}
        touched = self._touched
        names = [name for name, _ in takewhile(lambda item: touched[item[1]], reversed(self._rows.items()))][::-1]
        rows = np.array([self._rows[name] for name in names], np.intp)
        self._touched[rows], self._written[rows] = False, True
        return gone, names, rows

    def restore(self, name: str, since: float) -> int:
        """Take back one that was written, the youngest so far: its row."""
        if name in self._rows:
            self.remove(name)
        row = self._rows[name] = self._new_row()
        self._since[row], self._touched[row], self._written[row] = since, False, True
        return row

    def _new_row(self) -> int:
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._given_out.append(row)
        self._touched[row] = self._written[row] = False
        return row

    def _grow(self) -> None:
        old, limit = self.capacity, self._limit
        # A limit that was lowered may be below what is restored.
        new = max(FEWEST_ROWS, min(2 * old, limit) if old < limit else 2 * old)
        more = np.zeros(new - old, np.bool_)
        self._since = np.concatenate([self._since, np.zeros(new - old)])
        self._touched, self._written = np.concatenate([self._touched, more]), np.concatenate([self._written, more])
        self._free = list(range(new - 1, old - 1, -1))
