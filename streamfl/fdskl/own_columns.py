"""A party's own columns of entities, as they came, and the mean and deviation that they are standardised by."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.changelog import ChangedParts
from streamfl.moments import overdue, set_back
from streamfl.restored import Time, check_name, check_within
from streamfl.wire import Count, decode_array, encode_array

__all__ = ["OwnColumns", "Standardisation"]

LARGEST_INPUT = 1e18
# A standardised column beyond this is cut off: it says no more than that it is far out.
FAR_OUT = 1e6


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
            check_within(columns, -LARGEST_INPUT, LARGEST_INPUT, "columns")
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


class _Moments(msgspec.Struct, array_like=True):
    """count: entities. mean, squares: (columns,) raw numbers, the sum of squared differences from the mean. frozen: they stay."""

    count: Count
    mean: bytes
    squares: bytes
    frozen: bool


class Standardisation:
    """Running mean and deviation of each column (Welford 1962) until the first answer; then they stay. Remembered as ``columns``.

    parts: where they are remembered.
    count: columns.
    wanted: False: columns are used as they come.
    transform: arcsinh: of every number before anything else; none.
    """

    def __init__(self, parts: ChangedParts, count: int, wanted: bool, transform: str = "none") -> None:
        self._parts = parts
        self._wanted = wanted
        self._transform = transform
        self.seen = 0
        self.frozen = not wanted
        self._mean, self._squares = np.zeros(count), np.zeros(count)

    def see(self, columns: NDArray[np.float64]) -> None:
        """One more entity, (columns,); of no effect once frozen."""
        if self.frozen:
            return
        columns = self._transformed(columns)
        self.seen += 1
        before = columns - self._mean
        self._mean += before / self.seen
        self._squares += before * (columns - self._mean)
        self._remember()

    def freeze(self) -> None:
        """From now on they stay: features would mean something else."""
        if not self.frozen:
            self.frozen = True
            self._remember()

    def apply(self, rows: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Rows with mean 0 and deviation 1, (n, columns); 0, the mean, for entities that are not known."""
        rows = self._transformed(rows)
        if self._wanted:
            deviation = np.sqrt(self._squares / max(1, self.seen))
            rows = (rows - self._mean) / np.where(deviation > 0, deviation, 1.0)
        rows = np.clip(rows, -FAR_OUT, FAR_OUT)
        rows[~known] = 0.0
        return np.asarray(rows)

    def _transformed(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.arcsinh(numbers) if self._transform == "arcsinh" else numbers

    def restore(self, value: bytes) -> None:
        kept = msgspec.msgpack.decode(value, type=_Moments)
        shape = self._mean.shape
        mean = decode_array(kept.mean, np.float64, shape, "mean")
        squares = decode_array(kept.squares, np.float64, shape, "squares")
        check_within(mean, -LARGEST_INPUT, LARGEST_INPUT, "mean")
        check_within(squares, 0.0, 1e300, "squares")
        self.seen, self.frozen = kept.count, kept.frozen or not self._wanted
        self._mean, self._squares = mean.copy(), squares.copy()

    def _remember(self) -> None:
        kept = _Moments(self.seen, encode_array(self._mean), encode_array(self._squares), self.frozen)
        self._parts.remember(b"columns", kept)
