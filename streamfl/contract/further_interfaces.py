"""Interfaces that a role may have beyond those of every role."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

__all__ = ["BalancesInputs", "CatchesUp", "NotesLosses", "Waits"]


@runtime_checkable
class NotesLosses(Protocol):
    """The further interface of a role whose peers wait for answers to what they send it."""

    def lost(self, partition: int) -> None:
        """Records of this partition were deleted before the worker read them. The worker calls it before the
        ``receive`` of the same step."""


@runtime_checkable
class Waits(Protocol):
    """The further interface of a role that may wait before it learns."""

    @property
    def backlog(self) -> str | None:
        """A sentence on what the role waits for and how much of it is there; None: nothing. The worker is
        ready all the same."""


@runtime_checkable
class CatchesUp(Waits, Protocol):
    """The further interface of a role that learns a backlog in step with its peers, not at once."""

    @property
    def most_records(self) -> int | None:
        """The most records of its inputs that the role takes in one batch now; None: any number."""

    @property
    def urgent(self) -> bool:
        """As ``prompt``, at present: accuracy, or the speed of catching up, depends on how soon peers get the
        messages."""

    def unread(self, records: Mapping[int, Mapping[str, int]]) -> None:
        """How many unread records follow those of the next batch, by partition and input; control records may
        count.

        A partition where this is not known yet is left out: any number of records may lie there. The worker
        calls it before every ``receive``: it is part of the input."""


@runtime_checkable
class BalancesInputs(CatchesUp, Protocol):
    """The further interface of a role whose inputs belong together, such as samples and their labels, and
    that decides which of them is read first."""

    @property
    def paused(self) -> Collection[tuple[str, int]]:
        """The inputs, by channel and partition, that the worker does not read until others were read
        further."""
