"""The table of a party's own entities: columns, and at the guest labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import Time, check_within
from streamfl.encoding.wire import decode_array
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.state import ENTITY
from streamfl.records.fields import LARGEST_NUMBER
from streamfl.state.changelog import ChangedParts
from streamfl.state.expiring_entries import ExpiringEntries

__all__ = ["EntityTable"]


class _Entity(msgspec.Struct, array_like=True, gc=False):
    """since: when its columns or label last changed. columns: raw numbers; empty: none yet. label: -1 or 1;
    0: none yet."""

    since: Time
    columns: bytes
    label: int


class EntityTable(ExpiringEntries[_Entity]):
    """The entities of a partition, the one that changed longest ago first.

    columns: how many an entity has.
    labelled: whether an entity needs a label.
    expiry: seconds after which an entity is forgotten.
    limit: most entities; beyond it the oldest is forgotten.
    counts: the member's counters.
    is_taken: whether an entity, by name, is learnt or held out, so that no training may take it.
    """

    def __init__(
        self,
        parts: ChangedParts,
        columns: int,
        labelled: bool,
        expiry: float,
        limit: int,
        counts: MemberCounts,
        is_taken: Callable[[str], bool] = lambda name: False,
    ) -> None:
        super().__init__(parts, ENTITY, _Entity, expiry, limit, {})
        self._counts = counts
        self._columns = columns
        self._labelled = labelled
        self._is_taken = is_taken
        # None: to be counted again.
        self._complete: int | None = 0
        self._known: int | None = 0
        self.on_forget: Callable[[str], None] = lambda _name: None
        """Called with the name of an entity that is forgotten."""

    @property
    def complete(self) -> int:
        """Number of entities that have all that a training needs, and that it may take."""
        if self._complete is None:
            self._complete = sum(
                self._counts_as_complete(name, entity) for name, entity in self._entries.items()
            )
        return self._complete

    @property
    def known(self) -> int:
        """The same number, including entities that a training may not take: held out, or learnt from
        already."""
        if self._known is None:
            self._known = sum(map(self._is_complete, self._entries.values()))
        return self._known

    @property
    def latest(self) -> float:
        """When an entity last changed; 0 if there is none."""
        self._sort()
        return next(reversed(self._entries.values())).since if self._entries else 0.0

    def put(self, entity: str, now: float, columns: bytes = b"", label: int = 0) -> bool:
        """Take an entity's columns or its label. Returns whether a training may take one more entity now."""
        found = self._entries.get(entity)
        known = found if found is not None else _Entity(now, b"", 0)
        changed = _Entity(now, columns or known.columns, label or known.label)
        if found is not None and (found.columns, found.label) == (changed.columns, changed.label):
            return False
        first = not self._is_complete(known) and self._is_complete(changed)
        more = first and not self._is_taken(entity)
        if self._complete is not None:
            self._complete += more
        if self._known is not None:
            self._known += first
        self._put(entity, changed)
        return more

    def recount(self) -> None:
        """To be called when ``is_taken`` has changed for some entity."""
        self._complete = None

    def candidates(self) -> list[str]:
        """Names of the entities that a training may take, sorted."""
        return sorted(
            name for name, entity in self._entries.items() if self._counts_as_complete(name, entity)
        )

    def with_columns(self) -> set[str]:
        """Names of entities that have columns, whatever else they lack."""
        return {name for name, entity in self._entries.items() if entity.columns}

    def label(self, name: str) -> int:
        """-1 or 1; 0 for none."""
        entity = self._entries.get(name)
        return 0 if entity is None else entity.label

    def rows(self, names: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """Columns, (names, columns), and labels, (names,)."""
        found = [self._entries[name] for name in names]
        content = b"".join(entity.columns for entity in found)
        numbers = np.frombuffer(content, "<f8").reshape(len(names), self._columns).astype(np.float64)
        return numbers, np.array([entity.label for entity in found], dtype=np.int8)

    def forget(self, name: str) -> None:
        gone = self._entries[name]
        if self._known is not None:
            self._known -= self._is_complete(gone)
        if self._complete is not None:
            self._complete -= self._counts_as_complete(name, gone)
        super().forget(name)
        self.on_forget(name)

    def restore(self, name: str, entry: _Entity) -> None:
        if entry.columns:
            numbers = decode_array(entry.columns, np.float64, (self._columns,), "columns")
            check_within(numbers, -LARGEST_NUMBER, LARGEST_NUMBER, "columns")
        if entry.label not in (-1, 0, 1):
            raise BadRecord("malformed", f"label {entry.label} in state")
        super().restore(name, entry)
        # Which entities are taken may be restored after this.
        self._complete, self._known = None, None

    def _give_up(self, name: str, why: str) -> None:
        # Counted among the member's counts.
        self._counts.expired_entities += why == "expired"
        self._counts.displaced_entities += why == "displaced"
        self.forget(name)

    def _is_complete(self, entity: _Entity) -> bool:
        return bool(entity.columns) and (entity.label != 0 or not self._labelled)

    def _counts_as_complete(self, name: str, entity: _Entity) -> bool:
        return self._is_complete(entity) and not self._is_taken(name)
