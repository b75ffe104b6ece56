"""Scales columns to mean 0 and deviation 1, by the first entities of a party; columns with heavy tails become
logarithms.

The same rule serves a party, which sees one entity after the other, and a whole table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_within
from streamfl.encoding.wire import Count, decode_array, encode_array
from streamfl.fdskl.config import StandardisationSection
from streamfl.fdskl.state import COLUMNS
from streamfl.records.fields import LARGEST_NUMBER
from streamfl.state.changelog import ChangedParts

__all__ = ["Scaling", "Standardisation", "combined", "moments_of", "no_moments", "scaling_of"]

Floats = NDArray[np.float64]
# The fourth standardised moment beyond which a column has heavy tails; a normal distribution has 3.
HEAVY_TAILS = 6.0
# A column of two values is divided by at least this share of their distance. Otherwise a rare flag would make
# an entity unlike all others.
LEAST_FLAG = 0.2
# Standardised columns are cut off here. Otherwise columns that grow, such as a time, would make every later
# entity unlike all before it.
FAR_OUT = 5.0
# The same for a column that had one value, so that its deviation is unknown: only whether a value differs is
# used.
ANOTHER_VALUE = 1.0
# The same for columns that are used as they come.
LARGEST_INPUT = 1e6
# Rounding error of the fourth moment, by which a column of two values may seem to have more.
ROUNDING = 1e-6
LARGEST_SUM = 1e300


def no_moments(columns: int) -> Floats:
    """The moments of no entities: see :func:`moments_of`."""
    return np.zeros((5, 2, columns))


def moments_of(rows: Floats) -> Floats:
    """Moments of columns as they are, and of their arcsinh, (5, 2, columns). What is no number is left out.

    They are: count, mean, and the sums of the second, third and fourth powers of the differences from the
    mean.
    """
    seen = np.stack([np.isfinite(rows)] * 2)
    rows = np.where(seen[0], rows, 0.0)
    values = np.stack([rows, np.arcsinh(rows)])
    counts = seen.sum(axis=1).astype(np.float64)
    # Differences from one value of the column: in a constant column they are 0, however its mean is rounded.
    first = np.take_along_axis(values, seen.argmax(axis=1)[:, np.newaxis], axis=1)
    differences = np.where(seen, values - first, 0.0)
    means = differences.sum(axis=1) / np.maximum(1.0, counts)
    differences = np.where(seen, differences - means[:, np.newaxis], 0.0)
    squares = differences * differences
    sums = [squares.sum(axis=1), (squares * differences).sum(axis=1), (squares * squares).sum(axis=1)]
    return np.stack([counts, np.where(counts > 0, first[:, 0] + means, 0.0), *sums])


def combined(one: Floats, other: Floats) -> Floats:
    """Moments of both sets of entities together.   (Pebay 2008, eq. 2.1, 3.1 and 4.1; of single entities,
    one-pass updates)"""
    count, mean, second, third, fourth = one
    more, mean_of_more, second_of_more, third_of_more, fourth_of_more = other
    total = np.maximum(1.0, count + more)
    # Shares of the whole, from counts. These are exact, so the share of a part that is all is 1.
    part, rest = more / total, count / total
    apart = np.where((count > 0) & (more > 0), mean_of_more - mean, 0.0)
    square = apart * apart
    return np.stack(
        [
            count + more,
            np.where(count > 0, mean + apart * part, mean_of_more),
            second + second_of_more + square * count * part,
            third
            + third_of_more
            + square * apart * count * part * (rest - part)
            + 3 * apart * (rest * second_of_more - part * second),
            fourth
            + fourth_of_more
            + square * square * count * part * (rest * rest - rest * part + part * part)
            + 6 * square * (rest * rest * second_of_more + part * part * second)
            + 4 * apart * (rest * third_of_more - part * third),
        ]
    )


@dataclass(frozen=True)
class Scaling:
    """The scaling of each column; each array is (columns,).

    logarithms: whether arcsinh comes first.
    means: subtracted.
    deviations: divided by.
    limits: values beyond are cut off.
    """

    logarithms: NDArray[np.bool_]
    means: Floats
    deviations: Floats
    limits: Floats

    def apply(self, rows: Floats) -> Floats:
        """Scaled rows, (n, columns); 0, the mean, for what is no number."""
        scaled = (np.where(self.logarithms, np.arcsinh(rows), rows) - self.means) / self.deviations
        return np.asarray(np.where(np.isfinite(rows), np.clip(scaled, -self.limits, self.limits), 0.0))


def scaling_of(moments: Floats, auto: bool = True) -> Scaling:
    """The scaling that gives each column mean 0 and deviation 1.

    moments: as :func:`moments_of` has them.
    auto: arcsinh comes first where the fourth standardised moment is above 6, and not where it would only
    squeeze an evenly spread column; and a column of two values is divided by a fifth of their distance at
    least.
    """
    counts, means, second, third, fourth = moments
    counts = np.maximum(1.0, counts)
    deviations = np.sqrt(second / counts)
    # The squares of squares of very small numbers are 0, so nothing is known of their tails.
    known = second * second > 0
    safe = np.where(known, second, 1.0)
    skewness = np.where(known, np.sqrt(counts) * third / safe**1.5, 0.0)
    kurtosis = np.where(known, counts * fourth / safe**2, 3.0)
    logarithms = (kurtosis[0] > HEAVY_TAILS) & auto
    if auto:
        # Only for two values the kurtosis is 1 + skewness^2 (Pearson 1916), and their distance is sqrt(4 +
        # skewness^2) deviations.
        flags = kurtosis - skewness**2 - 1 < ROUNDING * kurtosis
        deviations = deviations * np.where(flags, np.maximum(1.0, LEAST_FLAG * np.sqrt(4 + skewness**2)), 1.0)
    limits = np.where(deviations > 0, FAR_OUT, ANOTHER_VALUE)
    deviations = np.where(deviations > 0, deviations, 1.0)
    return Scaling(logarithms, *(np.where(logarithms, own[1], own[0]) for own in (means, deviations, limits)))


class _Remembered(msgspec.Struct, array_like=True):
    """count: entities. moments: (5, 2, columns). frozen: whether they are final."""

    count: Count
    moments: bytes
    frozen: bool


class Standardisation:
    """Moments of a party's columns, which are frozen once enough entities were seen.

    They are frozen at sample ``first_entities`` of the partition, so reading the samples again gives the same
    moments.

    parts: where they are remembered.
    count: columns.
    settings: whether and how columns are scaled.
    patience: seconds without a sample after which the party waits for no more.
    """

    def __init__(
        self, parts: ChangedParts, count: int, settings: StandardisationSection, patience: float
    ) -> None:
        self._write = parts.single(COLUMNS, _Remembered, self.restore)
        self._wanted = settings.columns
        self._first = settings.first_entities
        self._patience = patience
        self._auto = settings.transform == "auto"
        self.seen = 0
        self.frozen = not self._wanted
        self._moments = no_moments(count)
        # Since when no sample came, as far as this object knows.
        self._quiet_since: float | None = None

    def begin(self, now: float) -> None:
        """Set the time of the messages that follow."""
        if self._quiet_since is None:
            self._quiet_since = now

    def set_back(self, now: float) -> None:
        """The clock was ahead: set later times back to ``now``."""
        if self._quiet_since is not None:
            self._quiet_since = min(self._quiet_since, now)

    @property
    def waits_until(self) -> float:
        """When the entities seen so far count as all, if no sample comes until then; at once before any
        message."""
        return -math.inf if self._quiet_since is None else self._quiet_since + self._patience

    def see(self, columns: Floats, now: float) -> None:
        """Add an entity, (columns,). It has no effect once the moments are frozen."""
        if self.frozen:
            return
        self._quiet_since = now
        self.seen += 1
        self._moments = combined(self._moments, moments_of(columns[np.newaxis]))
        self.frozen = self.seen >= self._first
        self._remember()

    def freeze(self) -> None:
        """Wait for no more entities. Answers computed with the moments have to come after the commit that
        remembers this."""
        if not self.frozen:
            self.frozen = True
            self._remember()

    def apply(self, rows: Floats, known: NDArray[np.bool_]) -> Floats:
        """Standardised rows, (n, columns); 0, the mean, for entities that are not known."""
        found = (
            scaling_of(self._moments, self._auto).apply(rows)
            if self._wanted
            else np.clip(rows, -LARGEST_INPUT, LARGEST_INPUT)
        )
        found[~known] = 0.0
        return found

    def restore(self, kept: _Remembered) -> None:
        moments = decode_array(kept.moments, np.float64, self._moments.shape, "moments")
        counts, means, second, third, fourth = moments
        check_within(counts, 0.0, kept.count, "counts of columns")
        check_within(means, -LARGEST_NUMBER, LARGEST_NUMBER, "means")
        check_within(third, -LARGEST_SUM, LARGEST_SUM, "sums of cubes")
        for sums in (second, fourth):
            check_within(sums, 0.0, LARGEST_SUM, "sums of even powers")
        if (counts % 1 != 0).any():
            raise BadRecord("malformed", "columns are remembered of parts of entities")
        self.seen, self.frozen, self._moments = kept.count, kept.frozen or not self._wanted, moments.copy()

    def _remember(self) -> None:
        self._write(_Remembered(self.seen, encode_array(self._moments), self.frozen))
