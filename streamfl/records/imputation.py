"""Fills in numbers that a sample lacks: the mean of its client's earlier values, or the last of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from streamfl.contract.measurement import counter
from streamfl.contract.role import BadRecord, Measurement
from streamfl.encoding.changelog_checks import check_within
from streamfl.records.fields import LARGEST_NUMBER

__all__ = ["ImputationMetrics", "RunningMeans"]

# The largest count that a number in double precision holds exactly.
MOST = 2.0**53

_Key = tuple[int, str]


class ImputationMetrics:
    """Metrics of inputs that were filled in."""

    filled_inputs = counter("Missing inputs that were replaced by their client's own mean or last value")


class RunningMeans:
    """Fills in NaN by the client's running mean, (x_1 + … + x_n) / n of its n values so far, or by x_n; 0
    before the first.

    Filled-in values do not count. The state has three numbers per column and client.

    columns: the places of the numbers that may be missing.
    lasts: the columns that get the last value.
    relative: return these columns as differences from the client's first value. For a learner that uses only
    differences from its own running means, this changes only the meaning of 0: a value like the first, so
    that 0 is in scale if a client's first samples lack the value.
    """

    def __init__(
        self, columns: Sequence[int] = (), lasts: Sequence[int] = (), *, relative: bool = False
    ) -> None:
        self._columns = tuple(columns)
        self._lasts = {place for place, column in enumerate(self._columns) if column in lasts}
        self._relative = relative
        self._layout = struct.Struct(f"<{3 * len(self._columns)}d")
        # By client: counts, means or last values, and first values, column by column.
        self._known: dict[_Key, list[float]] = {}
        self._touched: dict[_Key, None] = {}
        self._filled = 0

    def __bool__(self) -> bool:
        return bool(self._columns)

    @property
    def record_bytes(self) -> int:
        """The length of a client's state, in bytes."""
        return self._layout.size

    def fill(self, key: _Key, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """Fill in NaN in a client's sample, and learn from the numbers that it has.

        key: the partition and the client's name.
        """
        count = len(self._columns)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = [0.0] * (3 * count)
        given = list(numbers)
        for place, column in enumerate(self._columns):
            number, seen = given[column], known[place]
            if number != number:
                number = known[count + place]
                self._filled += 1
            else:
                if not seen:
                    known[2 * count + place] = number
                known[place] = seen = min(seen + 1.0, MOST)
                known[count + place] = (
                    number
                    if place in self._lasts
                    else known[count + place] + (number - known[count + place]) / seen
                )
            given[column] = number - known[2 * count + place] if self._relative else number
        self._touched[key] = None
        return tuple(given)

    def forget(self, key: _Key) -> list[bytes]:
        """Forget a client; returns the names under which its state is stored."""
        self._touched.pop(key, None)
        return [] if self._known.pop(key, None) is None else [key[1].encode()]

    def close(self, partition: int) -> None:
        """Forget a partition's clients, which another worker remembers."""
        self._known = {key: known for key, known in self._known.items() if key[0] != partition}
        self._touched = {key: None for key in self._touched if key[0] != partition}

    def changed_state(self) -> Iterable[tuple[int, bytes, bytes]]:
        """Partition, name and value of the clients that have changed since the last call."""
        for key in self._touched:
            yield key[0], key[1].encode(), self._layout.pack(*self._known[key])
        self._touched = {}

    def restore(self, key: _Key, value: bytes) -> None:
        """Restore a value of ``changed_state``; BadRecord if it cannot be one."""
        if not self._columns or len(value) != self._layout.size:
            raise BadRecord("shape", f"means of {len(value)} bytes are remembered, not {self._layout.size}")
        known = list(self._layout.unpack(value))
        count = len(self._columns)
        check_within(known[:count], 0.0, MOST, "counts of values")
        check_within(known[count:], -LARGEST_NUMBER, LARGEST_NUMBER, "means of values")
        if not all(number.is_integer() for number in known[:count]) or np.any(
            (np.array(known[:count]) == 0) & np.any(np.reshape(known[count:], (2, count)) != 0, axis=0)
        ):
            raise BadRecord("malformed", "means of no values, or of a part of one, are remembered")
        self._known[key] = known

    def measure(self) -> Iterable[Measurement]:
        """How much was filled in."""
        yield ImputationMetrics.filled_inputs(self._filled)
