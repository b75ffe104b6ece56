"""How many labels make an iteration: few at first, for a slow stream is to be learnt from soon."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["ends_of_iterations", "labels_wanted"]


def labels_wanted(learnt: int, first: int, most: int) -> int:
    """New labels that make the next iteration: ``first``, then as many as all before it had, up to ``most``.

    A function of the labels that were learnt from alone, which are remembered: so a restart comes to the same.
    """
    return min(most, max(first, learnt))


def ends_of_iterations(first: int, most: int) -> Iterator[int]:
    """Labels that have come when each iteration is due, one iteration after the other, without end.

    >>> from itertools import islice
    >>> list(islice(ends_of_iterations(32, 256), 7))
    [32, 64, 128, 256, 512, 768, 1024]
    """
    learnt = 0
    while True:
        learnt += labels_wanted(learnt, first, most)
        yield learnt
