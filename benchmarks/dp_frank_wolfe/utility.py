"""Utility against epsilon, uplink against the number of rows, and what others reach: the tables and the
picture of the document.

``STREAMFL_DATA=folder python -m benchmarks.dp_frank_wolfe.utility`` runs everything, single-threaded, in
about ten minutes, and writes docs/dp-frank-wolfe-privacy.md and its picture. ``--seeds 1`` is a quick look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.accuracy_document import fill_in
from benchmarks.commands import DOCS, Markdown, arguments, data_folder
from benchmarks.dp_frank_wolfe.methods import DELTA, ESTIMATORS, Outcome, lasso, one_shot, private
from benchmarks.dp_frank_wolfe.problems import REAL, Problem, sparse, synthetic
from streamfl.dp_frank_wolfe.learning.sketch import SignSketch
from streamfl.simulation.pictures import new_pyplot

EPSILONS = (0.5, 1.0, 2.0, 5.0, float("inf"))
ROWS = (1_000, 10_000, 100_000)
UPLINK_ROWS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
# Numbers of a sketch for the comparison with one-shot sketching.
SKETCHED = 400
# Sparse columns: of how many rows they have a value, as a share; the paper's rate is for O(1), whatever n is.
SPARSE = {"sparse-share": 0.02, "sparse-few": None}
FEW = 50
# Of the line of slope 2/3 that the picture has for comparison.
THIRDS = 20.0
# A set is sketched at once only up to so many numbers of work: rows times columns times numbers.
MOST_WORK = 5e9
Utility = dict[tuple[str, str, float], float]


def problems(folder: Path, seeds: int) -> Iterator[tuple[str, list[Problem]]]:
    """One data set at a time, by seed."""
    for rows in ROWS:
        many = min(seeds, 2) if rows == ROWS[-1] else seeds
        yield f"synthetic, n = {rows:,}", [synthetic(rows, seed) for seed in range(many)]
    for make in REAL.values():
        yield make(folder, 0).name, [make(folder, seed) for seed in range(seeds)]


def shown(values: list[float]) -> str:
    mean = float(np.mean(values))
    return f"{mean:.3f}" if mean > -1 else "below -1"


def utility(folder: Path, seeds: int) -> Markdown:
    """R^2 of test rows by set, estimator and epsilon."""
    table = Markdown("set", "estimator", *map("{:g}".format, EPSILONS), "numbers sent, epsilon 1")
    for name, made in problems(folder, seeds):
        windows = [problem.windows() for problem in made]
        for estimator in ESTIMATORS:
            runs = {
                epsilon: [
                    private(problem, own, estimator, epsilon, seed)
                    for seed, (problem, own) in enumerate(zip(made, windows, strict=True))
                ]
                for epsilon in EPSILONS
            }
            cells = [shown([run.r2 for run in of_seeds]) for of_seeds in runs.values()]
            table.add(name, estimator, *cells, f"{runs[1.0][0].numbers:,}")
        best = lasso(made[0], windows[0], 0)
        none = [""] * (len(EPSILONS) - 1)
        table.add(name, "scikit-learn's Lasso", *none, f"{best.r2:.3f}", f"{best.numbers:,} (the table)")
        if made[0].features.size * SKETCHED <= MOST_WORK:
            found = {
                epsilon: one_shot(made[0], windows[0], SKETCHED, epsilon, 0)
                for epsilon in (1.0, 5.0, float("inf"))
            }
            cells = [f"{found[epsilon].r2:.3f}" if epsilon in found else "" for epsilon in EPSILONS]
            table.add(name, f"one-shot sketching, m = {SKETCHED}", *cells, f"{found[1.0].numbers:,}")
    return table


def by_rows(
    make: Callable[[int], Problem], seed: int = 0
) -> Iterator[tuple[int, int, int, Outcome, Outcome]]:
    """n, the paper's T and m, and what Frank-Wolfe comes to with signs and with the identity."""
    for rows in UPLINK_ROWS:
        # T = O((n epsilon)^(2/3)), m = O(log n): the constants keep the smallest window's T at 5.
        iterations, numbers = max(2, round(0.05 * rows ** (2 / 3))), round(8 * np.log(rows))
        made = make(rows)
        problem = replace(made, iterations=iterations, columns=iterations * made.parties)
        sketched, whole = (
            private(problem, problem.windows(), "frank-wolfe", 1.0, seed, sketch, intercept=False)
            for sketch in (SignSketch(rows, numbers, seed), None)
        )
        yield rows, iterations, numbers, sketched, whole


def slope(drawn: list[int]) -> str:
    return f"{np.polyfit(np.log(UPLINK_ROWS), np.log(drawn), 1)[0]:.2f}"


def sparse_uplink(share: float | None, seed: int = 0) -> Markdown:
    """Numbers sent up by n, of sparse columns, with the paper's T and m and more columns than can be chosen.

    share: of rows in which a column is not zero; None: ``FEW`` rows, whatever n is.
    """
    heads = ("n", "not zero in a column", "T", "m", "columns shown", "signs", "R^2", "identity, R^2")
    table, drawn = Markdown(*heads), []

    def nonzeros(rows: int) -> int:
        return FEW if share is None else round(share * rows)

    made = by_rows(lambda rows: sparse(rows, seed, nonzeros(rows)))
    for rows, iterations, numbers, sketched, whole in made:
        drawn.append(sketched.numbers)
        # An iteration has one number more for each of five parties.
        told = (sketched.numbers - iterations * 5) // numbers
        cells = (told, f"{sketched.numbers:,}", shown([sketched.r2]), shown([whole.r2]))
        table.add(f"{rows:,}", f"{nonzeros(rows):,}", iterations, numbers, *cells)
    table.add("slope", "", "", "", "", slope(drawn), "", "")
    return table


def uplink(seed: int = 0) -> Markdown:
    """Numbers sent up by n: Frank-Wolfe with the paper's T and m, with the identity, and one-shot
    sketching."""
    table = Markdown("n", "T", "m", "signs", "R^2", "identity", "R^2", "one-shot, r = 10")
    drawn: list[list[int]] = []
    for rows, iterations, numbers, *runs in by_rows(partial(synthetic, seed=seed, columns=200)):
        at_once = round(10 * rows * np.log(10))
        drawn.append([*(run.numbers for run in runs), at_once])
        cells = [text for run in runs for text in (f"{run.numbers:,}", shown([run.r2]))]
        table.add(f"{rows:,}", iterations, numbers, *cells, f"{at_once:,}")
    signs, identity, one_shot_slope = (slope(list(own)) for own in zip(*drawn, strict=True))
    table.add("slope", "", "", signs, "", identity, "", one_shot_slope)
    return table


def rows_of(document: str, section: str) -> list[list[str]]:
    """The cells of a table that the document has."""
    text = document.partition(f"<!-- begin {section} -->")[2].partition("<!-- end -->")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


def read_utility(document: str) -> Utility:
    """The means that the document has."""
    means: Utility = {}
    for name, estimator, *cells in rows_of(document, "utility"):
        kept = "lasso" if estimator.endswith("Lasso") else estimator
        if kept in (*ESTIMATORS, "lasso"):
            for epsilon, cell in zip(EPSILONS, cells, strict=False):
                if cell:
                    means[name, kept, epsilon] = -1.0 if cell == "below -1" else float(cell)
    return means


def read_uplink(document: str) -> dict[str, list[float]]:
    """The numbers sent that the document has, by what the picture calls them."""
    places = {"uplink": {"signs": 3, "identity": 5, "one-shot": 7}, **{name: {name: 5} for name in SPARSE}}
    return {
        name: [
            float(cells[place].replace(",", ""))
            for cells in rows_of(document, section)
            if cells[0][:1].isdigit()
        ]
        for section, columns in places.items()
        for name, place in columns.items()
    }


def picture(means: Utility, drawn: dict[str, list[float]], path: Path) -> None:
    """R^2 against epsilon for every set, and numbers sent against n."""
    names, pyplot = list(dict.fromkeys(name for name, _, _ in means)), new_pyplot()
    figure, axes = pyplot.subplots(2, -(-(len(names) + 1) // 2), figsize=(16, 8), layout="constrained")
    places = np.arange(len(EPSILONS))
    grey = {"color": "grey", "linestyle": "--"}
    for panel, name in zip(axes.flat, names, strict=False):
        for estimator in ESTIMATORS:
            values = [max(-0.5, means[name, estimator, epsilon]) for epsilon in EPSILONS]
            panel.plot(places, values, marker="o", label=estimator)
        panel.axhline(means[name, "lasso", float("inf")], label="Lasso, not private", **grey)
        panel.set(title=name, ylim=(-0.52, 1), ylabel="test R², cut at -0.5", xlabel="epsilon")
        panel.set_xticks(places, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.flat[0].legend()
    panel = axes.flat[len(names)]
    for name, values in drawn.items():
        panel.loglog(UPLINK_ROWS, values, marker="o", label=name)
    panel.loglog(UPLINK_ROWS, [THIRDS * rows ** (2 / 3) for rows in UPLINK_ROWS], label="slope 2/3", **grey)
    panel.set(title="uplink, epsilon 1, d = 200; sparse: d = 1,000", xlabel="n", ylabel="numbers sent")
    panel.legend()
    for rest in axes.flat[len(names) + 1 :]:
        rest.set_visible(False)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def main() -> None:
    given = arguments(
        "dp_frank_wolfe.utility",
        __doc__,
        seeds=(3, "so many"),
        only_uplink=(False, "R^2 of the sets stays as the document has it"),
        only_utility=(False, "numbers sent stay as the document has them"),
    )
    document, tables = DOCS / "dp-frank-wolfe-privacy.md", {}
    if not given.only_uplink:
        tables["utility"] = utility(data_folder(), given.seeds)
    if not given.only_utility:
        tables |= {"uplink": uplink(), **{name: sparse_uplink(share) for name, share in SPARSE.items()}}
    fill_in(document, {name: str(table) for name, table in tables.items()})
    text = document.read_text(encoding="utf-8")
    picture(read_utility(text), read_uplink(text), DOCS / "dp-frank-wolfe-accuracy.png")
    print(f"delta = {DELTA:g}; written to {document}")


if __name__ == "__main__":
    main()
