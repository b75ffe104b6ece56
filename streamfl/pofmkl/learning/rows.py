"""Rows of numbers with different owners in one array, so that one operation covers many of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowPool", "final_sums", "in_turns", "running_sums"]


class RowPool:
    """Lends rows of ``width`` float64 numbers. ``numbers`` is (rows, width), and another array after it has
    grown."""

    def __init__(self, width: int) -> None:
        self.numbers = np.zeros((0, width))
        self._free: list[int] = []

    def borrow(self, count: int) -> list[int]:
        """Lend ``count`` rows of zeros. Returns their indices."""
        held = len(self.numbers)
        if len(self._free) < count:
            more = max(64, held // 2, count)
            self.numbers = np.concatenate([self.numbers, np.zeros((more, self.numbers.shape[1]))])
            self._free = [*range(held + more - 1, held - 1, -1), *self._free]
        lent = self._free[: -count - 1 : -1]
        del self._free[len(self._free) - count :]
        return lent

    def add(self, rows: NDArray[np.intp], terms: NDArray[np.floating[Any]]) -> None:
        """Add each of these terms, (terms, width), to its row; terms of one row in order, one after another.

        So it does not matter how they are cut into calls.
        """
        if _all_differ(rows):
            self.numbers[rows] += terms
            return
        order, starts, counts = _by_row(rows)
        own = rows[order[starts]]
        self.numbers[own] = final_sums(self.numbers[own], terms, order, starts, counts)

    def give_back(self, rows: Sequence[int]) -> None:
        """Take these rows back, and set them to 0."""
        self.numbers[rows] = 0.0
        self._free += rows


def in_turns(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """An order of terms of these rows: the first of each row, then the second of each, and so on.

    Neighbours in it have different rows, as far as there are any, so that one operation adds many of them.

    >>> in_turns(np.array([7, 7, 7, 4, 4]))
    array([3, 0, 4, 1, 2])
    """
    if _all_differ(rows):
        return np.arange(len(rows))
    order, starts, counts = _by_row(rows)
    numbers = np.arange(len(rows)) - np.repeat(starts, counts)
    return order[np.argsort(numbers, kind="stable")]


def _by_row(rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """An order in which the terms of a row follow one another, and where in it each row's begin, and how many
    they are."""
    order = np.argsort(rows, kind="stable")
    starts = np.flatnonzero(np.diff(rows[order], prepend=-1))
    return order, starts, np.diff(starts, append=len(rows))


def _all_differ(rows: NDArray[np.intp]) -> bool:
    return len(set(rows.tolist())) == len(rows)


def final_sums(
    first: NDArray[np.float64],
    terms: NDArray[np.floating[Any]],
    places: NDArray[np.intp],
    starts: NDArray[np.intp],
    counts: NDArray[np.intp],
) -> NDArray[np.float64]:
    """:func:`running_sums` without the sums before each term.

    places (terms,): where the terms stand, those of an owner one after another.
    """
    longest = int(counts.max(initial=0))
    if longest > len(counts):
        return running_sums(first, terms[places], starts, counts)[1]
    sums = first.copy()
    for number in range(longest):
        owners = np.flatnonzero(counts > number)
        sums[owners] += terms[places[starts[owners] + number]]
    return sums


def running_sums(
    first: NDArray[np.float64],
    terms: NDArray[np.floating[Any]],
    starts: NDArray[np.intp],
    counts: NDArray[np.intp],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sums before each term, (terms, numbers), and behind each owner's last, (owners, numbers).

    They are added one after another, w, w + c_1, (w + c_1) + c_2, …, so it does not matter how an owner's
    terms are cut into calls.
    first (owners, numbers): the sums so far.
    terms (terms, numbers): those of an owner follow one another.
    starts, counts (owners,): where an owner's terms begin, and how many they are.
    """
    before = np.empty(terms.shape)
    before[starts] = first
    several = np.flatnonzero(counts > 1)
    longest = int(counts.max(initial=0))
    if longest > len(several):
        for owner in several.tolist():
            own = slice(starts[owner], starts[owner] + counts[owner])
            before[own] = np.cumsum(np.vstack([first[owner], terms[own][:-1]]), axis=0)
    else:
        # The second terms of all owners, then the third ones: the same additions in fewer calls.
        for number in range(1, longest):
            places = starts[counts > number] + number
            before[places] = before[places - 1] + terms[places - 1]
    last = starts + counts - 1
    return before, before[last] + terms[last]
