"""Entities that the active party predicts: which wait for a prediction, what was predicted, and labels that
came too early."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Annotated

import msgspec

from streamfl.encoding.changelog_checks import Time
from streamfl.encoding.wire import Count
from streamfl.fdskl.state import FORECAST
from streamfl.state.changelog import ChangedParts
from streamfl.state.expiring_entries import ExpiringEntries

__all__ = ["EntityForecast", "Forecasts"]

Output = Annotated[float, msgspec.Meta(ge=-1e150, le=1e150)]


class EntityForecast(msgspec.Struct, array_like=True, gc=False):
    """What is known of the prediction of an entity that is not learnt from yet.

    since: when it last changed.
    awaited: whether a prediction has to be made.
    revision: predictions that were made.
    output: f of the last prediction.
    version: of its model.
    parties: from how many parties' columns.
    label: one that came before the prediction.
    offset: of the sample that it was wanted with.
    """

    since: Time
    awaited: bool = False
    revision: Count = 0
    output: Output = 0.0
    version: Count = 0
    parties: Count = 0
    label: Output | None = None
    # Last, so that a release without this field can read the rest.
    offset: Count = 0


class Forecasts(ExpiringEntries[EntityForecast]):
    """The forecasts of a partition, the one that changed longest ago first.

    parts: where they are remembered.
    expiry: seconds without a change after which a forecast is forgotten.
    limit: most forecasts. Beyond it the oldest is forgotten.
    forgotten: counts of the reasons ``no_label``, ``no_columns`` and ``displaced``, shared by all partitions.
    """

    def __init__(self, parts: ChangedParts, expiry: float, limit: int, forgotten: dict[str, int]) -> None:
        super().__init__(parts, FORECAST, EntityForecast, expiry, limit, forgotten)
        # Entities to predict that nobody was asked for in this life.
        self._gathered: dict[str, None] = {}
        # Entities to predict that nobody is to be asked for yet, in the order of their topic.
        self._held: dict[str, None] = {}
        self._held_with_label = 0
        self._awaited = 0
        self.on_forget: Callable[[str], None] = lambda _entity: None
        """Called with each entity whose forecast is forgotten."""

    @property
    def awaited(self) -> int:
        """Predictions that have to be made."""
        return self._awaited

    @property
    def gathered(self) -> int:
        """Predictions that have to be made, and that nobody was asked for."""
        return len(self._gathered)

    @property
    def gathered_since(self) -> float | None:
        """Since when the first of these waits."""
        return self._entries[next(iter(self._gathered))].since if self._gathered else None

    def is_asked_for(self, entity: str) -> bool:
        """Whether the parties were asked for the entity, and have not answered."""
        found = self._entries.get(entity)
        return (
            found is not None and found.awaited and entity not in self._gathered and entity not in self._held
        )

    def want(self, entity: str, now: float, offset: int = 0, held: bool = False) -> None:
        """Note that an entity has to be predicted, for the first time or anew. offset: of its sample. held:
        do not ask for it yet.

        An entity that waits already keeps its place. Otherwise one that comes all the time would delay all
        others.
        """
        found = self._entries.get(entity) or EntityForecast(now)
        if found.awaited:
            return
        self._awaited += 1
        found.awaited, found.since, found.offset = True, now, offset
        if held:
            self._hold(entity, found)
        else:
            self._gathered[entity] = None
        self._put(entity, found)

    def gather(self, most: int) -> list[str]:
        """Up to ``most`` entities that nobody was asked for, the one that waits longest first; they count as
        asked for now."""
        entities = list(islice(self._gathered, most))
        for entity in entities:
            del self._gathered[entity]
        return entities

    # ---- what is held back

    @property
    def held(self) -> int:
        """Entities that wait, and are not asked for yet."""
        return len(self._held)

    @property
    def held_with_label(self) -> int:
        """Held entities whose label has come."""
        return self._held_with_label

    @property
    def first_held(self) -> str | None:
        return next(iter(self._held), None)

    def has_label(self, entity: str) -> bool:
        """Whether the label of an entity that waits has come."""
        return self._entries[entity].label is not None

    def hold_all(self) -> None:
        """Hold back all entities that nobody was asked for."""
        for entity in sorted(self._gathered, key=lambda one: self._entries[one].offset):
            self._hold(entity, self._entries[entity])
        self._gathered = {}

    def let_go(self, entity: str) -> None:
        """Hold the entity back no longer."""
        self._drop_held(entity)
        self._gathered[entity] = None

    def _hold(self, entity: str, forecast: EntityForecast) -> None:
        self._held[entity] = None
        self._held_with_label += forecast.label is not None

    def _drop_held(self, entity: str) -> None:
        del self._held[entity]
        self._held_with_label -= self.has_label(entity)

    # ----

    def predicted(
        self, entity: str, output: float, version: int, parties: int, now: float
    ) -> EntityForecast | None:
        """Store a prediction and count it in ``revision``. Returns None if no prediction is waited for any
        more."""
        found = self._entries.get(entity)
        if found is None or not found.awaited:
            return None
        found.awaited, found.since = False, now
        self._awaited -= 1
        found.output, found.version, found.parties = output, version, parties
        found.revision += 1
        self._put(entity, found)
        return found

    def keep_label(self, entity: str, label: float, now: float) -> None:
        """Keep a label that came before the prediction."""
        found = self._entries.get(entity) or EntityForecast(now)
        self._held_with_label += entity in self._held and found.label is None
        found.label, found.since = label, now
        if entity in self._gathered:
            # Keep the order in which all of them would be restored.
            del self._gathered[entity]
            self._gathered[entity] = None
        self._put(entity, found)

    def forget(self, name: str) -> None:
        if name in self._held:
            self._drop_held(name)
        self._awaited -= self._entries[name].awaited
        self._gathered.pop(name, None)
        super().forget(name)
        self.on_forget(name)

    def restore(self, name: str, entry: EntityForecast) -> None:
        super().restore(name, entry)
        if entry.awaited:
            self._awaited += 1
            self._gathered[name] = None

    def reason(self, entry: EntityForecast, why: str) -> str:
        return why if why == "displaced" else "no_label" if entry.label is None else "no_columns"
