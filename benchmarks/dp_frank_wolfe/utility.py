"""Utility against epsilon, uplink against the number of rows, and what others reach: the tables and the
picture of the document.

``STREAMFL_DATA=folder python -m benchmarks.dp_frank_wolfe.utility`` runs everything, single-threaded, in
about ten minutes, and writes docs/dp-frank-wolfe-privacy.md and its picture. ``--seeds 1`` is a quick look.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.accuracy_document import fill
from benchmarks.dp_frank_wolfe.methods import DELTA, ESTIMATORS, lasso, one_shot, private
from benchmarks.dp_frank_wolfe.problems import REAL, Problem, sparse, synthetic
from streamfl.dp_frank_wolfe.learning.sketch import SignSketch

DOCS = Path(__file__).parents[2] / "docs"
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


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def shown(values: list[float]) -> str:
    mean = float(np.mean(values))
    return f"{mean:.3f}" if mean > -1 else "below -1"


def utility(folder: Path, seeds: int) -> tuple[str, Utility]:
    """R^2 of test rows by set, estimator and epsilon."""
    lines = [
        row("set", "estimator", *(f"{epsilon:g}" for epsilon in EPSILONS), "numbers sent, epsilon 1"),
        row(*["---"] * 8),
    ]
    means: Utility = {}
    for name, made in problems(folder, seeds):
        windows = [problem.windows() for problem in made]
        for estimator in ESTIMATORS:
            cells, numbers = [], 0
            for epsilon in EPSILONS:
                pairs = enumerate(zip(made, windows, strict=True))
                runs = [private(problem, own, estimator, epsilon, seed) for seed, (problem, own) in pairs]
                cells.append(shown([run.r2 for run in runs]))
                means[name, estimator, epsilon] = float(np.mean([run.r2 for run in runs]))
                numbers = runs[0].numbers if epsilon == 1 else numbers
            lines.append(row(name, estimator, *cells, f"{numbers:,}"))
            print(lines[-1], flush=True)
        best = lasso(made[0], windows[0], 0)
        means[name, "lasso", float("inf")] = best.r2
        lines.append(
            row(
                name,
                "scikit-learn's Lasso",
                "",
                "",
                "",
                "",
                f"{best.r2:.3f}",
                f"{best.numbers:,} (the table)",
            )
        )
        cells = ["", "", "", "", ""]
        work = made[0].features.size * SKETCHED
        if work <= MOST_WORK:
            found = {
                epsilon: one_shot(made[0], windows[0], SKETCHED, epsilon, 0)
                for epsilon in (1.0, 5.0, float("inf"))
            }
            cells = [f"{found[epsilon].r2:.3f}" if epsilon in found else "" for epsilon in EPSILONS]
            numbers = next(iter(found.values())).numbers
            lines.append(row(name, f"one-shot sketching, m = {SKETCHED}", *cells, f"{numbers:,}"))
        print("\n".join(lines[-2:]), flush=True)
    return "\n".join(lines), means


def sparse_uplink(share: float | None, seed: int = 0) -> tuple[str, list[float]]:
    """Numbers sent up by n, of sparse columns, with the paper's T and m and more columns than can be chosen.

    share: of rows in which a column is not zero; None: ``FEW`` rows, whatever n is.
    """
    lines = [
        row("n", "not zero in a column", "T", "m", "columns shown", "signs", "R^2", "identity, R^2"),
        row(*["---"] * 8),
    ]
    drawn: list[float] = []
    for rows in UPLINK_ROWS:
        nonzeros = FEW if share is None else round(share * rows)
        iterations, numbers = max(2, round(0.05 * rows ** (2 / 3))), round(8 * np.log(rows))
        made = sparse(rows, seed, nonzeros)
        problem = replace(made, iterations=iterations, columns=iterations * made.parties)
        windows = problem.windows()
        sketched = private(
            problem, windows, "frank-wolfe", 1.0, seed, SignSketch(rows, numbers, seed), intercept=False
        )
        whole = private(problem, windows, "frank-wolfe", 1.0, seed, intercept=False)
        drawn.append(sketched.numbers)
        told = (sketched.numbers - iterations * made.parties) // numbers
        cells = (told, f"{sketched.numbers:,}", shown([sketched.r2]), shown([whole.r2]))
        lines.append(row(f"{rows:,}", f"{nonzeros:,}", iterations, numbers, *cells))
        print(lines[-1], flush=True)
    slope = float(np.polyfit(np.log(UPLINK_ROWS), np.log(drawn), 1)[0])
    lines.append(row("slope", "", "", "", "", f"{slope:.2f}", "", ""))
    print(lines[-1], flush=True)
    return "\n".join(lines), drawn


def uplink(seed: int = 0) -> tuple[str, dict[str, list[float]]]:
    """Numbers sent up by n: Frank-Wolfe with the paper's T and m, with the identity, and one-shot
    sketching."""
    lines = [row("n", "T", "m", "signs", "R^2", "identity", "R^2", "one-shot, r = 10"), row(*["---"] * 8)]
    drawn: dict[str, list[float]] = {"signs": [], "identity": [], "one-shot": []}
    for rows in UPLINK_ROWS:
        # T = O((n epsilon)^(2/3)), m = O(log n): the constants keep the smallest window's T at 5.
        made = synthetic(rows, seed, columns=200)
        iterations, numbers = max(2, round(0.05 * rows ** (2 / 3))), round(8 * np.log(rows))
        problem = replace(made, iterations=iterations, columns=iterations * made.parties)
        windows = problem.windows()
        sketched = private(
            problem, windows, "frank-wolfe", 1.0, seed, SignSketch(rows, numbers, seed), intercept=False
        )
        whole = private(problem, windows, "frank-wolfe", 1.0, seed, intercept=False)
        at_once = round(10 * rows * np.log(10))
        drawn["signs"].append(sketched.numbers)
        drawn["identity"].append(whole.numbers)
        drawn["one-shot"].append(at_once)
        cells = (
            f"{sketched.numbers:,}",
            shown([sketched.r2]),
            f"{whole.numbers:,}",
            shown([whole.r2]),
            f"{at_once:,}",
        )
        lines.append(row(f"{rows:,}", iterations, numbers, *cells))
        print(lines[-1], flush=True)
    slopes = {
        name: float(np.polyfit(np.log(UPLINK_ROWS), np.log(values), 1)[0]) for name, values in drawn.items()
    }
    lines.append(
        row(
            "slope",
            "",
            "",
            f"{slopes['signs']:.2f}",
            "",
            f"{slopes['identity']:.2f}",
            "",
            f"{slopes['one-shot']:.2f}",
        )
    )
    return "\n".join(lines), drawn


def read_utility(document: str) -> Utility:
    """The means that the document has."""
    means: Utility = {}
    for line in document.partition("<!-- begin utility -->")[2].partition("<!-- end -->")[0].splitlines():
        name, estimator, *cells = (
            (cell.strip() for cell in line.strip("| ").split("|")) if line.count("|") > 7 else ("", "", "")
        )
        kept = "lasso" if estimator.endswith("Lasso") else estimator
        if kept in (*ESTIMATORS, "lasso"):
            told = zip(EPSILONS, cells, strict=False)
            means |= {
                (name, kept, epsilon): -1.0 if cell == "below -1" else float(cell)
                for epsilon, cell in told
                if cell
            }
    return means


def read_uplink(document: str) -> dict[str, list[float]]:
    """The numbers sent that the document has, by what the picture calls them."""
    places = {"uplink": {"signs": 3, "identity": 5, "one-shot": 7}, **{name: {name: 5} for name in SPARSE}}
    drawn: dict[str, list[float]] = {}
    for section, columns in places.items():
        lines = document.partition(f"<!-- begin {section} -->")[2].partition("<!-- end -->")[0].splitlines()
        rows = [
            [cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line[2:3].isdigit()
        ]
        drawn |= {
            name: [float(cells[place].replace(",", "")) for cells in rows] for name, place in columns.items()
        }
    return drawn


def picture(means: Utility, drawn: dict[str, list[float]], path: Path) -> None:
    """R^2 against epsilon for every set, and numbers sent against n."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for name, _, _ in means))
    figure, axes = pyplot.subplots(2, -(-(len(names) + 1) // 2), figsize=(16, 8), layout="constrained")
    places = np.arange(len(EPSILONS))
    for panel, name in zip(axes.flat, names, strict=False):
        for estimator in ESTIMATORS:
            panel.plot(
                places,
                [max(-0.5, means[name, estimator, epsilon]) for epsilon in EPSILONS],
                marker="o",
                label=estimator,
            )
        panel.axhline(
            means[name, "lasso", float("inf")], color="grey", linestyle="--", label="Lasso, not private"
        )
        panel.set(title=name, ylim=(-0.52, 1), ylabel="test R², cut at -0.5", xlabel="epsilon")
        panel.set_xticks(places, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.flat[0].legend()
    panel = axes.flat[len(names)]
    for name, values in drawn.items():
        panel.loglog(UPLINK_ROWS, values, marker="o", label=name)
    panel.loglog(
        UPLINK_ROWS,
        [THIRDS * rows ** (2 / 3) for rows in UPLINK_ROWS],
        color="grey",
        linestyle="--",
        label="slope 2/3",
    )
    panel.set(title="uplink, epsilon 1, d = 200; sparse: d = 1,000", xlabel="n", ylabel="numbers sent")
    panel.legend()
    for rest in axes.flat[len(names) + 1 :]:
        rest.set_visible(False)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dp_frank_wolfe.utility")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--only-uplink", action="store_true", help="R^2 of the sets stays as the document has it"
    )
    parser.add_argument(
        "--only-utility", action="store_true", help="numbers sent stay as the document has them"
    )
    arguments = parser.parse_args()
    folder = os.environ.get("STREAMFL_DATA")
    if not folder:
        sys.exit("STREAMFL_DATA has to name the folder of the sets")
    document = DOCS / "dp-frank-wolfe-privacy.md"
    text = document.read_text(encoding="utf-8")
    sections = {}
    if arguments.only_uplink:
        means = read_utility(text)
    else:
        sections["utility"], means = utility(Path(folder), arguments.seeds)
    if arguments.only_utility:
        drawn = read_uplink(text)
    else:
        sections["uplink"], drawn = uplink()
        for name, share in SPARSE.items():
            sections[name], drawn[name] = sparse_uplink(share)
    document.write_text(fill(text, sections), encoding="utf-8")
    picture(means, drawn, DOCS / "dp-frank-wolfe-accuracy.png")
    print(f"delta = {DELTA:g}; written to {document}")


if __name__ == "__main__":
    main()
