"""Is it worth it: R^2 of held-out rows, beside what the best party reaches alone, and what an intercept is
worth.

``STREAMFL_DATA=folder python -m benchmarks.dp_frank_wolfe.intercept`` takes some three minutes of one
processor, and writes its tables into docs/dp-frank-wolfe.md and docs/dp-frank-wolfe-privacy.md.
``--only-worth`` writes the first, in one. All settings of learning are the defaults, but for the intercept
and the estimator.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from dp_frank_wolfe.proof.equal_shares import centre_by, equal_blocks, marginal, plans_of, two_round
from numpy.typing import NDArray

from benchmarks.accuracy_document import fill
from benchmarks.dp_frank_wolfe.methods import DELTA, ESTIMATORS
from streamfl.dp_frank_wolfe.config import DataBoundsSection, SparseLearningSection
from streamfl.dp_frank_wolfe.learning.blocks import Sampling
from streamfl.dp_frank_wolfe.learning.sketch import SignSketch
from streamfl.dp_frank_wolfe.party.window import Bounds, Window, freeze
from streamfl.dp_frank_wolfe.privacy.budget import allowed_cost
from streamfl.dp_frank_wolfe.tools.direct import fit

Floats = NDArray[np.float64]
DOCS = Path(__file__).parents[2] / "docs"
EPSILONS = (1.0, 5.0)
PARTIES, MOST_ROWS, FEW_ROWS = 2, 50_000, 2_000
WORTH_EPSILONS = (0.5, 1.0, 5.0)
LEARNING, PREDICTION = SparseLearningSection(), DataBoundsSection().prediction


@dataclass(frozen=True)
class Table:
    """features, labels: within -1 and 1 by their ranges, which are public. test: other rows."""

    name: str
    features: Floats
    labels: Floats
    test: Floats
    test_labels: Floats

    def r2(self, predicted: Floats) -> float:
        """Of the test rows."""
        return 1 - float(np.mean((predicted - self.test_labels) ** 2) / np.var(self.test_labels))

    def windows(self) -> dict[str, Window]:
        """Of the parties, each with consecutive columns."""
        one, found = Bounds(np.zeros(1), np.ones(1)), {}
        for number, own in enumerate(self.parts()):
            bounds = Bounds(np.zeros(len(own)), np.ones(len(own)))
            found[f"party-{number}"] = freeze(
                self.features[:, own], self.labels, bounds, one, len(self.labels)
            )
        return found

    def parts(self) -> list[NDArray[np.int64]]:
        """Numbers of each party's columns."""
        return np.array_split(np.arange(self.features.shape[1]), PARTIES)

    def least_squares(self, columns: NDArray[np.int64]) -> float:
        """R^2 of whoever has these columns, with an intercept and without privacy."""
        own, test = (
            np.column_stack([np.ones(len(one)), one[:, columns]]) for one in (self.features, self.test)
        )
        return self.r2(test @ np.linalg.lstsq(own, self.labels, rcond=None)[0])


def scaled(
    name: str, raw: Floats, labels: Floats, low: Floats, high: Floats, label: tuple[float, float]
) -> Table:
    """low, high: of each column, from what it means. label: the same of the label. A fifth of the rows is for
    the test."""
    whole = np.isfinite(raw).all(axis=1) & np.isfinite(labels)
    order = np.random.default_rng(0).permutation(np.flatnonzero(whole))[:MOST_ROWS]
    features = np.clip(2 * (raw[order] - low) / (high - low) - 1, -1, 1)
    told = np.clip(2 * (labels[order] - label[0]) / (label[1] - label[0]) - 1, -1, 1)
    end = len(order) * 4 // 5
    return Table(name, features[:end], told[:end], features[end:], told[end:])


def bike(folder: Path) -> Table:
    """Bicycles hired in an hour, by season, time and weather."""
    low = np.array([1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0])
    high = np.array([4, 1, 12, 23, 1, 6, 1, 4, 1, 1, 1, 1])
    return scaled("bike_hour", *_read(folder, "bike_hour"), low, high, (0, 1000))


def credit(folder: Path) -> Table:
    """Whether a credit card's client pays, by amounts and months of delay."""
    low = np.array([0, 1, 0, 0, 18] + [-2] * 6 + [-100_000] * 6 + [0] * 6)
    high = np.array([1_000_000, 2, 6, 3, 90] + [9] * 6 + [500_000] * 6 + [100_000] * 6)
    return scaled("credit_default", *_read(folder, "credit_default"), low, high, (0, 1))


def gmsc(folder: Path) -> Table:
    """Whether somebody is late with a loan, by age, debts and delays."""
    high = np.array([2, 110, 20, 3, 20_000, 40, 20, 10, 20, 10])
    return scaled("gmsc", *_read(folder, "gmsc"), np.zeros(10), high, (0, 1))


def air(folder: Path) -> Table:
    """The logarithm of CO, by pollutants and weather as they are measured."""
    raw, labels = _read(folder, "air")
    low = np.array([2013, 1, 1, 0, 0, 0, 0, 0, 0, -30, 980, -40, 0, 0, 0])
    high = np.array([2017, 12, 31, 23, 500, 500, 200, 200, 400, 45, 1050, 35, 20, 15, 15])
    return scaled("air, log CO", raw, np.log(labels), low, high, (np.log(100), np.log(10_000)))


def generated(_folder: Path) -> Table:
    """Twelve columns with means of .3 to .7 on either side and deviations of about .25; the label's mean is
    .5."""
    random = np.random.default_rng(5)
    centre = random.uniform(0.3, 0.7, 12) * random.choice([-1, 1], 12)
    common = random.normal(size=(12, 3)) * 0.12
    features = np.clip(
        centre + random.normal(size=(40_000, 3)) @ common.T + 0.15 * random.normal(size=(40_000, 12)), -1, 1
    )
    part = (features - centre) @ random.normal(size=12)
    labels = np.clip(0.5 + 0.12 * part / part.std() + 0.12 * random.normal(size=40_000), -1, 1)
    return scaled("generated", features, labels, np.full(12, -1.0), np.full(12, 1.0), (-1, 1))


def alike(_folder: Path) -> Table:
    """Twelve columns that are nearly the same three, each with a little of its own, centred; the label is of
    what differs too."""
    random = np.random.default_rng(6)
    common = random.normal(size=(12, 3)) * 0.2
    features = np.clip(
        random.normal(size=(40_000, 3)) @ common.T + 0.15 * random.normal(size=(40_000, 12)), -1, 1
    )
    part = features @ random.normal(size=12)
    labels = np.clip(0.12 * part / part.std() + 0.12 * random.normal(size=40_000), -1, 1)
    return scaled("generated, alike", features, labels, np.full(12, -1.0), np.full(12, 1.0), (-1, 1))


TABLES: tuple[Callable[[Path], Table], ...] = (bike, credit, gmsc, air, generated)


def _read(folder: Path, name: str) -> tuple[Floats, Floats]:
    with np.load(folder / f"{name}.npz") as kept:
        return kept["X"].astype(np.float64), kept["y"].astype(np.float64)


def private(
    table: Table, windows: dict[str, Window], estimator: str, epsilon: float, seed: int, intercept: bool
) -> float:
    """R^2 of one draw of noise, of all that the parties and the server do."""
    cost, secret = (
        allowed_cost(epsilon, DELTA, len(table.labels)),
        b"secret of seed %d" % seed + bytes(range(32)),
    )
    b: Callable[[Mapping[str, Floats]], float] = lambda x: 0.0  # noqa: E731
    if intercept:
        own = centre_by(windows, cost, secret)
        windows, cost, b = own.windows, own.cost, own.intercept
    if estimator == "frank-wolfe":
        sketch = SignSketch(len(table.labels), LEARNING.sketch_rows, seed)
        sampling = Sampling(LEARNING.sampling, equal_blocks(windows, LEARNING.radius), seed)
        plans = plans_of(windows, sampling, LEARNING.iterations, sketch, cost, LEARNING.columns, PREDICTION)
        x = fit(
            windows,
            sampling,
            LEARNING.iterations,
            sketch,
            plans,
            delta=DELTA,
            secret=secret,
            show_objective=False,
        ).x
    else:
        call = {"marginal": marginal, "two-round": two_round}[estimator]
        x = call(windows, cost, LEARNING.columns, LEARNING.radius, delta=DELTA, secret=secret).x
    return table.r2(b(x) + table.test @ np.concatenate(list(x.values())))


def worth(folder: Path, draws: int) -> str:
    """What the default estimator reaches for how many rows and which epsilon, beside the best party alone."""
    heads = [
        "table",
        "rows, columns",
        "epsilon",
        "together, private",
        "best party alone",
        "all in one place",
        "worth it?",
    ]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for make in (*TABLES, alike):
        whole = make(folder)
        for rows in (FEW_ROWS, len(whole.labels)):
            table = replace(whole, features=whole.features[:rows], labels=whole.labels[:rows])
            windows = table.windows()
            alone = max(map(table.least_squares, table.parts()))
            pooled = table.least_squares(np.arange(table.features.shape[1]))
            for epsilon in WORTH_EPSILONS:
                values = [
                    private(table, windows, LEARNING.estimator, epsilon, seed, True) for seed in range(draws)
                ]
                mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
                verdict = (
                    "yes" if mean - deviation > alone else "no" if mean + deviation < alone else "as good"
                )
                told = f"{mean:.3f} ± {deviation:.3f}" if mean > -1 else "below -1"
                cells = [table.name, f"{rows:,}, {table.features.shape[1]}", f"{epsilon:g}", told]
                lines.append(f"| {' | '.join([*cells, f'{alone:.3f}', f'{pooled:.3f}', verdict])} |")
                print(lines[-1], flush=True)
    return "\n".join(lines)


def measured(folder: Path, draws: int) -> str:
    """R^2 with and without an intercept."""
    heads = [
        "table",
        "rows, columns",
        "best party alone",
        "pooled",
        "epsilon",
        "estimator",
        "without",
        "with an intercept",
    ]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for make in TABLES:
        table = make(folder)
        windows = table.windows()
        alone = max(map(table.least_squares, table.parts()))
        pooled = table.least_squares(np.arange(table.features.shape[1]))
        for epsilon in EPSILONS:
            for estimator in ESTIMATORS:
                found = []
                for intercept in (False, True):
                    values = [
                        private(table, windows, estimator, epsilon, seed, intercept) for seed in range(draws)
                    ]
                    found.append(f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}")
                shape = f"{len(table.labels):,}, {table.features.shape[1]}"
                cells = [
                    table.name,
                    shape,
                    f"{alone:.3f}",
                    f"{pooled:.3f}",
                    f"{epsilon:g}",
                    estimator,
                    *found,
                ]
                lines.append(f"| {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dp_frank_wolfe.intercept")
    parser.add_argument("--draws", type=int, default=25)
    parser.add_argument(
        "--only-worth", action="store_true", help="what an intercept is worth stays as the document has it"
    )
    folder = os.environ.get("STREAMFL_DATA")
    if not folder:
        sys.exit("STREAMFL_DATA has to name the folder of the sets")
    given = parser.parse_args()
    page = DOCS / "dp-frank-wolfe.md"
    document = DOCS / "dp-frank-wolfe-privacy.md"
    sections = {page: {"worth": worth(Path(folder), given.draws)}}
    if not given.only_worth:
        sections[document] = {"intercept": measured(Path(folder), given.draws)}
    for path, tables in sections.items():
        path.write_text(fill(path.read_text(encoding="utf-8"), tables), encoding="utf-8")
        print(f"delta = {DELTA:g}; written to {path}")


if __name__ == "__main__":
    main()
