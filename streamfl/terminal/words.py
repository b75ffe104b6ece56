"""Numbers in sentences."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """The number and the noun, with an s except after 1.

    >>> counted(1, "partition"), counted(3, "partition")
    ('1 partition', '3 partitions')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
