"""Parties that show nothing while others do: whether one of them is silent for too long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamfl.silence import Silence

__all__ = ["PartyWatch"]

NO_EMBEDDING = (
    "no embedding of {} has come for {:g} s, while others' or labels have. See whether that party runs, and what this log says of "
    "its embeddings; if it is meant to be silent for longer, raise alignment.patience_seconds"
)


class PartyWatch:
    """Watches M parties.

    parties: their names, in order.
    patience: seconds after which a party that shows nothing, while others do or labels come, is trouble.
    """

    def __init__(self, parties: Sequence[str], patience: float) -> None:
        self._parties = parties
        self._patience = patience
        self._silences = [Silence(patience) for _ in parties]
        # Of this batch: who showed something, and who did not show what was shown or labelled.
        self._heard: set[int] = set()
        self._awaited: set[int] = set()

    @property
    def wake_at(self) -> float | None:
        return min((one.wake_at for one in self._silences if one.wake_at is not None), default=None)

    @property
    def trouble(self) -> str | None:
        silent = [name for name, silence in zip(self._parties, self._silences, strict=True) if silence.overdue]
        return NO_EMBEDDING.format(", ".join(silent), self._patience) if silent else None

    def heard(self, number: int) -> None:
        """A party showed something."""
        self._heard.add(number)

    def awaited(self, numbers: Iterable[int]) -> None:
        """These parties have not shown what others showed or a label came for."""
        self._awaited.update(numbers)

    def end_batch(self, tick: bool, now: float) -> None:
        for number, silence in enumerate(self._silences):
            if number in self._heard:
                silence.answered()
            if number in self._awaited - self._heard:
                silence.asked(now)
            if tick:
                silence.look(now)
        self._heard, self._awaited = set(), set()

    def reset(self) -> None:
        """No partition is left: nobody owes anything."""
        for silence in self._silences:
            silence.answered()
