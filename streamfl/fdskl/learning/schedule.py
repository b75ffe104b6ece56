"""How many labels start an iteration: few at first, so that a slow stream is learnt from soon."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["ends_of_iterations", "labels_wanted"]


def labels_wanted(learnt: int, first: int, most: int) -> int:
    """New labels that start the next iteration: ``first``, then as many as all before it had, up to ``most``.

    It depends only on the number of labels learnt from, which is remembered, so a restart gives the same.
    """
    return min(most, max(first, learnt))


def ends_of_iterations(first: int, most: int) -> Iterator[int]:
    """Yields for each iteration, without end, how many labels have come when it is due.

    >>> from itertools import islice
    >>> list(islice(ends_of_iterations(32, 256), 7))
    [32, 64, 128, 256, 512, 768, 1024]
    """
    learnt = 0
    while True:
        learnt += labels_wanted(learnt, first, most)
        yield learnt
