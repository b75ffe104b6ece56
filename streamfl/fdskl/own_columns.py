"""A party's own columns of entities, as they came."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.changelog import ChangedParts
from streamfl.moments import overdue, set_back
from streamfl.records.fields import LARGEST_NUMBER
from streamfl.restored import Time, check_name, check_within
from streamfl.wire import decode_array

__all__ = ["OwnColumns"]



class _Entity(msgspec.Struct, array_like=True, gc=False):
    """since: when they came. columns: raw numbers; none: it was asked for and has not come. asked: whether it was."""

    since: Time
    columns: bytes
    asked: bool


class OwnColumns:
    """The entities of a partition, the one whose columns came longest ago first; remembered as ``entity/NAME``.

    parts: where they are remembered.
    count: columns of an entity.
    expiry: seconds after its columns came that an entity is forgotten.
    limit: so many at most; the oldest gives way.
    forgotten: counts of the reasons ``expired`` and ``displaced``, shared by all partitions.
    """

    def __init__(self, parts: ChangedParts, count: int, expiry: float, limit: int, forgotten: dict[str, int]) -> None:
        self._parts = parts
        self._count = count
        self._expiry = expiry
        self._limit = limit
        self._forgotten = forgotten
        self._entities: dict[str, _Entity] = {}
        self._in_order = True

    def __len__(self) -> int:
        return len(self._entities)

    def knows(self, entity: str) -> bool:
        """Whether the entity's columns are here."""
        found = self._entities.get(entity)
        return found is not None and bool(found.columns)

    @property
    def wake_at(self) -> float | None:
        """When the oldest expires."""
        self._sort()
        return next(iter(self._entities.values())).since + self._expiry if self._entities else None

    def put(self, entity: str, columns: bytes, now: float) -> bool:
        """Columns of an entity came. Returns whether others have had to do without them, or with others."""
        found = self._entities.pop(entity, None)
        late = found is not None and found.asked and found.columns != columns
        self._entities[entity] = kept = _Entity(now, columns, found is not None and found.asked and not late)
        self._parts.remember(b"entity/" + entity.encode(), kept)
        self._make_room()
        return late

    def ask(self, entity: str, now: float) -> None:
        """The entity's columns went into a sum, or their mean did."""
        found = self._entities.get(entity)
        if found is None:
            found = self._entities[entity] = _Entity(now, b"", True)
        elif found.asked:
            return
        found.asked = True
        self._parts.remember(b"entity/" + entity.encode(), found)
        self._make_room()

    def rows(self, entities: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Columns of these entities, (n, count), 0 where there are none; and whether there are, (n,)."""
        found = [self._entities.get(entity) for entity in entities]
        known = np.array([one is not None and bool(one.columns) for one in found], np.bool_)
        empty = bytes(8 * self._count)
        content = b"".join(one.columns if one is not None and one.columns else empty for one in found)
        return np.frombuffer(content, "<f8").reshape(len(entities), self._count).astype(np.float64), known

    def expire(self, now: float) -> None:
        self._sort()
        for entity in overdue(self._entities, self._expiry, now):
            self._forget(entity, "expired")

    def set_back(self, now: float) -> None:
        """Let everything that came after ``now`` have come now: the clock was ahead."""
        self._sort()
        for entity in set_back(self._entities, now):
            self._parts.remember(b"entity/" + entity.encode(), self._entities[entity])

    def restore(self, name: bytes, value: bytes) -> None:
        entity = msgspec.msgpack.decode(value, type=_Entity)
        if entity.columns:
            columns = decode_array(entity.columns, np.float64, (self._count,), "columns")
            check_within(columns, -LARGEST_NUMBER, LARGEST_NUMBER, "columns")
        self._entities[check_name(name)] = entity
        self._in_order = False

    def _make_room(self) -> None:
        if len(self._entities) > self._limit:
            self._sort()
            self._forget(next(iter(self._entities)), "displaced")

    def _sort(self) -> None:
        """What is restored comes in the order of its last writing, and being asked for is written too."""
        if not self._in_order:
            self._entities = dict(sorted(self._entities.items(), key=lambda item: item[1].since))
            self._in_order = True

    def _forget(self, entity: str, reason: str) -> None:
        del self._entities[entity]
        self._parts.forget(b"entity/" + entity.encode())
        self._forgotten[reason] += 1
