"""How a party with a backlog sends its entities in step with its model.

A party is *behind* while more than n of its samples are unread, or read and not sent. It then sends n
entities, and goes on as their gradients come. So the model learns from a history while it embeds it, instead
of embedding it all before the first step. A party that is not behind sends every sample at once.

Where some gradients came and then none for a moment, the rest of these n entities lack a label or other
parties: the party stops waiting for them. Where none came at all for the patience, no coordinator answers,
these entities have no label, or labels are late. The party then sends as many more as it has sent in vain,
and waits again, until a gradient comes within the patience after its embedding. So a coordinator that comes
late, or labels that begin late, find most of the history unsent; and a history without labels is sent within
a few times the patience.
"""

from __future__ import annotations

from msgspec.structs import replace

from streamfl.vafl.party.in_flight_embeddings import InFlightEmbedding, InFlightEmbeddings
from streamfl.vafl.party.life import CatchUpWindow, PartyLife

__all__ = ["CatchUp"]

# Longer than from one gradient to the next.
PAUSE_SECONDS = 1.0
BEHIND = "a backlog is sent in step with the model: {} records are unread, and {} samples wait for gradients"
ALONE = (
    "a backlog is sent ahead of the model, because no gradients came: {} records are unread, and {} samples "
    "wait"
)


class CatchUp:
    """The catching up of one partition.

    life: counts embeddings, and remembers the window of entities that the party waits for.
    in_flight: entities without a gradient.
    samples: n; 0: the party never waits.
    patience: seconds.
    """

    def __init__(self, life: PartyLife, in_flight: InFlightEmbeddings, samples: int, patience: float) -> None:
        self._life = life
        self._in_flight = in_flight
        self._samples = samples
        self._patience = patience
        self._unread: int | None = None
        # Samples of the present batch that are not taken yet.
        self.rest = 0

    @property
    def room(self) -> int | None:
        """The most samples that are worth holding; None: any number."""
        return self._most if self._samples and self._unread != 0 else None

    def unread(self, records: int) -> None:
        """Set how many records lie behind the next batch."""
        self._unread = records

    def told(self, waiting: int) -> str | None:
        """The backlog in a sentence; None: the party is not behind. waiting: samples in hand."""
        if not self.is_behind(waiting):
            return None
        return (ALONE if self._life.window.alone else BEHIND).format(self._unread or 0, waiting)

    def is_behind(self, waiting: int) -> bool:
        """Whether the party is behind. waiting: samples in hand."""
        return 0 < self._samples < (self._unread or 0) + self.rest + waiting

    def waits(self, waiting: int) -> bool:
        """Whether the party sends nothing more now. waiting: samples in hand."""
        if not self.is_behind(waiting):
            return False
        return (self._sent if self._life.window.alone else self._unanswered) >= self._most

    def wake_at(self, waiting: int) -> float | None:
        """When the waiting ends by itself."""
        return self._life.window.since + self._limit if self.waits(waiting) else None

    def is_over(self, waiting: int, now: float) -> bool:
        """Whether the waiting has lasted for its limit."""
        at = self.wake_at(waiting)
        return at is not None and at <= now

    def showed(self, waiting: int, now: float) -> None:
        """Note that an entity is sent."""
        if self.is_behind(waiting):
            self._life.window = replace(self._life.window, since=now)

    def heard(self, one: InFlightEmbedding, now: float) -> None:
        """Note that a gradient for an embedding came."""
        window = self._life.window
        if window.alone and one.since + self._patience >= now:
            # The party does not wait for entities that it sent without waiting.
            window = replace(window, alone=False, begin=self._life.sequence)
        elif window.alone or not self._samples or one.sequence <= window.begin:
            return
        self._life.window = replace(window, since=now, answered=True)

    def pass_time(self, waiting: int, now: float) -> None:
        """End the waiting if it has lasted for its limit."""
        if not self.is_over(waiting, now):
            return
        self._life.window = CatchUpWindow(
            begin=self._life.sequence, since=now, alone=not self._life.window.answered
        )

    def set_back(self, now: float) -> None:
        """Move a time after ``now`` back to ``now``: the clock was ahead."""
        if self._life.window.since > now:
            self._life.window = replace(self._life.window, since=now)

    @property
    def _most(self) -> int:
        """The most entities of a window. Of one after a window without gradients: as many as were sent
        before it and have none."""
        if not self._life.window.alone:
            return self._samples
        return max(self._samples, len(self._in_flight) - self._sent)

    @property
    def _sent(self) -> int:
        """Embeddings of the window."""
        return self._life.sequence - self._life.window.begin

    @property
    def _unanswered(self) -> int:
        return self._in_flight.count_after(self._life.window.begin, self._samples)

    @property
    def _limit(self) -> float:
        return min(PAUSE_SECONDS, self._patience) if self._life.window.answered else self._patience
