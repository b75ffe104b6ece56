"""Table 1 of the quasi-Newton paper on its data sets, and what preprocessing adds.

``STREAMFL_DATA=folder python -m benchmarks.quasi_newton.table1`` runs everything, prints the tables and
writes them into docs/quasi-newton-privacy.md. Splits are 80 : 20 by the seed. The rate of SGD is chosen by
the training loss's gap, in its favour: with the seeds that it is then shown with. Test rows choose nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from benchmarks.accuracy_document import fill_in
from benchmarks.commands import DOCS, Floats, Markdown, arguments, data_folder, data_set
from benchmarks.quasi_newton.parties import first_weights, muted
from streamfl.learning.accuracy import area_under_curve, kolmogorov_smirnov, log_loss
from streamfl.quasi_newton.encryption.fixed_point import OutOfBounds, kinds
from streamfl.quasi_newton.learning import taylor
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.learning.own_columns import rounded
from streamfl.quasi_newton.learning.section import CurvatureLearningSection
from streamfl.quasi_newton.rows.batches import check_batch
from streamfl.quasi_newton.rows.near_rows import cut_at_near_rows
from streamfl.quasi_newton.rows.preprocessing import EVIDENCE, Method, fit_preprocessing
from streamfl.quasi_newton.rows.weight_of_evidence import fit_weight_of_evidence
from streamfl.quasi_newton.scoring.scorecard import fit_calibration
from streamfl.quasi_newton.tools.direct import Party, partition, train

# Columns of the guest; the host has the others.
SETS = {"credit_default": 12, "gmsc": 5}
BATCHES = (1000, 3000)
GAP, TOLERANCE = 3e-4, 1e-5
# The fastest first: where one has needed few epochs, a slower one is given up early.
RATES = (2.8, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35)
MOST_EPOCHS, CHUNK, PARTS = 60, 5, 8
UNBOUNDED = 1e9
# Epochs and AUC that the paper reports, by set, batch and optimiser, and about what loss of each set.
PAPER = {
    "credit_default": (
        {"sgd": ((12, 0.7224), (18, 0.7219)), "quasi-newton": ((3, 0.7222), (12, 0.7225))},
        0.4962,
    ),
    "gmsc": ({"sgd": ((12, 0.7033), (14, 0.6982)), "quasi-newton": ((4, 0.7061), (6, 0.7077))}, 0.3145),
}


@dataclass(frozen=True)
class Split:
    """raw, labels: training rows. test, test_labels: others. cut: columns of the guest."""

    raw: Floats
    labels: Floats
    test: Floats
    test_labels: Floats
    cut: int

    def prepared(
        self, guest: Method, host: Method, batches: NDArray[np.intp], largest: float
    ) -> tuple[list[Floats], list[Floats]]:
        """Columns of guest and host, for training and for test, fitted on training rows and cut at those that
        are not far out."""
        batch = batches.shape[1]
        train_parts, test_parts = [], []
        for number, (rows, later) in enumerate(
            zip(self._parts(self.raw), self._parts(self.test), strict=True)
        ):
            if number == 0 and guest == EVIDENCE:
                fitted = fit_weight_of_evidence(rows, self.labels)
            else:
                # A column of 0 and 1 needs enough members in each batch.
                fitted = fit_preprocessing(
                    host if number else guest, rows, least=max(100, 20 * len(rows) // batch)
                )
            kind = kinds(2, batch, batch).inputs
            fitted = cut_at_near_rows(
                fitted, rows[batches.ravel()], kind, batch, largest, intercept=number == 0
            )
            train_parts.append(fitted.apply(rows))
            test_parts.append(fitted.apply(later))
        return train_parts, test_parts

    def _parts(self, rows: Floats) -> list[Floats]:
        return [rows[:, : self.cut], rows[:, self.cut :]]


def read(folder: Path, data: str, seed: int) -> Split:
    """A set, split 80 : 20 by the seed."""
    raw, labels = data_set(folder, data)
    order = np.random.default_rng(seed).permutation(len(labels))
    raw, labels, end = raw[order], np.where(labels[order] > 0, 1.0, -1.0), len(labels) * 4 // 5
    return Split(raw[:end], labels[:end], raw[end:], labels[end:], SETS[data])


@dataclass(frozen=True)
class Run:
    """stopped: epochs until two losses agree, None if they did not. to_gap: epochs until the training loss is
    within 3e-4 of its optimum, by eighths of an epoch, infinite if it never was. loss, auc, ks: of the test
    rows by the model at the end. muted: share of the training rows that some party learns from with zeros."""

    stopped: int | None
    epochs: int
    to_gap: float
    loss: float
    auc: float
    ks: float
    outputs: Floats
    muted: float = 0.0


class Problem:
    """Prepared columns and the optimum of their Taylor loss. largest: leverage of a row in the batches of
    this seed."""

    def __init__(
        self,
        split: Split,
        guest: Method = "standardise",
        host: Method = "standardise",
        batch: int = 1000,
        largest: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.split = split
        self._largest = largest
        self.parts, self.test = split.prepared(
            guest, host, partition(len(split.labels), batch, seed), largest
        )
        ones = np.ones((len(split.labels), 1))
        columns = np.hstack([self.parts[0], ones, self.parts[1]])
        normal = columns.T @ columns / (4 * len(ones))
        self._normal = normal + 1e-10 * np.trace(normal) / len(normal) * np.eye(len(normal))
        self._best = np.linalg.solve(self._normal, columns.T @ split.labels / (2 * len(ones)))
        guest = self.parts[0].shape[1] + 1
        self.best = self.measures(self.outputs([self._best[:guest], self._best[guest:]]))

    @property
    def widest(self) -> int:
        """Columns of the party that has most, the intercept included."""
        return int(max(self.parts[0].shape[1] + 1, self.parts[1].shape[1]))

    def gap(self, weights: Sequence[Floats]) -> float:
        """Of the training loss, which is quadratic, above its optimum."""
        away = np.concatenate(weights) - self._best
        return float(away @ self._normal @ away / 2)

    def outputs(self, weights: Sequence[Floats]) -> Floats:
        """Of the test rows."""
        return np.asarray(self.test[0] @ weights[0][:-1] + weights[0][-1] + self.test[1] @ weights[1])

    def measures(self, outputs: Floats) -> tuple[float, float, float]:
        """Taylor loss, AUC and KS of the test rows."""
        labels = self.split.test_labels
        ones = (labels > 0).astype(float)
        return (
            taylor.loss(outputs, labels),
            area_under_curve(outputs, ones),
            kolmogorov_smirnov(outputs, ones),
        )

    def run(self, learning: DescentSettings, seed: int, until_stopped: bool = True) -> Run:
        """Until the gap is reached and two losses agree, or for as many epochs as there may be."""
        start = first_weights(seed, guest=self.parts[0].shape[1] + 1, host=self.parts[1].shape[1])
        batches = partition(len(self.split.labels), learning.batch, seed)
        numbers = kinds(2, learning.batch, learning.batch, inner_bound=256.0)
        told = batches if self._largest < 1 else batches[:0]
        far = [
            muted(rounded(numbers.inputs, own)[1], told, self._largest, intercept=number == 0)
            for number, own in enumerate(self.parts)
        ]
        # SGD remembers nothing but its weights, so it can be run in parts.
        length = CHUNK if learning.optimiser == "sgd" else learning.epochs
        losses: list[float] = []
        weights: list[list[Floats]] = [[], []]
        stopped, to_gap, trace = None, np.inf, None
        while len(losses) < learning.epochs and (
            not np.isfinite(to_gap) or (until_stopped and stopped is None)
        ):
            parties = [Party(*own) for own in zip(self.parts, start, far, strict=True)]
            now = replace(learning, epochs=length, tolerance=0.0)
            try:
                trace = train(parties, self.split.labels, now, batches, numbers=numbers)
            except OutOfBounds:
                return Run(None, learning.epochs, np.inf, np.nan, np.nan, np.nan, np.zeros(0))
            start = [own[-1] for own in trace.weights]
            for course, kept in zip(weights, trace.weights, strict=True):
                course += kept[1:]
            losses += trace.losses
            stopped = next(
                (at + 1 for at in range(1, len(losses)) if abs(losses[at] - losses[at - 1]) < TOLERANCE), None
            )
            to_gap = self._to_gap(weights, len(batches))
        assert trace is not None
        end = (stopped or len(losses)) * len(batches)
        outputs = self.outputs([np.mean(own[end - len(batches) : end], axis=0) for own in weights])
        share = float(np.logical_or(*far).mean())
        return Run(stopped, len(losses), to_gap, *self.measures(outputs), outputs, share)

    def _to_gap(self, weights: Sequence[list[Floats]], batches: int) -> float:
        """By the mean of the last epoch's iterates or by the last iterate, whichever is earlier."""
        for part in range(1, PARTS * len(weights[0]) // batches + 1):
            end = part * batches // PARTS
            first = max(0, end - batches)
            mean = [np.mean(own[first:end], axis=0) for own in weights]
            if end and min(self.gap(mean), self.gap([own[end - 1] for own in weights])) < GAP:
                return part / PARTS
        return np.inf


def scikit(problem: Problem) -> tuple[float, float, float]:
    """AUC, KS and log loss of scikit-learn's logistic regression on all columns together."""
    model = LogisticRegression(C=1e6, max_iter=5000).fit(np.hstack(problem.parts), problem.split.labels)
    outputs = model.decision_function(np.hstack(problem.test))
    ones = (problem.split.test_labels > 0).astype(float)
    return (
        area_under_curve(outputs, ones),
        kolmogorov_smirnov(outputs, ones),
        log_loss(model.predict_proba(np.hstack(problem.test))[:, 1], ones),
    )


def mean(values: Sequence[float], digits: int = 4) -> str:
    found = float(np.mean(values))
    return f"{found:.{digits}f}" if np.isfinite(found) else "-"


def means(rows: Sequence[Sequence[float]]) -> list[str]:
    """Of each column."""
    return [mean(values) for values in zip(*rows, strict=True)]


def epochs(runs: Sequence[Run]) -> str:
    return " ".join(str(run.stopped or f"> {run.epochs}") for run in runs)


def judged(runs: Sequence[Run]) -> list[str]:
    return means([(run.loss, run.auc, run.ks) for run in runs])


def optimisers(folder: Path, seeds: int) -> Markdown:
    """Table 1: epochs, loss and AUC by set, batch and optimiser."""
    told = ("epochs, each seed", "epochs to 3e-4", "loss", "AUC", "KS", "paper: epochs, loss, AUC")
    table = Markdown("set", "batch", "optimiser", *told)
    for data in SETS:
        problems = [Problem(read(folder, data, seed)) for seed in range(seeds)]
        published, loss = PAPER[data]
        for number, batch in enumerate(BATCHES):
            check_batch(batch, problems[0].widest)
            learning = DescentSettings(batch=batch, epochs=14)
            quasi_newton = [problem.run(learning, seed) for seed, problem in enumerate(problems)]
            shown = [("quasi-newton", "quasi-Newton", quasi_newton)]
            for says, longest in (("SGD", UNBOUNDED), ("SGD, bounded steps", DescentSettings().largest_step)):
                rate, runs = tuned(problems, batch, longest)
                shown.append(("sgd", f"{says}, rate {rate:g}", runs))
            for optimiser, says, runs in shown:
                said, auc = published[optimiser][number]
                gap = mean([run.to_gap for run in runs], 1)
                table.add(data, batch, says, epochs(runs), gap, *judged(runs), f"{said}, {loss}, {auc}")
        best = means([problem.best for problem in problems])
        table.add(data, "", "optimum of the Taylor loss", "", "", *best, "")
        auc_and_ks = means([scikit(problem) for problem in problems])[:2]
        table.add(data, "", "scikit-learn", "", "", "", *auc_and_ks, "")
    return table


def tuned(problems: Sequence[Problem], batch: int, longest: float) -> tuple[float, list[Run]]:
    """SGD with the rate that needs the fewest epochs to the gap, over all seeds."""
    found: dict[float, list[Run]] = {}
    learning = DescentSettings(optimiser="sgd", batch=batch, largest_step=longest, epochs=MOST_EPOCHS)
    for rate in RATES:
        slowest = min((max(run.to_gap for run in runs) for runs in found.values()), default=np.inf)
        epochs = int(min(MOST_EPOCHS, 2 * slowest + CHUNK))
        tried = replace(learning, learning_rate=rate, epochs=epochs)
        found[rate] = []
        for seed, problem in enumerate(problems):
            found[rate].append(problem.run(tried, seed, until_stopped=False))
            if not np.isfinite(found[rate][-1].to_gap):
                break
    best = min(found, key=lambda rate: float(np.mean([run.to_gap for run in found[rate]])))
    final = replace(learning, learning_rate=best, epochs=MOST_EPOCHS)
    return best, [problem.run(final, seed) for seed, problem in enumerate(problems)]


# At guest and host.
PREPARATIONS: dict[str, tuple[Method, Method]] = {
    "standardise": ("standardise", "standardise"),
    "clip": ("clip", "clip"),
    "signed-log": ("signed-log", "signed-log"),
    "rank": ("rank", "rank"),
    "quantile-bins": ("quantile-bins", "quantile-bins"),
    "weight of evidence at the guest, quantile-bins at the host": ("weight-of-evidence", "quantile-bins"),
}


def preparations(folder: Path, seeds: int, batch: int = 3000) -> Markdown:
    """Loss, AUC, KS and calibrated log loss by preprocessing, beside scikit-learn's on the same columns."""
    theirs = ("scikit-learn: AUC", "KS", "log loss")
    table = Markdown("set", "preprocessing", "epochs", "loss", "AUC", "KS", "log loss", *theirs)
    for data, says in product(SETS, PREPARATIONS):
        runs, costs, others = [], [], []
        for seed in range(seeds):
            problem = Problem(read(folder, data, seed), *PREPARATIONS[says], batch)
            check_batch(batch, problem.widest)
            runs.append(problem.run(DescentSettings(batch=batch), seed))
            costs.append(calibrated(runs[-1].outputs, problem.split.test_labels))
            others.append(scikit(problem))
        table.add(data, says, epochs(runs), *judged(runs), mean(costs), *means(others))
    return table


def leverages(folder: Path, seeds: int, batch: int = 1000) -> Markdown:
    """Loss and AUC with rows that are far out, and with zeros in their place."""
    table = Markdown("set", "preprocessing", "largest_leverage", "rows muted", "epochs", "loss", "AUC")
    methods: tuple[Method, ...] = ("clip", "standardise")
    for data, method, largest in product(SETS, methods, (1.0, CurvatureLearningSection().largest_leverage)):
        runs = [
            Problem(read(folder, data, seed), method, method, batch, largest, seed).run(
                DescentSettings(batch=batch), seed
            )
            for seed in range(seeds)
        ]
        share = f"{100 * np.mean([run.muted for run in runs]):.2f} %"
        table.add(data, method, f"{largest:g}", share, epochs(runs), *judged(runs)[:2])
    return table


def calibrated(outputs: Floats, labels: Floats) -> float:
    """Log loss of the probabilities by Platt scaling: each half of the test rows is calibrated on the other
    half."""
    half, chances = len(labels) // 2, np.empty(len(labels))
    for own, other in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
        chances[own] = fit_calibration(outputs[other], labels[other]).probabilities(outputs[own])
    return log_loss(chances, (labels > 0).astype(float))


TABLES = {"optimisers": optimisers, "preprocessing": preparations, "leverages": leverages}


def main() -> None:
    chosen = arguments(
        "quasi_newton.table1",
        __doc__,
        seeds=(3, "so many splits"),
        only={"choices": TABLES, "help": "one of the tables"},
        out=(DOCS / "quasi-newton-privacy.md", "the document that is filled"),
    )
    folder, began = data_folder(), time.perf_counter()
    names = [chosen.only] if chosen.only else TABLES
    fill_in(chosen.out, {name: str(TABLES[name](folder, chosen.seeds)) for name in names})
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
