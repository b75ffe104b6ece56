"""Numbers and lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["counted", "first_of"]


def counted(number: int, noun: str) -> str:
    """The number and the noun, with an s except after 1.

    >>> counted(1, "partition"), counted(3, "partition")
    ('1 partition', '3 partitions')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def first_of(names: Sequence[str], most: int) -> str:
    """The first ``most`` names, and how many more there are.

    >>> first_of(["a", "b", "c"], 2), first_of(["a"], 2)
    ('a, b and 1 more', 'a')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
