"""Finds parties that send nothing while others do, and entities whose records come in different partitions
and never meet."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from streamfl.contract.role import OperatorNotice
from streamfl.records.place_watch import PlaceWatch
from streamfl.roles.reply_deadline import ReplyDeadline
from streamfl.state.clock_guard import earliest

__all__ = ["PartyWatch"]

NO_EMBEDDING = (
    "no embedding of {} has come for {:g} s, although others' embeddings or labels have. Check that that "
    "party runs, and what this log says about its embeddings; if it may be silent for longer, raise "
    "alignment.patience_seconds"
)


class PartyWatch:
    """Watches M parties.

    parties: names of the parties, in order.
    patience: seconds that a party may send nothing, while others send or labels come, before it is trouble.
    """

    def __init__(self, parties: Sequence[str], patience: float) -> None:
        self._parties = parties
        self._patience = patience
        self._reply_deadlines = [ReplyDeadline(patience) for _ in parties]
        # Parties of this batch: those that sent embeddings, and those that lack an entity that others sent or
        # labelled.
        self._heard: set[int] = set()
        self._awaited: set[int] = set()
        self._places = PlaceWatch()

    @property
    def wake_at(self) -> float | None:
        return earliest(*(one.wake_at for one in self._reply_deadlines))

    @property
    def late(self) -> str | None:
        """Which parties are waited for, once that takes notably longer than usual; None: none."""
        told = (
            deadline.waits_for(functools.partial(list, [name]))
            for name, deadline in zip(self._parties, self._reply_deadlines, strict=True)
        )
        return "; ".join(one for one in told if one is not None) or None

    @property
    def trouble(self) -> str | None:
        silent = [
            name
            for name, deadline in zip(self._parties, self._reply_deadlines, strict=True)
            if deadline.overdue
        ]
        return NO_EMBEDDING.format(", ".join(silent), self._patience) if silent else self._places.disorder

    def notices(self) -> Iterable[OperatorNotice]:
        """Notices for the operator's log."""
        return self._places.notices()

    def heard(self, number: int, partition: int, names: Iterable[str]) -> None:
        """Note that a party sent embeddings of these entities."""
        self._heard.add(number)
        self._places.came(partition, f"an embedding of {self._parties[number]}", names)

    def labelled(self, partition: int, names: Iterable[str]) -> None:
        """Note that labels of these entities came."""
        self._places.came(partition, "a label", names)

    def awaited(self, numbers: Iterable[int]) -> None:
        """Note parties that lack an entity that others sent or that has a label."""
        self._awaited.update(numbers)

    def end_batch(self, tick: bool, now: float) -> None:
        for number, deadline in enumerate(self._reply_deadlines):
            if number in self._heard:
                deadline.answered(now)
            if number in self._awaited - self._heard:
                deadline.asked(now)
            if tick:
                deadline.look(now)
        self._heard, self._awaited = set(), set()

    def reset(self) -> None:
        """Stop waiting for all parties: no partition is left."""
        for deadline in self._reply_deadlines:
            deadline.answered()
