"""The frozen rows of a fit: whole numbers within public bounds. Their number does not depend on the data.

The neighbouring relation of every claim: one entity's whole row, its features at all parties and its label,
is replaced by any other row, or by nothing. Ids, times and the number of rows are public. So a row that is
missing or cannot be read becomes a row of zeros: a shorter window would reveal it and move every mean. Bounds
and centres are configuration. Values beyond a bound are clipped to it. Nobody counts clipped or missing
values, because no noise would cover such a count.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FEATURE_BITS",
    "FEATURE_ONE",
    "RESIDUAL_BITS",
    "RESIDUAL_ONE",
    "Bounds",
    "Window",
    "assemble",
    "correlations",
    "freeze",
    "outputs",
    "whole_label",
    "whole_row",
]

Whole = TypeVar("Whole", np.int16, np.int64)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
# A feature of 1 and a label or prediction of 1, as whole numbers.
FEATURE_BITS = 14
FEATURE_ONE: int = 2**FEATURE_BITS
RESIDUAL_BITS = 18
RESIDUAL_ONE: int = 2**RESIDUAL_BITS
# Sums of products below this are exact in double precision, in any order and on every machine.
EXACT = 2**53
CHUNK = 4096


@dataclass(frozen=True)
class Bounds:
    """Public bounds that scale values: (value - centre) / bound is clipped to -1 and 1.

    centre, bound: (columns,), bounds above 0.
    """

    centre: Floats
    bound: Floats

    def __post_init__(self) -> None:
        if self.centre.shape != self.bound.shape or not (
            np.isfinite(self.centre).all() and np.isfinite(self.bound).all()
        ):
            raise ValueError("a centre and a bound are needed for each column, both finite")
        if not (self.bound > 0).all():
            raise ValueError("bounds have to be above 0")

    @classmethod
    def of(cls, centre: float | list[float], bound: float | list[float], columns: int) -> Bounds:
        """Of ``columns`` columns. centre, bound: one number for all, or one for each."""
        return cls(
            *(np.broadcast_to(np.array(given, dtype=np.float64), columns) for given in (centre, bound))
        )


@dataclass(frozen=True)
class Window:
    """columns: (rows, columns) int16, a feature of 1 is ``FEATURE_ONE``. labels: (rows,) int64, a label of 1
    is ``RESIDUAL_ONE``.

    digest: SHA-256 of the shape, the columns and the labels.
    """

    columns: NDArray[np.int16]
    labels: Integers
    digest: bytes


def freeze(
    features: NDArray[Any], labels: NDArray[Any], feature_bounds: Bounds, label_bounds: Bounds, rows: int
) -> Window:
    """The window of ``rows`` rows. Raises ValueError for more.

    features: (up to rows, columns) float, NaN where there is none. A row with a number that is not finite
    becomes zeros.
    labels: (up to rows,), likewise. A row without a label has a label of 0, the centre.
    """
    if len(features) > rows or len(labels) > rows:
        raise ValueError(f"{max(len(features), len(labels))} rows: the window has {rows}")
    columns = _scaled(
        features, feature_bounds, FEATURE_ONE, np.zeros((rows, len(feature_bounds.bound)), np.int16)
    )
    told = _scaled(labels[:, np.newaxis], label_bounds, RESIDUAL_ONE, np.zeros((rows, 1), np.int64))
    return assemble(columns, told[:, 0])


def assemble(columns: NDArray[np.int16], labels: Integers) -> Window:
    """The window of rows that are already whole numbers within their bounds, as ``freeze`` and ``whole_row``
    make them."""
    digest = hashlib.sha256(b"streamfl window/1 %d %d;" % columns.shape)
    digest.update(columns.astype("<i2", copy=False).data)
    digest.update(labels.astype("<i8", copy=False).data)
    return Window(columns, labels, digest.digest())


def whole_row(values: Sequence[float] | NDArray[Any], bounds: Bounds) -> NDArray[np.int16]:
    """One row's features as ``freeze`` makes them, (columns,): all zeros if a number is not finite. Called
    for each record."""
    with np.errstate(over="ignore", invalid="ignore"):
        row = (np.asarray(values, dtype=np.float64) - bounds.centre) / bounds.bound
    if not np.isfinite(row).all():
        return np.zeros(len(row), np.int16)
    return np.asarray(np.rint(np.minimum(np.maximum(row, -1.0), 1.0) * FEATURE_ONE), dtype=np.int16)


def whole_label(value: float, bounds: Bounds) -> int:
    """A label as a window has it: 0 where it is not finite."""
    scaled = (value - float(bounds.centre[0])) / float(bounds.bound[0])
    return round(max(-1.0, min(1.0, scaled)) * RESIDUAL_ONE) if math.isfinite(scaled) else 0


def correlations(columns: NDArray[np.int16], residuals: Integers, most: int) -> Integers:
    """Sums of feature times residual, exact: (columns,) int64.

    If one row is replaced, each sum moves by at most 2 FEATURE_ONE max |residual|, because that row's product
    lies between plus and minus half of that, before and after.

    residuals: (rows,).
    most: the public bound of each, whatever the rows are. Raises ValueError if a sum over a chunk could
    exceed 2^53 with it. The residuals themselves are not checked: a refusal must not depend on rows.
    """
    if CHUNK * FEATURE_ONE * most >= EXACT:
        raise ValueError(f"residuals may be up to {most / RESIDUAL_ONE:g}, which is too large for exact sums")
    total = np.zeros(columns.shape[1], dtype=np.int64)
    values = residuals.astype(np.float64)
    for start in range(0, len(columns), CHUNK):
        total += (values[start : start + CHUNK] @ columns[start : start + CHUNK].astype(np.float64)).astype(
            np.int64
        )
    return total


def outputs(columns: NDArray[np.int16], weights: Integers) -> Integers:
    """Sums over the columns of feature times weight, exact: (rows,) int64. Each row's depends on that row
    alone.

    weights: (columns,). Raises ValueError if a sum could exceed 2^53.
    """
    if FEATURE_ONE * int(np.sum(np.abs(weights))) >= EXACT:
        raise ValueError("the weights are too large for exact sums")
    active = np.flatnonzero(weights)
    return np.asarray(
        columns[:, active].astype(np.float64) @ weights[active].astype(np.float64), dtype=np.int64
    )


def _scaled(values: NDArray[Any], bounds: Bounds, one: int, into: NDArray[Whole]) -> NDArray[Whole]:
    """Whole numbers of ``one``. Rows that are missing, or with a number that is not finite, are zeros."""
    for start in range(0, len(values), CHUNK):
        # Numbers that are too large, or NaN, are handled below.
        with np.errstate(over="ignore", invalid="ignore"):
            part = (
                np.asarray(values[start : start + CHUNK], dtype=np.float64) - bounds.centre
            ) / bounds.bound
        whole = np.isfinite(part).all(axis=1)
        part[~whole] = 0.0
        into[start : start + len(part)] = np.rint(np.clip(part, -1, 1) * one)
    return into
