"""A party's own columns of entities, as they came."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.encoding.changelog_checks import Amount, Time, check_within
from streamfl.encoding.wire import Count, decode_array
from streamfl.fdskl.messages import FeatureRange
from streamfl.fdskl.state import ENTITY
from streamfl.records.fields import LARGEST_NUMBER
from streamfl.state.changelog import ChangedParts
from streamfl.state.expiring_entries import ExpiringEntries

__all__ = ["OwnColumns"]


class _Entity(msgspec.Struct, array_like=True, gc=False):
    """What is known of an entity.

    since: when its columns came.
    columns: raw numbers; empty: it was asked for and has not come.
    asked: whether it was asked for.
    features: how many were answered for it, whatever its columns were.
    first, end: the last of these are ``first`` to ``end`` - 1.
    bandwidth: with which the last ones were drawn; None: the bandwidth of the first round with features.
    """

    since: Time
    columns: bytes
    asked: bool
    # Last, so that a release without these fields can read the rest.
    features: Count = 0
    first: Count = 0
    end: Count = 0
    bandwidth: Amount | None = None

    def tell(self, one: FeatureRange, bandwidth: float | None) -> None:
        """Count features that are answered for it. Those among the last ones are not counted again. A range
        that does not touch the last ones, or was drawn with another bandwidth, counts in full.
        """
        end = one.first + one.count
        if bandwidth != self.bandwidth or one.first > self.end or end < self.first:
            self.features += one.count
            self.first, self.end, self.bandwidth = one.first, end, bandwidth
            return
        self.features += max(0, self.first - one.first) + max(0, end - self.end)
        self.first, self.end = min(self.first, one.first), max(self.end, end)


class OwnColumns(ExpiringEntries[_Entity]):
    """The entities of a partition, the one whose columns came longest ago first.

    parts: where they are remembered.
    count: columns of an entity.
    expiry: seconds after its columns came until an entity is forgotten.
    limit: most entities. Beyond it the oldest is forgotten.
    features: most features that are answered for an entity in its life; None: no limit.
    forgotten: counts of the reasons ``expired`` and ``displaced``, shared by all partitions.
    """

    def __init__(
        self,
        parts: ChangedParts,
        count: int,
        expiry: float,
        limit: int,
        forgotten: dict[str, int],
        features: int | None = None,
    ) -> None:
        super().__init__(parts, ENTITY, _Entity, expiry, limit, forgotten)
        self._count = count
        self._features = features

    def knows(self, entity: str) -> bool:
        """Whether the entity's columns are here."""
        found = self._entries.get(entity)
        return found is not None and bool(found.columns)

    def is_spent(self, entity: str) -> bool:
        """Whether the entity has reached its limit of features."""
        found = self._entries.get(entity)
        return found is not None and self._features is not None and found.features >= self._features

    def put(self, entity: str, columns: bytes, now: float) -> bool:
        """Store an entity's columns. Returns whether others were answered without columns of it, or with
        different ones."""
        found = self._entries.get(entity)
        late = found is not None and found.asked and found.columns != columns
        kept = _Entity(now, columns, False) if found is None else found
        kept.since, kept.columns, kept.asked = now, columns, kept.asked and not late
        self._put(entity, kept)
        return late

    def ask(
        self, entity: str, now: float, told: Sequence[FeatureRange] = (), bandwidth: float | None = None
    ) -> None:
        """Note that the entity's columns, or their mean, went into a sum. told: the features that were
        answered. bandwidth: that they were drawn with; None: the first.
        """
        found = self._entries.get(entity)
        if found is None:
            found = self._entries[entity] = _Entity(now, b"", False)
        before = found.asked, found.features
        found.asked = True
        if self._features is not None:
            for one in told:
                found.tell(one, bandwidth)
        if (found.asked, found.features) == before:
            return
        self._remembered.remember(entity, found)
        self._make_room()

    def rows(self, entities: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Columns of these entities, (n, count), 0 where they are not known; and whether they are known,
        (n,)."""
        found = [self._entries.get(entity) for entity in entities]
        known = np.array([one is not None and bool(one.columns) for one in found], np.bool_)
        empty = bytes(8 * self._count)
        content = b"".join(one.columns if one is not None and one.columns else empty for one in found)
        return np.frombuffer(content, "<f8").reshape(len(entities), self._count).astype(np.float64), known

    def restore(self, name: str, entry: _Entity) -> None:
        if entry.columns:
            columns = decode_array(entry.columns, np.float64, (self._count,), "columns")
            check_within(columns, -LARGEST_NUMBER, LARGEST_NUMBER, "columns")
        super().restore(name, entry)
