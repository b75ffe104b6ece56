"""The most recent measured items. They describe the present only while more of them come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from streamfl.roles.rhythm import Rhythm

__all__ = ["WINDOW", "Recent"]

WINDOW = 1000
"""The number of labels in windowed figures."""

Item = TypeVar("Item")


class Recent(Generic[Item]):
    """The last 1000 items since this object was made; they are not remembered in a changelog.

    items: oldest first.

    >>> recent = Recent()
    >>> recent.extend([0.5], now=100.0)
    >>> len(recent.items), recent.until
    (1, 259300.0)
    """

    def __init__(self) -> None:
        self.items: deque[Item] = deque(maxlen=WINDOW)
        self._rhythm = Rhythm()

    def extend(self, items: Sequence[Item], now: float) -> None:
        """Add items that have come at ``now``."""
        if items:
            self.items.extend(items[-WINDOW:])
            self._rhythm.set_back(now)
            self._rhythm.came(now, now)

    @property
    def until(self) -> float:
        """The time from which the items no longer describe the present, if no more come: the pause is then
        unusually long."""
        at = self._rhythm.overdue_at
        return 0.0 if at is None else at
