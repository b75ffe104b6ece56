"""The last of what is measured, which says how things stand only while more of it comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from streamfl.rhythm import Rhythm

__all__ = ["WINDOW", "Recent"]

WINDOW = 1000
"""So many labels the windowed figures look back."""

Item = TypeVar("Item")


class Recent(Generic[Item]):
    """The last 1000 items since this was made; nothing of it is remembered.

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
        """These have come."""
        if items:
            self.items.extend(items[-WINDOW:])
            self._rhythm.set_back(now)
            self._rhythm.came(now, now)

    @property
    def until(self) -> float:
        """From when on the items say nothing of the present, if no more come: the pause is longer than is usual."""
        at = self._rhythm.overdue_at
        return 0.0 if at is None else at
