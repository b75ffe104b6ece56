"""Means of a party's columns and of the label, with noise. Its window is centred by them, so the model has an
intercept.

A mean is a sum divided by n, which is public. The sums of d columns and of the label are of values within -1
and 1, their public bounds. The label's sum is multiplied by w = floor(sqrt(d)). So one replaced row moves a
column's sum by 2 at most, the label's by 2 w, and all of them together by 2 sqrt(d + w^2) in Euclidean
length, which is reached. Each number has noise for that: sigma^2 = 4 (d + w^2) / (2 cost). The label's own
sum then has noise sigma / w, which does not grow with d. Without w the label's mean, which is in every
prediction, would have the noise of d columns.

A value within 1 lies within 1 + |mean| once it is centred. It is clipped to 1 again, so that every
sensitivity that rests on the bounds stays as it was: a row of the centred window follows from that row and
from what was released. Wider bounds would make noise up to twice as strong for all rows, for the sake of rows
that are further than a bound from the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.window import (
    CHUNK,
    FEATURE_BITS,
    FEATURE_ONE,
    RESIDUAL_BITS,
    RESIDUAL_ONE,
    Window,
    assemble,
)
from streamfl.privacy.integer_noise import IntegerNoise
from streamfl.privacy.release_bits import Release, release_bits

__all__ = ["Means", "MeansPlan", "centred", "intercept", "means_bits", "plan_means", "released_means"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Means:
    """Means in a window's units: columns, (columns,), of ``FEATURE_ONE``; label of ``RESIDUAL_ONE``."""

    columns: Integers
    label: int


@dataclass(frozen=True)
class MeansPlan:
    """How one party's means are released. columns: d. noise: of its sums, None where epsilon is infinite."""

    columns: int
    noise: IntegerNoise | None

    @property
    def cost(self) -> float:
        return math.inf if self.noise is None else self.noise.cost

    @property
    def variation(self) -> float:
        """Total variation of the release."""
        return 0.0 if self.noise is None else (self.columns + 1) * self.noise.variation

    @property
    def weight(self) -> int:
        """w, which the label's sum is multiplied by."""
        return math.isqrt(self.columns)

    @property
    def times(self) -> Integers:
        """What each sum is multiplied by: (d + 1,)."""
        return np.append(np.ones(self.columns, dtype=np.int64), self.weight)

    @property
    def label_precision(self) -> float:
        """1 / variance of the label's mean, up to a factor that all parties share."""
        return 1.0 if self.noise is None else (self.weight / self.noise.deviation) ** 2

    def largest(self, rows: int) -> Integers:
        """Largest size of each released number, whatever the rows are: (d + 1,). rows: n."""
        most = rows * RESIDUAL_ONE * self.times
        return most if self.noise is None else most // self.noise.unit + 1 + self.noise.largest

    def means(self, told: Integers, rows: int) -> Means:
        """Means from the released numbers. told: (d + 1,). rows: n.

        A column's number within the noise of d zeros is taken as 0. Otherwise a wide table whose columns have
        no mean would get means of noise (Donoho and Johnstone 1994; the bits of d, in place of 2 ln d, are
        the same on every machine).
        """
        sums = told * (1 if self.noise is None else self.noise.unit)
        values = np.clip(sums / (rows * RESIDUAL_ONE * self.times), -1.0, 1.0)
        if self.noise is not None:
            seen = told[:-1].astype(np.float64) ** 2 > float(self.noise.variance * self.columns.bit_length())
            values[:-1] *= seen
        return Means(
            np.rint(values[:-1] * FEATURE_ONE).astype(np.int64), round(float(values[-1]) * RESIDUAL_ONE)
        )


def plan_means(cost: float, columns: int) -> MeansPlan:
    """A party's plan. cost: of the release, may be infinite. columns: d. Raises ValueError for less than one
    column or no cost."""
    if not cost > 0 or columns < 1:
        raise ValueError(f"cost = {cost}, {columns} columns: no means can be released for it")
    # A sum that moves by w times as much counts as w^2 numbers.
    plan = MeansPlan(columns, None)
    return (
        plan
        if math.isinf(cost)
        else MeansPlan(columns, IntegerNoise.of_box(2 * RESIDUAL_ONE, columns + plan.weight**2, cost))
    )


def released_means(window: Window, plan: MeansPlan, place: ReleaseContext) -> Integers:
    """Sums of the columns and w times that of the label, with noise, in the noise's units: (d + 1,). window:
    as it was frozen."""
    sums = np.append(
        window.columns.sum(axis=0, dtype=np.int64) << (RESIDUAL_BITS - FEATURE_BITS), window.labels.sum()
    )
    sums *= plan.times
    return sums if plan.noise is None else plan.noise.add(sums, means_bits(window, plan, place))


def means_bits(window: Window, plan: MeansPlan, place: ReleaseContext) -> bytes:
    """The bytes that the noise is drawn from."""
    assert plan.noise is not None
    given = (FEATURE_BITS, RESIDUAL_BITS, plan.columns, plan.weight, plan.noise.variance, plan.noise.unit)
    release = Release(
        place.ledger, place.federation, place.party, place.window, 0, "means", given, window.digest
    )
    return release_bits(place.secret, release, plan.columns + 1)


def centred(window: Window, means: Means) -> Window:
    """The window minus its means, clipped to the bounds again."""
    columns = np.empty_like(window.columns)
    for start in range(0, len(columns), CHUNK):
        part = window.columns[start : start + CHUNK].astype(np.int64) - means.columns
        columns[start : start + CHUNK] = np.clip(part, -FEATURE_ONE, FEATURE_ONE)
    labels = np.clip(window.labels - means.label, -RESIDUAL_ONE, RESIDUAL_ONE)
    return assemble(columns, labels)


def intercept(told: Mapping[str, Means], plans: Mapping[str, MeansPlan], x: Mapping[str, Floats]) -> float:
    """b, in label bounds: a prediction is b + sum of x_i a_i over the columns a_i as they come, within their
    own bounds.

    The parties' means of the label are averaged, weighted by their precision. A party that released none has
    centred nothing.

    told, plans: by party.
    x: weights by party, (columns,).
    """
    if not told:
        return 0.0
    precision = math.fsum(plans[party].label_precision for party in told)
    label = math.fsum(plans[party].label_precision / precision * means.label for party, means in told.items())
    moved = math.fsum(float(means.columns @ x[party]) for party, means in told.items())
    return label / RESIDUAL_ONE - moved / FEATURE_ONE
