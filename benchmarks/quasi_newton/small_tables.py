"""How near to the optimum of Taylor's loss the defaults come on small tables, of one batch and of several.

``STREAMFL_DATA=folder python -m benchmarks.quasi_newton.small_tables`` runs ten tables and writes the table
of docs/quasi-newton-privacy.md. Rows are drawn by a seed, and all of them are learnt from. Columns are those
with the most values that differ from the commonest, 24 at most, dealt to two parties in turn. A label that is
a number is 1 above its median."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from benchmarks.accuracy_document import fill
from benchmarks.commands import Floats
from streamfl.learning.accuracy import log_loss
from streamfl.quasi_newton.encryption.fixed_point import Kinds, kinds
from streamfl.quasi_newton.learning import taylor
from streamfl.quasi_newton.learning.own_columns import rounded
from streamfl.quasi_newton.learning.section import CurvatureLearningSection
from streamfl.quasi_newton.rows.batches import check_support, far_rows, secret_start
from streamfl.quasi_newton.rows.near_rows import cut_at_near_rows
from streamfl.quasi_newton.rows.preprocessing import fit_preprocessing
from streamfl.quasi_newton.scoring.scorecard import fit_calibration
from streamfl.quasi_newton.tools.direct import Party, Trace, partition, train

DOCUMENT = Path(__file__).parents[2] / "docs" / "quasi-newton-privacy.md"
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
        with np.load(folder / f"{name}.npz") as kept:
            inputs, labels = kept["X"].astype(np.float64), kept["y"].astype(np.float64)
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
        columns, muted = [], []
        for number, raw in enumerate(self.inputs):
            order = self.batches.ravel()
            fitted = fit_preprocessing("clip", raw[order])
            fitted = cut_at_near_rows(
                fitted, raw[order], numbers.inputs, size, learning.largest_leverage, intercept=number == 0
            )
            own = rounded(numbers.inputs, numbers.inputs.clip(fitted.apply(raw)))[1]
            rare = {
                column for rows in self.batches for column in check_support(own[rows], learning.min_support)
            }
            own = own[:, [column for column in range(own.shape[1]) if column not in rare]]
            far = np.zeros(len(own), np.bool_)
            for rows in self.batches:
                far[rows] = far_rows(own[rows], learning.largest_leverage, intercept=number == 0)
            columns.append(own)
            muted.append(far)
        return columns, muted, numbers


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
    columns, muted, numbers = table.prepared()
    secret = (b"secret of seed %d" % seed).ljust(32)
    start = [
        secret_start(secret, b"%d" % number, own.shape[1] + (number == 0))
        for number, own in enumerate(columns)
    ]
    learning = replace(CurvatureLearningSection().descent, batch=table.batches.shape[1])
    parties = [Party(*own) for own in zip(columns, start, muted, strict=True)]
    trace = trained(parties, table.labels, learning, table.batches, numbers=numbers)
    order = table.batches.ravel()
    signs = table.labels[order]

    whole = [np.hstack([columns[0], np.ones((len(columns[0]), 1))]), columns[1]]
    seen = np.hstack([np.where(far[:, np.newaxis], 0.0, own) for own, far in zip(whole, muted, strict=True)])[
        order
    ]
    outputs = seen @ np.concatenate(trace.model)
    gap = taylor.loss(outputs, signs) - taylor.loss(
        seen @ optimum(seen, signs, 2.0**-numbers.inputs.fraction_bits), signs
    )
    ones = (signs > 0).astype(np.float64)
    calibration = fit_calibration(outputs, ones)
    theirs = LogisticRegression(C=1e6, max_iter=5000).fit(np.hstack(columns)[order], ones)
    return Found(
        gap,
        len(trace.visited),
        trace.converged,
        log_loss(calibration.probabilities(outputs), ones),
        log_loss(theirs.predict_proba(np.hstack(columns)[order])[:, 1], ones),
    )


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--table", choices=TABLES, action="append")
    parser.add_argument(
        "--together",
        action="store_true",
        help="learning.batch = the number of rows, where that is above 1,000",
    )
    parser.add_argument("--write", action="store_true", help="into the document")
    arguments = parser.parse_args()
    folder = Path(os.environ["STREAMFL_DATA"])
    lines = [
        row("table", "rows", "gap, each seed", "iterations", "log loss", "scikit-learn"),
        row(*["---"] * 6),
    ]
    print("\n".join(lines), flush=True)
    worst = 0.0
    for name in arguments.table or TABLES:
        inputs, labels = read(folder, name)
        for rows in (
            size for size in SIZES if size <= len(labels) and (size > 1000 or not arguments.together)
        ):
            found = [
                measured(Table.drawn(inputs, labels, rows, seed, arguments.together), seed)
                for seed in range(arguments.seeds)
            ]
            worst = max(worst, *(one.gap for one in found))
            lines.append(
                row(
                    name,
                    f"{rows:,}",
                    " ".join(f"{one.gap:.5f}" for one in found),
                    " ".join(f"{one.iterations}{'' if one.converged else ' (all)'}" for one in found),
                    f"{np.mean([one.loss for one in found]):.4f}",
                    f"{np.mean([one.theirs for one in found]):.4f}",
                )
            )
            print(lines[-1], flush=True)
    print(f"largest gap {worst:.5f}, goal {GOAL}")
    if arguments.write:
        DOCUMENT.write_text(
            fill(DOCUMENT.read_text(), {"together" if arguments.together else "small": "\n".join(lines)})
        )


if __name__ == "__main__":
    main()
