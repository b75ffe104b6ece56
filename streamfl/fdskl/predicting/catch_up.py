"""How the active party predicts a backlog in step with its model.

A party is *behind* from when it gets a partition, or has no room for more waiting entities, until at most n
records are unread. Entities that come while it is behind are of a backlog: they wait, in the order of their
topic, until the labels of those before them are learnt. So an iteration's entities are predicted by the model
before it, as if all had come one by one. Entities that come when the party is not behind are live: they never
wait, and are predicted before those that do.

Once everything is read, an entity without a label does not wait, because its label comes later. If the model
does not change for the time of the patience, a party is away: the backlog is predicted without waiting until
there is a new version.

None of this is remembered: after a restart every entity that waits for a prediction is of a backlog.
"""

from __future__ import annotations

from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.due import Due
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.predicting.forecasts import Forecasts

__all__ = ["CatchUp"]

# Most predictions of a partition that wait before its inputs are paused.
MOST_AWAITED = 10_000
BEHIND = (
    "a backlog is predicted in step with the model, which has version {}: {} records are unread, and {} "
    "entities wait until the labels before them are learnt"
)
ALONE = (
    "a backlog is predicted without waiting for the model, which stays at version {}: {} records are unread, "
    "and {} entities wait"
)


class CatchUp:
    """Decides which entities of one partition wait for the model.

    forecasts: the entities that wait, and those that are asked for.
    due: says how many labels the next iteration lacks.
    model: the model that they wait for.
    settings: n is ``learning.catch_up_samples``; 0: nothing ever waits.
    """

    def __init__(self, forecasts: Forecasts, due: Due, model: KernelModel, settings: FdsklSettings) -> None:
        limit = settings.alignment.limit
        self._forecasts = forecasts
        self._due = due
        self._model = model
        self._samples = settings.learning.catch_up_samples
        self._patience = settings.learning.catch_up_patience_seconds
        self._most, self._largest = min(MOST_AWAITED, limit), max(min(MOST_AWAITED, limit), limit // 2)
        # Without reports nothing waits.
        self._is_reported = False
        # None: not known yet.
        self._unread: int | None = None
        # Whether records that were there when the partition was opened may be unread. A tick says that they
        # are read, unless it comes before their number is known, as in a partition without state.
        self._is_new = self._is_behind = True
        self._has_begun = False
        # The version of the model at which the patience ran out.
        self._alone_at: int | None = None
        self._moved_at = 0.0
        # Labels of the batch that were not taken yet.
        self.rest = 0
        # Entities with a label that were let go, and are not predicted yet.
        self._let_go: set[str] = set()

    @property
    def holds_back(self) -> bool:
        """Whether an entity that comes now is of a backlog and waits."""
        return self._is_behind and self._is_reported and self._samples > 0 and not self._is_alone

    @property
    def is_full(self) -> bool:
        """Whether so many entities wait that no more is read. While their labels may lie behind other
        samples, more may wait."""
        return self._forecasts.awaited >= self._room

    @property
    def told(self) -> str | None:
        """A sentence about the backlog; None: there is none."""
        held = self._forecasts.held
        if not held and not (self._is_alone and self._is_behind):
            return None
        return (ALONE if self._is_alone else BEHIND).format(self._model.version, self._unread or 0, held)

    @property
    def wake_at(self) -> float | None:
        """When waiting for the model ends. A new partition wants a tick at once, to hear that it is read."""
        if self._is_new and self._is_reported and not (self._is_unknown or self.is_full):
            return self._moved_at
        return self._moved_at + self._patience if self._forecasts.held else None

    def unread(self, records: int | None) -> None:
        """Note how many records lie behind the next batch. None: not known yet."""
        self._is_reported = True
        self._unread = self._unread if records is None else records

    def begin(self, now: float) -> None:
        """Messages follow. The first time, restored entities are held back."""
        if not self._has_begun and self.holds_back:
            self._forecasts.hold_all()
            self._moved_at = now
        self._has_begun = True

    def hold_back(self, entity: str, offset: int, now: float) -> None:
        """Hold back an entity of a backlog. offset: of its sample."""
        if not self._forecasts.held:
            self._moved_at = now
        self._forecasts.want(entity, now, offset, held=True)

    def advanced(self, now: float) -> None:
        """Learning made progress."""
        self._moved_at = now

    def predicted(self, entity: str, now: float) -> None:
        """An entity was predicted or forgotten."""
        if entity in self._let_go:
            self._let_go.discard(entity)
            self._moved_at = now

    def let_go(self, now: float) -> bool:
        """Let entities go that need not wait any more. Returns whether there were any."""
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
        # Ticks also come while it is full.
        self._is_new = self._is_new and (self.is_full or self._is_unknown)
        at = self.wake_at
        if at is not None and at <= now:
            self._alone_at = self._model.version

    def set_back(self, now: float) -> None:
        """The clock was ahead: set later times back to ``now``."""
        self._moved_at = min(self._moved_at, now)

    @property
    def _is_unknown(self) -> bool:
        return self._is_reported and self._unread is None

    @property
    def _is_alone(self) -> bool:
        return self._alone_at == self._model.version

    @property
    def _room(self) -> int:
        """Predictions that may wait before reading stops."""
        held, labels = self._forecasts.held, self._forecasts.held_with_label
        return self._largest if held and not labels and self._reads_on else self._most

    @property
    def _reads_on(self) -> bool:
        """Whether labels of waiting entities may be unread."""
        return self._is_new or self.rest > 0 or (self._unread or 0) > self._samples
