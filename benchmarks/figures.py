"""What a benchmark reports, and how it takes times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Size = TypeVar("Size")

_smallest = False


def take_smallest() -> None:
    """From now on modules are loaded in their smallest form: it shows that a benchmark works, and its figures
    mean nothing."""
    global _smallest
    _smallest = True


def size(usual: Size, smallest: Size) -> Size:
    """How much of something a benchmark has, and how much in its smallest form."""
    return smallest if _smallest else usual


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``goal``: at least this, or at most where ``at_most``; None: a figure without a
    goal."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal


def best_seconds(candidates: Sequence[Callable[[int], object]], repeats: int) -> list[float]:
    """The shortest time of each candidate over ``repeats`` rounds, all of them taking turns so that they
    share disturbances.

    A candidate is given the number of its round, so that it can work on data of its own each time. One round
    more, not counted, comes first and has number 0.
    """
    best = [float("inf")] * len(candidates)
    for number in range(repeats + 1):
        for index, candidate in enumerate(candidates):
            started = time.perf_counter()
            candidate(number)
            if number:
                best[index] = min(best[index], time.perf_counter() - started)
    return best
