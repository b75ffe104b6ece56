"""How the active party predicts a backlog in step with its model.

A party is *behind* from the moment it gets a partition, or has it full, until no more than n records lie unread. Entities that come
while it is behind are of a backlog: they wait, in the order of their topic, until the labels of those before them are learnt. So an
iteration's entities are predicted by the model before it, as if all had come one by one. What comes when the party is not behind
is live, never waits, and goes before what does.

An entity whose label is not in hand is not waited with once everything is read, for then its label comes later. Where the model
stands still for the patience, a party is away, and the backlog is predicted without waiting until there is a new version.

Nothing of it is remembered: after a restart whatever waits for a prediction is of a backlog.
"""

from __future__ import annotations

from streamfl.fdskl.active_settings import ActiveSettings
from streamfl.fdskl.due import Due
from streamfl.fdskl.forecasts import Forecasts
from streamfl.fdskl.model import KernelModel

__all__ = ["CatchUp"]

# Predictions of a partition that may wait; then its inputs are paused.
MOST_AWAITED = 10_000
BEHIND = (
    "a backlog is predicted in step with the model, which has version {}: {} records lie unread, and {} entities in hand wait for "
    "the labels before them to be learnt"
)
ALONE = (
    "a backlog is predicted without waiting for the model, which stands still at version {}: {} records lie unread, and {} "
    "entities in hand wait"
)


class CatchUp:
    """Of one partition.

    forecasts: what waits, and what is asked for.
    due: says how many labels the next iteration lacks.
    model: which advances.
    limit: entities that are remembered.
    settings: n, 0: nothing ever waits; and the patience, in seconds.
    """

    def __init__(
        self, forecasts: Forecasts, due: Due, model: KernelModel, limit: int, settings: ActiveSettings
    ) -> None:
        self._forecasts = forecasts
        self._due = due
        self._model = model
        self._samples = settings.catch_up_samples
        self._patience = settings.catch_up_patience
        self._most, self._largest = min(MOST_AWAITED, limit), max(min(MOST_AWAITED, limit), limit // 2)
        # None: nobody tells, so nothing waits.
        self._unread: int | None = None
        # Whether it may have unread what lay there when it was opened: no tick comes before that is read.
        self._is_new = self._is_behind = True
        self._has_begun = False
        # The version at which it was waited for in vain.
        self._alone_at: int | None = None
        self._moved_at = 0.0
        # Labels of the batch that were not taken yet.
        self.rest = 0
        # Entities with a label that were let go, and are not predicted yet.
        self._let_go: set[str] = set()

    @property
    def holds_back(self) -> bool:
        """Whether an entity that comes now is of a backlog, and waits."""
        return self._is_behind and self._unread is not None and self._samples > 0 and not self._is_alone

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no more is read: but labels of what waits may lie behind other samples."""
        return self._forecasts.awaited >= self._room

    @property
    def told(self) -> str | None:
        """What it is behind with, in a sentence; None: it is not behind."""
        held = self._forecasts.held
        if not held and not (self._is_alone and self._is_behind):
            return None
        return (ALONE if self._is_alone else BEHIND).format(self._model.version, self._unread or 0, held)

    @property
    def wake_at(self) -> float | None:
        """When the model is waited for no longer."""
        return self._moved_at + self._patience if self._forecasts.held else None

    def unread(self, records: int) -> None:
        """So many lie behind the next batch."""
        self._unread = records

    def begin(self, now: float) -> None:
        """Messages follow. The first time, whatever was restored waits."""
        if not self._has_begun and self.holds_back:
            self._forecasts.hold_all()
            self._moved_at = now
        self._has_begun = True

    def hold_back(self, entity: str, offset: int, now: float) -> None:
        """An entity of a backlog came. offset: of its sample."""
        if not self._forecasts.held:
            self._moved_at = now
        self._forecasts.want(entity, now, offset, held=True)

    def advanced(self, now: float) -> None:
        """Learning went on."""
        self._moved_at = now

    def predicted(self, entity: str, now: float) -> None:
        """An entity was predicted, or is forgotten."""
        if entity in self._let_go:
            self._let_go.discard(entity)
            self._moved_at = now

    def let_go(self, now: float) -> bool:
        """Let those go that need not wait any more. Returns whether there were any."""
        forecasts, gone = self._forecasts, 0
        while (entity := forecasts.first_held) is not None:
            if not self._is_alone:
                if not forecasts.has_label(entity):
                    if self._reads_on and forecasts.held < self._room:
                        break
                elif self._due.missing <= len(self._let_go):
                    break
                else:
                    self._let_go.add(entity)
            forecasts.let_go(entity)
            gone += 1
        if gone:
            self._moved_at = now
        return gone > 0

    def end(self) -> None:
        """A batch or a tick is over."""
        if self.is_full:
            self._is_behind = True
        elif not self._is_new and (self._unread or 0) <= self._samples:
            self._is_behind = False

    def pass_time(self, now: float) -> None:
        """A tick."""
        # While it is full ticks come too.
        self._is_new = self._is_new and self.is_full
        at = self.wake_at
        if at is not None and at <= now:
            self._alone_at = self._model.version

    def set_back(self, now: float) -> None:
        """The clock was ahead."""
        self._moved_at = min(self._moved_at, now)

    @property
    def _is_alone(self) -> bool:
        return self._alone_at == self._model.version

    @property
    def _room(self) -> int:
        """So many may wait before no more is read."""
        held, labels = self._forecasts.held, self._forecasts.held_with_label
        return self._largest if held and not labels and self._reads_on else self._most

    @property
    def _reads_on(self) -> bool:
        """Whether labels of what waits may lie unread."""
        return self._is_new or self.rest > 0 or (self._unread or 0) > self._samples
