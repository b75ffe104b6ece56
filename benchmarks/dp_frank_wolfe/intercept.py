"""Is it worth it: R^2 of held-out rows, beside what the best party reaches alone, and what an intercept is
worth.

``STREAMFL_DATA=folder python -m benchmarks.dp_frank_wolfe.intercept`` takes some three minutes of one
processor, and writes its tables into docs/dp-frank-wolfe.md and docs/dp-frank-wolfe-privacy.md.
``--only-worth`` writes the first, in one. All settings of learning are the defaults, but for the intercept
and the estimator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy_document import fill_in
from benchmarks.commands import DOCS, Floats, Markdown, arguments, data_folder, data_set
from benchmarks.dp_frank_wolfe.methods import DELTA, ESTIMATORS, private
from benchmarks.dp_frank_wolfe.problems import Problem
from streamfl.dp_frank_wolfe.config import DataBoundsSection, SparseLearningSection
from streamfl.dp_frank_wolfe.learning.sketch import SignSketch
from streamfl.dp_frank_wolfe.party.window import Bounds

EPSILONS = (1.0, 5.0)
PARTIES, MOST_ROWS, FEW_ROWS = 2, 50_000, 2_000
WORTH_EPSILONS = (0.5, 1.0, 5.0)
LEARNING, ONE = SparseLearningSection(), Bounds(np.zeros(1), np.ones(1))


def scaled(
    name: str, low: Floats, high: Floats, label: tuple[float, float], raw: Floats, labels: Floats
) -> Problem:
    """Features and labels within -1 and 1 by their ranges, which are public. A fifth of the rows is for the
    test.

    low, high: of each column, from what it means. label: the same of the label.
    """
    whole = np.isfinite(raw).all(axis=1) & np.isfinite(labels)
    order = np.random.default_rng(0).permutation(np.flatnonzero(whole))[:MOST_ROWS]
    features = np.clip(2 * (raw[order] - low) / (high - low) - 1, -1, 1)
    told = np.clip(2 * (labels[order] - label[0]) / (label[1] - label[0]) - 1, -1, 1)
    end, columns = len(order) * 4 // 5, raw.shape[1]
    return Problem(
        name,
        features[:end],
        told[:end],
        features[end:],
        told[end:],
        Bounds(np.zeros(columns), np.ones(columns)),
        ONE,
        PARTIES,
        LEARNING.radius,
        LEARNING.columns,
        LEARNING.iterations,
        LEARNING.radius,
        DataBoundsSection().prediction,
    )


def least_squares(table: Problem, columns: NDArray[np.int64]) -> float:
    """R^2 of whoever has these columns, with an intercept and without privacy."""
    weights = np.zeros(table.features.shape[1])
    ones = np.ones((len(table.labels), 1))
    found = np.linalg.lstsq(np.hstack([ones, table.features[:, columns]]), table.labels, rcond=None)[0]
    weights[columns] = found[1:]
    return table.r2({"": weights}, found[0])


def best_alone(table: Problem) -> float:
    """R^2 of the best party by itself."""
    return max(least_squares(table, own) for own in table.parts())


def pooled(table: Problem) -> float:
    return least_squares(table, np.arange(table.features.shape[1]))


def bike(folder: Path) -> Problem:
    """Bicycles hired in an hour, by season, time and weather."""
    low = np.array([1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0])
    high = np.array([4, 1, 12, 23, 1, 6, 1, 4, 1, 1, 1, 1])
    return scaled("bike_hour", low, high, (0, 1000), *data_set(folder, "bike_hour"))


def credit(folder: Path) -> Problem:
    """Whether a credit card's client pays, by amounts and months of delay."""
    low = np.array([0, 1, 0, 0, 18] + [-2] * 6 + [-100_000] * 6 + [0] * 6)
    high = np.array([1_000_000, 2, 6, 3, 90] + [9] * 6 + [500_000] * 6 + [100_000] * 6)
    return scaled("credit_default", low, high, (0, 1), *data_set(folder, "credit_default"))


def gmsc(folder: Path) -> Problem:
    """Whether somebody is late with a loan, by age, debts and delays."""
    high = np.array([2, 110, 20, 3, 20_000, 40, 20, 10, 20, 10])
    return scaled("gmsc", np.zeros(10), high, (0, 1), *data_set(folder, "gmsc"))


def air(folder: Path) -> Problem:
    """The logarithm of CO, by pollutants and weather as they are measured."""
    raw, labels = data_set(folder, "air")
    low = np.array([2013, 1, 1, 0, 0, 0, 0, 0, 0, -30, 980, -40, 0, 0, 0])
    high = np.array([2017, 12, 31, 23, 500, 500, 200, 200, 400, 45, 1050, 35, 20, 15, 15])
    return scaled("air, log CO", low, high, (np.log(100), np.log(10_000)), raw, np.log(labels))


def generated(_folder: Path) -> Problem:
    """Twelve columns with means of .3 to .7 on either side and deviations of about .25; the label's mean is
    .5."""
    random = np.random.default_rng(5)
    centre = random.uniform(0.3, 0.7, 12) * random.choice([-1, 1], 12)
    return _of_three("generated", random, 0.12, centre, 0.5)


def alike(_folder: Path) -> Problem:
    """Twelve columns that are nearly the same three, each with a little of its own, centred; the label is of
    what differs too."""
    return _of_three("generated, alike", np.random.default_rng(6), 0.2, np.zeros(12), 0.0)


def _of_three(
    name: str, random: np.random.Generator, shared: float, centre: Floats, middle: float
) -> Problem:
    common = random.normal(size=(12, 3)) * shared
    features = np.clip(
        centre + random.normal(size=(40_000, 3)) @ common.T + 0.15 * random.normal(size=(40_000, 12)), -1, 1
    )
    part = (features - centre) @ random.normal(size=12)
    labels = np.clip(middle + 0.12 * part / part.std() + 0.12 * random.normal(size=40_000), -1, 1)
    return scaled(name, np.full(12, -1.0), np.full(12, 1.0), (-1, 1), features, labels)


TABLES: tuple[Callable[[Path], Problem], ...] = (bike, credit, gmsc, air, generated)


def draws_of(
    table: Problem, estimator: str, epsilon: float, draws: int, intercept: bool = True
) -> tuple[float, float]:
    """Mean and deviation of R^2 over draws of noise, of all that the parties and the server do."""
    windows, rows = table.windows(), len(table.labels)
    values = []
    for seed in range(draws):
        sketch = SignSketch(rows, LEARNING.sketch_rows, seed)
        values.append(private(table, windows, estimator, epsilon, seed, sketch, intercept).r2)
    return float(np.mean(values)), float(np.std(values, ddof=1))


def shape(table: Problem) -> str:
    return f"{len(table.labels):,}, {table.features.shape[1]}"


def worth(folder: Path, draws: int) -> Markdown:
    """What the default estimator reaches for how many rows and which epsilon, beside the best party alone."""
    reached = ("together, private", "best party alone", "all in one place", "worth it?")
    lines = Markdown("table", "rows, columns", "epsilon", *reached)
    for make in (*TABLES, alike):
        whole = make(folder)
        for rows in (FEW_ROWS, len(whole.labels)):
            table = replace(whole, features=whole.features[:rows], labels=whole.labels[:rows])
            alone, together = best_alone(table), pooled(table)
            for epsilon in WORTH_EPSILONS:
                mean, deviation = draws_of(table, LEARNING.estimator, epsilon, draws)
                verdict = (
                    "yes" if mean - deviation > alone else "no" if mean + deviation < alone else "as good"
                )
                told = f"{mean:.3f} ± {deviation:.3f}" if mean > -1 else "below -1"
                figures = (told, f"{alone:.3f}", f"{together:.3f}", verdict)
                lines.add(table.name, shape(table), f"{epsilon:g}", *figures)
    return lines


def measured(folder: Path, draws: int) -> Markdown:
    """R^2 with and without an intercept."""
    heads = ("best party alone", "pooled", "epsilon", "estimator", "without", "with an intercept")
    lines = Markdown("table", "rows, columns", *heads)
    for table in (make(folder) for make in TABLES):
        known = (table.name, shape(table), f"{best_alone(table):.3f}", f"{pooled(table):.3f}")
        for epsilon, estimator in product(EPSILONS, ESTIMATORS):
            found = [draws_of(table, estimator, epsilon, draws, intercept) for intercept in (False, True)]
            told = [f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in found]
            lines.add(*known, f"{epsilon:g}", estimator, *told)
    return lines


def main() -> None:
    given = arguments(
        "dp_frank_wolfe.intercept",
        __doc__,
        draws=(25, "of noise"),
        only_worth=(False, "what an intercept is worth stays as the document has it"),
    )
    tables = {"dp-frank-wolfe.md": ("worth", worth), "dp-frank-wolfe-privacy.md": ("intercept", measured)}
    for page, (name, table) in list(tables.items())[: 1 if given.only_worth else 2]:
        fill_in(DOCS / page, {name: str(table(data_folder(), given.draws))})
        print(f"delta = {DELTA:g}; written to {page}")


if __name__ == "__main__":
    main()
