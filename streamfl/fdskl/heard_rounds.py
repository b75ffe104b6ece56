"""Which rounds a party has heard of in one life of its own, so that none is answered twice: its mask would be used twice."""

from __future__ import annotations

import heapq

__all__ = ["HeardRounds"]

MOST_LIVES = 256
# Numbers above one that was not heard. Beyond these the lowest missing ones count as heard.
MOST_NUMBERS = 4096


class _Numbers:
    """Every number up to ``_upto`` counts as heard, and so do those in ``_above``."""

    __slots__ = ("_above", "_order", "_upto")

    def __init__(self) -> None:
        self._upto = -1
        self._above: set[int] = set()
        self._order: list[int] = []

    def __contains__(self, number: int) -> bool:
        return number <= self._upto or number in self._above

    def note(self, number: int) -> None:
        self._above.add(number)
        heapq.heappush(self._order, number)
        while self._order and (self._order[0] == self._upto + 1 or len(self._order) > MOST_NUMBERS):
            self._upto = heapq.heappop(self._order)
            self._above.discard(self._upto)


class HeardRounds:
    """Numbers of rounds by the active party's life, in any order, so that a number far ahead shuts out none of the others.

    >>> heard = HeardRounds()
    >>> [heard.note((7, number)) for number in (0, 2**50, 1, 0, 2**50)]
    [True, True, True, False, False]
    """

    def __init__(self) -> None:
        self._lives: dict[int, _Numbers] = {}

    def __contains__(self, key: tuple[int, int]) -> bool:
        numbers = self._lives.get(key[0])
        return numbers is not None and key[1] in numbers

    def note(self, key: tuple[int, int]) -> bool:
        """A round of this name came; False if it has come before."""
        numbers = self._lives.setdefault(key[0], _Numbers())
        if key[1] in numbers:
            return False
        numbers.note(key[1])
        return True

    def is_crowded(self, key: tuple[int, int]) -> bool:
        """Whether there is no room for this round's life of the active party."""
        return key[0] not in self._lives and len(self._lives) >= MOST_LIVES

    def forget(self) -> None:
        """The party takes another life, in which nothing was answered."""
        self._lives.clear()
