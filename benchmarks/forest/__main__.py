"""The federated forest against today's default: ``python -m benchmarks.forest`` prints the tables of docs/forest.md.

It needs STREAMFL_DATA, the folder with the sets and their ``streams.py``, and CatBoost for the pooled learner of that name. Every
figure follows from the seeds. ``--keep FILE`` stores each run in a file, so that a command that was ended goes on from there.
Errors are times 1000: mean squared errors on labels from 0 to 1, or log losses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.forest.cells import CELLS, CLASSES, DISTURBANCES
from benchmarks.forest.challengers import LOCAL, POOLED
from benchmarks.forest.runs import CHANGED_RULES, PARTS, Kept, measure

LARGER = "400 items, and a cell splits from .9 of them"
MAIN = ("default", "default, M = 1", "forest", LARGER, "forest, lag 5 + 5", "forest alone", *POOLED)
FORESTS = ("default", "forest", "forest with A", "forest with B", "forest with A and B", "A without forest", "B without forest")
TABLES = ("cells", "local", "parts", "disturbed", "rules", "costs")
FEW_CELLS = ("bike 40", "air_iid 40")
COSTS = {
    "error": "error",
    "bytes": "bytes of items a sample",
    "bytes_down": "bytes of blocks down a round",
    "values_down": "bytes of values down a round",
    "newcomer": "bytes for a newcomer",
    "microseconds": "microseconds a sample",
}


class Printer:
    """Prints tables in Markdown of what ``measure`` gives; with ``kept_only``, of the runs that are kept already."""

    def __init__(self, kept: Kept, seeds: Sequence[int], kept_only: bool) -> None:
        self.kept, self.seeds, self.kept_only = kept, seeds, kept_only

    def runs(self, method: str, cell: str, what: str = "") -> list[dict[str, Any]]:
        """A run a seed; fewer where a run is missing or fails."""
        found = []
        for seed in self.seeds:
            if self.kept_only and not self.kept.has(method, cell, what, seed):
                continue
            try:
                found.append(measure(method, cell, what, seed, self.kept))
            except ImportError as error:
                print(f"{method}: {error}", file=sys.stderr)
                return []
        return found

    def shown(self, method: str, cell: str, what: str = "", field: str = "error") -> str:
        values = [run[field] for run in self.runs(method, cell, what) if field in run]
        if not values:
            return "-"
        if np.mean(values) >= 1000:
            return f"{np.mean(values):,.0f}"
        spread = f" ± {np.std(values):.2g}" if len(values) > 1 else ""
        return f"{np.mean(values):.3g}{spread}"

    def ratio(self, method: str, cell: str, what: str = "", field: str = "error", base: str = "default") -> float:
        """Of the method's mean error to the base's, over the seeds that both have."""
        pairs = [(run, other) for run, other in zip(self.runs(method, cell, what), self.runs(base, cell, what), strict=False)]
        if not pairs:
            return float("nan")
        return float(np.mean([run[field] for run, _ in pairs]) / np.mean([other[field] for _, other in pairs]))

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        print(flush=True)


def geometric(ratios: Sequence[float]) -> str:
    """Their geometric mean, and how many there are."""
    known = [ratio for ratio in ratios if np.isfinite(ratio)]
    return f"{np.exp(np.mean(np.log(known))):.3f} ({len(known)} cells)" if known else "-"


def cells(show: Printer, names: Sequence[str]) -> None:
    rows = [[n, *(show.shown(method, n) for method in MAIN), f"{show.ratio('forest', n):.2f}"] for n in names]
    print("## Whole stream\n")
    show.table(["cell", *MAIN, "forest / default"], rows)
    halves = ("default", "forest", LARGER, "forest, lag 5 + 5", *POOLED)
    rows = [
        [name, *(show.shown(method, name, field="half") for method in halves), f"{show.ratio('forest', name, field='half'):.2f}"]
        for name in names
    ]
    print("## Second half\n")
    show.table(["cell", *halves, "forest / default"], rows)
    print("## Figures that decide\n")
    square = [name for name in names if not _classes(name)]
    rows = []
    kinds = (("all cells", names), ("regression", square), ("two classes", [n for n in names if n not in square]))
    for method, (title, some) in product(("forest", LARGER), kinds):
        gaps = [(show.ratio(method, n), min_finite([show.ratio(learner, n) for learner in POOLED])) for n in some]
        gaps = [(np.log(ours), np.log(best)) for ours, best in gaps if np.isfinite(ours) and best < 1]
        closed = sum(ours for ours, _ in gaps) / sum(best for _, best in gaps) if gaps else float("nan")
        ratios = [show.ratio(method, n) for n in some]
        lagged = [show.ratio(f"{method}, lag 5 + 5", n, base=method) for n in some] if method == "forest" else []
        late_half = [show.ratio(f"{method}, lag 5 + 5", n, field="half", base=method) for n in some] if lagged else []
        rows.append(
            [
                method,
                title,
                geometric(ratios),
                geometric([show.ratio(method, n, field="half") for n in some]),
                f"{max((ratio for ratio in ratios if np.isfinite(ratio)), default=float('nan')):.2f}",
                geometric(lagged),
                geometric(late_half),
                f"{100 * closed:.0f}% ({len(gaps)} cells)",
            ]
        )
    heads = ["method", "of", "against the default", "second half", "worst"]
    heads += ["lag 5 + 5 / lockstep", "second half", "gap to best pooled closed"]
    show.table(heads, rows)


def min_finite(numbers: Sequence[float]) -> float:
    return min((number for number in numbers if np.isfinite(number)), default=float("nan"))


def _classes(name: str) -> bool:
    return CELLS[name][0] in CLASSES


def local(show: Printer, names: Sequence[str]) -> None:
    print("## Clients alone\n")
    show.table(["cell", "default", *LOCAL], [[n, *(show.shown(m, n) for m in ("default", *LOCAL))] for n in names])


def parts(show: Printer, names: Sequence[str]) -> None:
    print("## Parts A and B of the second leap\n")
    show.table(["cell", *FORESTS], [[n, *(show.shown(m, n) for m in FORESTS)] for n in names])


def disturbed_streams(show: Printer, names: Sequence[str]) -> None:
    print("## Disturbed streams\n")
    methods = ("default", "forest", "forest, trust")
    rows = [[what, n, *(show.shown(m, n, what) for m in methods)] for what in DISTURBANCES for n in names]
    rows.append(["1,000 clients of 20", "air_iid", *(show.shown(m, "K 1000") for m in methods)])
    show.table(["what", "cell", *methods], rows)


def rules(show: Printer, names: Sequence[str]) -> None:
    print("## Rules and what was tried instead\n")
    methods = ("forest", *CHANGED_RULES)
    rows = [[m, *(part for n in names for part in (show.shown(m, n), show.shown(m, n, field="half")))] for m in methods]
    show.table(["rule", *(f"{n}{half}" for n in names for half in ("", ", second half"))], rows)


def costs(show: Printer, names: Sequence[str]) -> None:
    print("## Bytes and state\n")
    rows = []
    for method in ("forest", *PARTS, *(changed for changed in CHANGED_RULES if "published" in changed)):
        for name in names:
            rows.append([method, name, *(show.shown(method, name, field=field) for field in COSTS)])
    show.table(["method", "cell", *COSTS.values()], rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forest", description=__doc__)
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; all, if none is named")
    parser.add_argument("--cells", action="append", choices=tuple(CELLS), help="this cell alone; may be given several times")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="the file of runs")
    parser.add_argument("--kept-only", action="store_true", help="print the runs of the file, and run nothing")
    given = parser.parse_args()
    if unknown := set(given.tables) - set(TABLES):
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    show = Printer(Kept(given.keep), range(given.seeds), given.kept_only)
    every, few = given.cells or tuple(CELLS), given.cells or FEW_CELLS
    made = {"cells": cells, "local": local, "parts": parts, "disturbed": disturbed_streams, "rules": rules, "costs": costs}
    for name in given.tables or TABLES:
        made[name](show, every if name in ("cells", "local", "parts") else few)


if __name__ == "__main__":
    main()
