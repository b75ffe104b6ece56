"""Preprocessing: how a party transforms its own columns before training. It is fitted to the party's own
rows.

Only the guest may use labels for it (:mod:`streamfl.quasi_newton.rows.weight_of_evidence`), because a host
would need counts of labels in its bins. No function here takes labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamfl.quasi_newton.rows.bins import bin_numbers, lower_ends

__all__ = ["EVIDENCE", "METHODS", "Method", "Preprocessing", "fit_preprocessing", "most_columns"]

Floats = NDArray[np.float64]
Method = Literal["none", "standardise", "clip", "rank", "signed-log", "quantile-bins", "weight-of-evidence"]
METHODS: tuple[Method, ...] = ("none", "standardise", "clip", "rank", "signed-log", "quantile-bins")
"""The methods that need no labels."""
EVIDENCE: Method = "weight-of-evidence"
# Most knots of a column's empirical distribution.
MOST_KNOTS = 1001
BINS = 8


@dataclass(frozen=True)
class Preprocessing:
    """A fitted transformation of columns. Later rows are transformed like the rows that it was fitted to.

    fill: by column, the median, which replaces a missing number.
    low, high: by column, the ends at which it is cut: quantiles for "clip", or from :meth:`cut`; None:
    columns are not cut.
    knots: for "rank", by column, values with their place in the distribution, (knots, 2).
    edges: for "quantile-bins" and "weight-of-evidence", by column, the bins' lower ends but the first's.
    Missing numbers have a bin of their own, the last.
    kept: for "quantile-bins", by column, the bins that have a column of their own. Rows of other bins have
    zeros.
    values: for "weight-of-evidence", by column, the weight of each bin.
    mean, deviation: of the result's columns.
    """

    method: Method
    fill: Floats
    mean: Floats
    deviation: Floats
    low: Floats | None = None
    high: Floats | None = None
    knots: list[Floats] = field(default_factory=list)
    edges: list[Floats] = field(default_factory=list)
    kept: list[list[int]] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)

    def apply(self, rows: Floats) -> Floats:
        """Transform raw rows, (rows, columns), into (rows, columns of the result)."""
        changed = self._changed(np.asarray(rows, dtype=np.float64))
        return np.asarray((changed - self.mean) / self.deviation)

    @property
    def is_bounded(self) -> bool:
        """Whether the result is bounded for any input."""
        return self.method in ("rank", "quantile-bins", EVIDENCE)

    def cut(self, rows: Floats, stays: NDArray[np.bool_]) -> Preprocessing:
        """The same preprocessing with columns cut at their range in the rows that stay.

        rows: raw, (rows, columns). Mean and deviation are of all of them, after the cut.
        stays: (rows,), one or more are true.
        """
        near = self._filled(rows)[stays]
        found = replace(self, low=near.min(axis=0), high=near.max(axis=0))
        return found if self.method == "none" else found.standardised(rows)

    def standardised(self, rows: Floats) -> Preprocessing:
        """The same preprocessing with a result of mean 0 and deviation 1 on these raw rows, (rows,
        columns)."""
        changed = self._changed(rows)
        mean, deviation = changed.mean(axis=0), changed.std(axis=0)
        # A constant column becomes 0. Its deviation may be above 0 by rounding alone.
        deviation = np.where(deviation > 1e-12 * np.maximum(1.0, np.abs(mean)), deviation, 1.0)
        return replace(self, mean=mean, deviation=deviation)

    def bins(self, rows: Floats) -> NDArray[np.intp]:
        """The bin of each number, (rows, columns), for methods with bins."""
        return bin_numbers(rows, self.edges)

    def _changed(self, rows: Floats) -> Floats:
        """The result before mean and deviation are taken off."""
        if self.method == "quantile-bins":
            numbers = self.bins(rows)
            shown = [numbers[:, [column]] == np.array(kept) for column, kept in enumerate(self.kept) if kept]
            return np.hstack(shown).astype(np.float64) if shown else np.zeros((len(rows), 0))
        if self.method == EVIDENCE:
            numbers = self.bins(rows)
            return np.column_stack([own[numbers[:, column]] for column, own in enumerate(self.values)])
        rows = self._filled(rows)
        if self.method == "signed-log":
            return np.asarray(np.sign(rows) * np.log1p(np.abs(rows)))
        if self.method == "rank":
            return np.column_stack(
                [np.interp(rows[:, at], own[:, 0], own[:, 1]) for at, own in enumerate(self.knots)]
            )
        return rows

    def _filled(self, rows: Floats) -> Floats:
        """Raw rows with missing numbers filled, and cut at the ends."""
        rows = np.where(np.isfinite(rows), rows, self.fill)
        return (
            rows if self.low is None or self.high is None else np.asarray(np.clip(rows, self.low, self.high))
        )


def fit_preprocessing(
    method: Method,
    rows: Floats,
    *,
    ends: float = 0.01,
    bins: int = BINS,
    least: int = 100,
    standardise: bool = True,
) -> Preprocessing:
    """Fit the preprocessing to a party's own training rows.

    method: "none" only fills missing numbers; "standardise" gives mean 0 and deviation 1. Before that, "clip"
    cuts the tails off, "rank" takes the share of rows with smaller numbers, "signed-log" sign(x) log(1 +
    |x|). "quantile-bins" gives each bin of about equally many rows a column of 0 and 1.
    rows: (rows, columns). A number that is not finite counts as missing.
    ends: for "clip", the share of rows beyond each end.
    bins: for "quantile-bins", the most bins of a column.
    least: for "quantile-bins", the fewest rows of a bin with its own column; a rarer bin would single out its
    members.
    standardise: whether columns of 0 and 1 get mean 0 and deviation 1 as well.
    """
    if method not in METHODS:
        raise ValueError(f"preprocessing {method!r} is not one of {', '.join(METHODS)}")
    rows = np.asarray(rows, dtype=np.float64)
    rows = np.where(np.isfinite(rows), rows, np.nan)
    present = [column[~np.isnan(column)] for column in rows.T]
    fill = np.array([np.median(column) if len(column) else 0.0 for column in present])
    given: dict[str, object] = {}
    if method == "clip":
        ends_of = [
            np.quantile(column, [ends, 1 - ends]) if len(column) else np.zeros(2) for column in present
        ]
        given = {"low": np.array([own[0] for own in ends_of]), "high": np.array([own[1] for own in ends_of])}
    elif method == "rank":
        given = {"knots": [_knots(column) for column in present]}
    elif method == "quantile-bins":
        given = _bins(rows, present, bins, least)
    zeros = np.zeros(rows.shape[1])
    unscaled = Preprocessing(method, fill, zeros, zeros + 1, **given)  # type: ignore[arg-type]
    if method == "none" or (method == "quantile-bins" and not standardise):
        columns = unscaled._changed(rows).shape[1]
        return replace(unscaled, mean=np.zeros(columns), deviation=np.ones(columns))
    return unscaled.standardised(rows)


def most_columns(method: Method, columns: int) -> int:
    """Most columns made of ``columns`` raw ones. With quantile-bins each bin but the largest has one; missing
    numbers are a bin."""
    return columns * (BINS if method == "quantile-bins" else 1)


def _knots(column: Floats) -> Floats:
    """Distinct values with the share of rows below them, in [0, 1]; for a column of many values, its
    quantiles.

    With the middle of ranks instead, the zeros of a count that is mostly 0 would lie next to the few larger
    values.
    """
    if not len(column):
        return np.zeros((1, 2))
    values, counts = np.unique(column, return_counts=True)
    places = (np.cumsum(counts) - counts) / len(column)
    if len(values) > MOST_KNOTS:
        chosen = np.unique(
            np.searchsorted(places, np.linspace(places[0], places[-1], MOST_KNOTS)).clip(max=len(values) - 1)
        )
        values, places = values[chosen], places[chosen]
    return np.column_stack([values, places])


def _bins(rows: Floats, present: list[Floats], bins: int, least: int) -> dict[str, object]:
    edges, kept = [lower_ends(values, bins, least) for values in present], []
    for column, numbers in enumerate(bin_numbers(rows, edges).T):
        counts = np.bincount(numbers, minlength=len(edges[column]) + 2)
        common = [number for number in range(len(counts)) if counts[number] >= least]
        # The bins' columns add up to one. Without the largest bin the others are linearly independent.
        largest = max(common, key=lambda number: counts[number], default=None)
        kept.append([number for number in common if number != largest])
    return {"edges": edges, "kept": kept}
