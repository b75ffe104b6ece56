"""Array rows for entities whose records come in several streams.

Records of one entity come from several members at different times, and some never come. So a role that joins
them has to bound how many entities it keeps, and to forget those that get no more records. This is the part
that every join shares: which entity has which row, in which order entities were last seen, which are too old,
and which were changed or removed since the last commit. The owner keeps the data of an entity in arrays of
its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

__all__ = ["AlignedEntities"]

FEWEST_ROWS = 16


class AlignedEntities:
    """The entities of a partition, the least recently seen first.

    limit: most entities. Before a new one the owner makes room by removing :attr:`oldest`.
    expiry: seconds after which an entity that was not seen again is too old.

    >>> rows = AlignedEntities(limit=2, expiry=60.0)
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
        # By row: changed since the last commit; ever committed.
        self._touched = np.zeros(0, np.bool_)
        self._written = np.zeros(0, np.bool_)
        # Removed since the last commit, and committed before.
        self._gone: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> int:
        """The row of an entity; KeyError if it has none."""
        return self._rows[name]

    def get(self, name: str) -> int | None:
        """The row of an entity, if it has one."""
        return self._rows.get(name)

    @property
    def oldest(self) -> str:
        """The least recently seen entity."""
        return next(iter(self._rows))

    @property
    def full(self) -> bool:
        """Whether there is no room for another one."""
        return len(self._rows) >= self._limit

    def has_room(self, count: int) -> bool:
        """Whether there is room for ``count`` new ones."""
        return len(self._rows) + count <= self._limit

    @property
    def wake_at(self) -> float | None:
        """When the oldest becomes too old; None without entities."""
        return float(self._since[self._rows[self.oldest]]) + self._expiry if self._rows else None

    # ---- seeing entities

    def hear(self, names: Sequence[str]) -> list[int]:
        """Entities, known or new, were seen in this order. Returns their rows. Call :meth:`mark` next."""
        rows = self._rows
        for name in names:
            if name in rows:
                rows.move_to_end(name)
            else:
                rows[name] = self._new_row()
        return [rows[name] for name in names]

    def mark(self, rows: Sequence[int] | NDArray[np.intp], now: float) -> None:
        """Mark rows as seen now, and as changed."""
        self._since[rows], self._touched[rows] = now, True

    @property
    def capacity(self) -> int:
        """How many rows an owner's arrays need."""
        return len(self._since)

    def given_out(self) -> list[int]:
        """Rows given to new entities since the last call. The owner's arrays may still hold data of earlier
        entities there."""
        rows, self._given_out = self._given_out, []
        return rows

    def since(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """When these rows were last seen, in seconds."""
        return self._since.take(rows)

    # ---- forgetting entities

    def remove(self, name: str) -> None:
        row = self._rows.pop(name)
        self._free.append(row)
        if self._written[row]:
            self._gone[name] = None

    def overdue(self, now: float) -> Iterator[tuple[str, int]]:
        """Names and rows of entities that are too old, oldest first. The caller removes each before it takes
        the next."""
        while self._rows:
            name, row = next(iter(self._rows.items()))
            if self._since[row] + self._expiry > now:
                return
            yield name, row

    def set_back(self, now: float) -> tuple[list[str], NDArray[np.intp]]:
        """The clock was ahead: entities seen after ``now`` count as seen now. Returns their names and
        rows."""
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
        """Changes since the last call: names that were removed, and names and rows that have to be written,
        in order.

        Entities that were just seen are the youngest. So entities that are restored in the order of the last
        writing are in the order of age.
        """
        gone = [name for name in self._gone if name not in self._rows]
        self._gone = {}
        touched = self._touched
        names = [name for name, _ in takewhile(lambda item: touched[item[1]], reversed(self._rows.items()))][
            ::-1
        ]
        rows = np.array([self._rows[name] for name in names], np.intp)
        self._touched[rows], self._written[rows] = False, True
        return gone, names, rows

    def restore(self, name: str, since: float) -> int:
        """Restore an entity as the youngest so far. Returns its row."""
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
        # If the limit was lowered, more entities than it allows may be restored.
        new = max(FEWEST_ROWS, min(2 * old, limit) if old < limit else 2 * old)
        more = np.zeros(new - old, np.bool_)
        self._since = np.concatenate([self._since, np.zeros(new - old)])
        self._touched, self._written = (
            np.concatenate([self._touched, more]),
            np.concatenate([self._written, more]),
        )
        self._free = list(range(new - 1, old - 1, -1))
