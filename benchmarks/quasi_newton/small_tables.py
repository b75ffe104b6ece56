"""How near to the optimum of Taylor's loss the defaults come on small tables, of one batch and of several.

``STREAMFL_DATA=folder python -m benchmarks.quasi_newton.small_tables`` runs ten tables and writes the table
of docs/quasi-newton-privacy.md. Rows are drawn by a seed, and all of them are learnt from. Columns are those
with the most values that differ from the commonest, 24 at most, dealt to two parties in turn. A label that is
a number is 1 above its median."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from benchmarks.accuracy_document import fill_in
from benchmarks.commands import DOCS, Floats, Markdown, arguments, data_folder, data_set, several
from benchmarks.quasi_newton.parties import first_weights, muted
from streamfl.learning.accuracy import log_loss
from streamfl.quasi_newton.encryption.fixed_point import Kinds, kinds
from streamfl.quasi_newton.learning import taylor
from streamfl.quasi_newton.learning.own_columns import rounded
from streamfl.quasi_newton.learning.section import CurvatureLearningSection
from streamfl.quasi_newton.rows.batches import check_support
from streamfl.quasi_newton.rows.near_rows import cut_at_near_rows
from streamfl.quasi_newton.rows.preprocessing import fit_preprocessing
from streamfl.quasi_newton.scoring.scorecard import fit_calibration
from streamfl.quasi_newton.tools.direct import Party, Trace, partition, train

DOCUMENT = DOCS / "quasi-newton-privacy.md"
STORED = (
    "credit_default",
    "gmsc",
    "phishing",
    "a9a",
    "elec2",
    "bike_hour",
    "parkinsons_telemonitoring",
    "naval",
    "air",
)
TABLES = (*STORED, "breast_cancer")
# Rows; of 3,000 and 5,000 come three and five batches.
SIZES = (500, 1000, 3000, 5000)
MOST_COLUMNS, GOAL, SEEDS = 24, 1e-3, 3


def read(folder: Path, name: str) -> tuple[Floats, Floats]:
    """Columns, and labels of -1 and 1."""
    if name == "breast_cancer":
        inputs, labels = load_breast_cancer(return_X_y=True)
    else:
        inputs, labels = data_set(folder, name)
        there = np.isfinite(labels)
        inputs, labels = inputs[there], labels[there]
        if name == "naval":
            inputs = inputs[:, :15]
    inputs = np.where(np.isfinite(inputs), inputs, np.nanmedian(inputs, axis=0))
    threshold = np.median(labels) if len(np.unique(labels)) > 2 else labels.mean()
    return inputs, np.where(labels > threshold, 1.0, -1.0)


@dataclass(frozen=True)
class Table:
    """A small one, as two parties learn from it. inputs: by party, as they come."""

    inputs: tuple[Floats, Floats]
    labels: Floats
    batches: NDArray[np.intp]

    @classmethod
    def drawn(cls, inputs: Floats, labels: Floats, rows: int, seed: int, together: bool = False) -> Table:
        """So many rows. together: as one batch, however many there are."""
        chosen = np.random.default_rng(seed).permutation(len(labels))[:rows]
        inputs, labels = inputs[chosen], labels[chosen]
        size = rows if together else min(rows, CurvatureLearningSection().batch)
        batches = partition(rows, size, seed)
        others = [rows - int(np.unique(column, return_counts=True)[1].max()) for column in inputs.T]
        best = np.sort(np.argsort(others, kind="stable")[::-1][:MOST_COLUMNS])
        return cls((inputs[:, best[::2]], inputs[:, best[1::2]]), labels, batches)

    def prepared(self) -> tuple[list[Floats], list[NDArray[np.bool_]], Kinds]:
        """What parties learn from with the defaults, as in a federation: columns, rows that are muted,
        numbers."""
        learning, size = CurvatureLearningSection(), self.batches.shape[1]
        numbers = kinds(2, size, size, inner_bound=learning.output_bound)
        columns, far, order = [], [], self.batches.ravel()
        largest = learning.largest_leverage
        for number, raw in enumerate(self.inputs):
            fitted = fit_preprocessing("clip", raw[order])
            fitted = cut_at_near_rows(
                fitted, raw[order], numbers.inputs, size, largest, intercept=number == 0
            )
            own = rounded(numbers.inputs, numbers.inputs.clip(fitted.apply(raw)))[1]
            rare = {
                column for rows in self.batches for column in check_support(own[rows], learning.min_support)
            }
            own = np.delete(own, sorted(rare), axis=1)
            columns.append(own)
            far.append(muted(own, self.batches, largest, intercept=number == 0))
        return columns, far, numbers


@dataclass(frozen=True)
class Found:
    """gap: of the training loss above its optimum. loss, theirs: log loss of the rows, calibrated, and
    scikit-learn's.

    The optimum is over the directions in which columns differ by more than rounding: where some repeat one
    another, it would else be found in what rounding has left between them.
    """

    gap: float
    iterations: int
    converged: bool
    loss: float
    theirs: float


def optimum(inputs: Floats, signs: Floats, step: float) -> Floats:
    """Weights of the least Taylor loss, where inputs are whole multiples of a step: (columns,).

    Rounding has a variance of step^2 / 12 along any direction. Those that have less than twice as much are
    left out.
    """
    left, spread, right = np.linalg.svd(inputs, full_matrices=False)
    told = np.square(spread) / len(inputs) > 2 * step**2 / 12
    return np.asarray(right[told].T @ ((left[:, told].T @ (2 * signs)) / spread[told]))


def measured(table: Table, seed: int, trained: Callable[..., Trace] = train) -> Found:
    """A training with the defaults, and the optimum of what it minimises."""
    columns, far, numbers = table.prepared()
    start = first_weights(seed, **{"0": columns[0].shape[1] + 1, "1": columns[1].shape[1]})
    learning = replace(CurvatureLearningSection().descent, batch=table.batches.shape[1])
    parties = [Party(*own) for own in zip(columns, start, far, strict=True)]
    trace = trained(parties, table.labels, learning, table.batches, numbers=numbers)
    order = table.batches.ravel()
    signs = table.labels[order]

    whole = [np.insert(columns[0], columns[0].shape[1], 1.0, axis=1), columns[1]]
    told = [np.where(out[:, np.newaxis], 0.0, own) for own, out in zip(whole, far, strict=True)]
    seen = np.hstack(told)[order]
    outputs = seen @ np.concatenate(trace.model)
    best = seen @ optimum(seen, signs, 2.0**-numbers.inputs.fraction_bits)
    gap = taylor.loss(outputs, signs) - taylor.loss(best, signs)
    ones = (signs > 0).astype(np.float64)
    calibration = fit_calibration(outputs, ones)
    inputs = np.hstack(columns)[order]
    theirs = LogisticRegression(C=1e6, max_iter=5000).fit(inputs, ones)
    ours, beside = calibration.probabilities(outputs), theirs.predict_proba(inputs)[:, 1]
    return Found(gap, len(trace.visited), trace.converged, log_loss(ours, ones), log_loss(beside, ones))


def main() -> None:
    given = arguments(
        "quasi_newton.small_tables",
        __doc__,
        seeds=(SEEDS, "so many"),
        table=several("left out: all", TABLES),
        together=(False, "learning.batch = the number of rows, where that is above 1,000"),
        write=(False, "into the document"),
    )
    lines = Markdown("table", "rows", "gap, each seed", "iterations", "log loss", "scikit-learn")
    worst = 0.0
    for name in given.table or TABLES:
        inputs, labels = read(data_folder(), name)
        for rows in SIZES:
            if rows > len(labels) or (given.together and rows <= 1000):
                continue
            found = [
                measured(Table.drawn(inputs, labels, rows, seed, given.together), seed)
                for seed in range(given.seeds)
            ]
            worst = max(worst, *(one.gap for one in found))
            gaps = " ".join(f"{one.gap:.5f}" for one in found)
            iterations = " ".join(f"{one.iterations}{'' if one.converged else ' (all)'}" for one in found)
            losses = (
                f"{np.mean(own):.4f}" for own in zip(*((one.loss, one.theirs) for one in found), strict=True)
            )
            lines.add(name, f"{rows:,}", gaps, iterations, *losses)
    print(f"largest gap {worst:.5f}, goal {GOAL}")
    if given.write:
        fill_in(DOCUMENT, {"together" if given.together else "small": str(lines)})


if __name__ == "__main__":
    main()
