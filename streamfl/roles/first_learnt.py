"""What a member waits for before its partitions can learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["BeforeLearning", "first_awaited"]


class BeforeLearning(Protocol):
    """A partition that may not have learnt yet."""

    @property
    def awaited(self) -> str | None:
        """A sentence on what it waits for before it can learn; None: it has learnt."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come to it, so that it has not learnt."""


def first_awaited(partitions: Mapping[int, BeforeLearning]) -> str | None:
    """The sentence of the first partition that waits, with its number if there are several; None: none waits.

    A partition may stay empty for ever, because no entity's key leads to it. So it is told of only while all
    are empty.
    """
    begun = {number: one for number, one in partitions.items() if not one.is_empty}
    for number, one in (begun or partitions).items():
        if (told := one.awaited) is not None:
            return told if len(partitions) == 1 else f"partition {number} {told}"
    return None
