"""Which rounds a party has received in one life of its own, so that none is answered twice: its mask would be
used twice."""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["MOST_LIVES", "MOST_RUNS", "ReceivedRounds"]

MOST_LIVES = 256
# Most runs of numbers without a gap, in all lives together.
MOST_RUNS = 4096
# Latest rounds whose identity is remembered.
MOST_IDENTITIES = 4096


class _Numbers:
    """Numbers that were received, as runs from ``firsts[i]`` to ``lasts[i]``, in order."""

    __slots__ = ("firsts", "lasts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.firsts, number)
        return place > 0 and number <= self.lasts[place - 1]

    def goes_on(self, number: int) -> bool:
        """Whether a number that was not received is next to one that was."""
        place = bisect_right(self.firsts, number)
        before = place > 0 and self.lasts[place - 1] == number - 1
        return before or (place < len(self.firsts) and self.firsts[place] == number + 1)

    def note(self, number: int) -> None:
        """Add a number that was not received before."""
        place = bisect_right(self.firsts, number)
        before = place > 0 and self.lasts[place - 1] == number - 1
        after = place < len(self.firsts) and self.firsts[place] == number + 1
        if before and after:
            self.lasts[place - 1] = self.lasts.pop(place)
            del self.firsts[place]
        elif before:
            self.lasts[place - 1] = number
        elif after:
            self.firsts[place] = number
        else:
            self.firsts.insert(place, number)
            self.lasts.insert(place, number)


class ReceivedRounds:
    """Numbers of rounds by the active party's life, in any order. A number that was not received never counts
    as received.

    >>> received = ReceivedRounds()
    >>> [received.note((7, number), b"asked") for number in (0, 2**50, 1, 0, 2**50)]
    [True, True, True, False, False]
    """

    def __init__(self) -> None:
        self._lives: dict[int, _Numbers] = {}
        self._identities: dict[tuple[int, int], bytes] = {}

    def __contains__(self, key: tuple[int, int]) -> bool:
        numbers = self._lives.get(key[0])
        return numbers is not None and key[1] in numbers

    def __len__(self) -> int:
        """Runs that are remembered."""
        return sum(len(numbers.firsts) for numbers in self._lives.values())

    def note(self, key: tuple[int, int], identity: bytes) -> bool:
        """Note that a round of this name came. Returns False if it came before. identity: digest of what it
        asks."""
        numbers = self._lives.setdefault(key[0], _Numbers())
        if key[1] in numbers:
            return False
        numbers.note(key[1])
        self._identities[key] = identity
        if len(self._identities) > MOST_IDENTITIES:
            del self._identities[next(iter(self._identities))]
        return True

    def is_another(self, key: tuple[int, int], identity: bytes) -> bool:
        """Whether a round of this name came that asked something else, or may have: anybody can write future
        numbers."""
        return key in self and self._identities.get(key) != identity

    def is_crowded(self, key: tuple[int, int]) -> bool:
        """Whether there is no room for a round that was not received."""
        numbers = self._lives.get(key[0])
        if numbers is None:
            return len(self._lives) >= MOST_LIVES or len(self) >= MOST_RUNS
        return key[1] not in numbers and not numbers.goes_on(key[1]) and len(self) >= MOST_RUNS

    def forget(self) -> None:
        """The party begins another life, in which nothing was answered."""
        self._lives.clear()
        self._identities.clear()
