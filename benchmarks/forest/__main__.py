"""The federated forest against today's default: ``python -m benchmarks.forest`` prints the tables of
docs/forest.md.

It needs STREAMFL_DATA, the folder with the sets and their ``streams.py``, and CatBoost for the pooled learner
of that name. Every figure follows from the seeds. ``--keep FILE`` stores each run in a file, so that a
command that was ended goes on from there. Errors are times 1000: mean squared errors on labels from 0 to 1,
or log losses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.forest.cells import CELLS, CLASSES, DISTURBANCES, LIES
from benchmarks.forest.challengers import LOCAL, POOLED
from benchmarks.forest.runs import CHANGED_RULES, PARTS, Kept, measure

LAG = "forest, lag 5 + 5"
FORESTS = (
    "default",
    "forest",
    "forest with A",
    "forest with B",
    "forest with A and B",
    "A without forest",
    "B without forest",
)
TABLES = ("cells", "disturbed", "parts", "local", "rules", "costs")
FEW_CELLS = ("bike 40", "air_iid 40")
WIDE_CELLS, WIDE = ("uji 40", "w8a 10"), ("forest", "forest, 54 kept", "forest, kept as codes")
COSTS = {
    "error": "error",
    "bytes": "items up a sample",
    "evidence": "evidence up a sample",
    "moments": "moments up a sample",
    "blocks_down": "blocks down a round",
    "values_down": "values down a round",
    "tables_down": "tables down a round",
    "newcomer": "a newcomer's download",
    "part_apart": "apart from it after .4 MB",
    "client_state": "a client's state",
    "server_items": "items at the server",
    "changelog": "a client's changelog a sample",
    "microseconds": "microseconds a sample",
}


class Printer:
    """Prints tables in Markdown of what ``measure`` gives; with ``kept_only``, of the runs that are kept
    already."""

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

    def ratio(
        self,
        method: str,
        cell: str,
        what: str = "",
        field: str = "error",
        base: str = "default",
        calm: str = "",
    ) -> float:
        """Of the method's mean error to the base's, over the seeds that both have; calm: the base's
        disturbance, if another."""
        both_runs = self.runs(method, cell, what), self.runs(base, cell, calm or what)
        ours, others = ({run["run"].split(" | ")[-1]: run[field] for run in runs} for runs in both_runs)
        both = ours.keys() & others.keys()
        return sum(ours[seed] for seed in both) / sum(others[seed] for seed in both) if both else float("nan")

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
    def ratios(name: str, field: str) -> list[str]:
        return [
            f"{show.ratio('forest', name, field=field):.2f}",
            f"{show.ratio(LAG, name, field=field, base='forest'):.2f}",
        ]

    heads, methods = ["forest / default", "lag / lockstep"], ("default", "forest", LAG, *POOLED)
    for title, field in (("Whole stream", "error"), ("Second half", "half")):
        print(f"## {title}\n")
        rows = [[n, *(show.shown(m, n, field=field) for m in methods), *ratios(n, field)] for n in names]
        alone = ["forest alone"] if field == "error" else []
        for row, name in zip(rows, names, strict=True):
            row[4:4] = [show.shown("forest", name, field="alone")] * len(alone)
        show.table(["cell", *methods[:3], *alone, *POOLED, *heads], rows)
    print("## Figures that decide\n")
    square = [name for name in names if not _classes(name)]
    few = [name for name in names if not name.startswith(("naval", "bike_iid"))]
    rows = []
    kinds = {"all cells": names, "regression": square, "two classes": [n for n in names if n not in square]}
    for title, some in {**kinds, "all but naval and bike_iid": few}.items():
        gaps = [
            (show.ratio("forest", n), min_finite([show.ratio(learner, n) for learner in POOLED]))
            for n in some
        ]
        gaps = [(np.log(ours), np.log(best)) for ours, best in gaps if np.isfinite(ours) and best < 1]
        closed = sum(ours for ours, _ in gaps) / sum(best for _, best in gaps) if gaps else float("nan")
        found = [show.ratio("forest", n) for n in some]
        row = [geometric(found), geometric([show.ratio("forest", n, field="half") for n in some])]
        row += [f"{max((ratio for ratio in found if np.isfinite(ratio)), default=float('nan')):.2f}"]
        row += [
            geometric([show.ratio(LAG, n, field=field, base="forest") for n in some])
            for field in ("error", "half")
        ]
        rows.append([title, *row, f"{100 * closed:.0f}% ({len(gaps)} cells)"])
    heads = ["of", "against the default", "second half", "worst", "lag 5 + 5 / lockstep", "second half"]
    show.table([*heads, "gap to best pooled closed"], rows)


def min_finite(numbers: Sequence[float]) -> float:
    return min((number for number in numbers if np.isfinite(number)), default=float("nan"))


def _classes(name: str) -> bool:
    return CELLS[name][0] in CLASSES


def local(show: Printer, names: Sequence[str]) -> None:
    print("## Clients alone\n")
    show.table(
        ["cell", "default", *LOCAL], [[n, *(show.shown(m, n) for m in ("default", *LOCAL))] for n in names]
    )


def parts(show: Printer, names: Sequence[str]) -> None:
    print("## Parts A and B of the second leap\n")
    show.table(["cell", *FORESTS], [[n, *(show.shown(m, n) for m in FORESTS)] for n in names])


def disturbed_streams(show: Printer, names: Sequence[str]) -> None:
    print("## Disturbed streams\n")
    methods, calm = ("default", "forest"), LIES[0]
    rows = []
    for what in DISTURBANCES:
        of = ("forest", "default") if what in LIES[1:] else ()
        for name in names:
            against = [
                f"{show.ratio(m, name, what, base=m, calm=calm):.2f}" if m in of else ""
                for m in ("default", "forest")
            ]
            rows.append([what, name, *(show.shown(m, name, what) for m in methods), *against])
            if what == "one makes up items":
                unguarded = show.ratio("no guard", name, what, base="forest", calm=calm)
                rows.append(
                    [
                        f"{what}, no guard",
                        name,
                        "",
                        show.shown("no guard", name, what),
                        "",
                        f"{unguarded:.2f}",
                    ]
                )
    rows.append(["1,000 clients of 20", "air_iid", *(show.shown(m, "K 1000") for m in methods), "", ""])
    show.table(["what", "cell", *methods, "default / without the liar", "forest / without the liar"], rows)


def rules(show: Printer, names: Sequence[str]) -> None:
    print("## Rules and what was tried instead\n")
    methods = ("forest", *CHANGED_RULES)
    rows = [
        [m, *(part for n in names for part in (show.shown(m, n), show.shown(m, n, field="half")))]
        for m in methods
    ]
    show.table(["rule", *(f"{n}{half}" for n in names for half in ("", ", second half"))], rows)


def costs(show: Printer, names: Sequence[str]) -> None:
    print("## Bytes and state\n")
    rows = []
    for method in ("forest", *PARTS, *(changed for changed in CHANGED_RULES if "published" in changed)):
        for name in names if method not in WIDE else (*names, *WIDE_CELLS):
            rows.append([method, name, *(show.shown(method, name, field=field) for field in COSTS)])
    show.table(["method", "cell", *COSTS.values()], rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forest", description=__doc__)
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; all, if none is named")
    parser.add_argument(
        "--cells", action="append", choices=tuple(CELLS), help="this cell alone; may be given several times"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="the file of runs")
    parser.add_argument(
        "--kept-only", action="store_true", help="print the runs of the file, and run nothing"
    )
    given = parser.parse_args()
    if unknown := set(given.tables) - set(TABLES):
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    show = Printer(Kept(given.keep), range(given.seeds), given.kept_only)
    every, few = given.cells or tuple(CELLS), given.cells or FEW_CELLS
    made = {
        "cells": cells,
        "local": local,
        "parts": parts,
        "disturbed": disturbed_streams,
        "rules": rules,
        "costs": costs,
    }
    for name in given.tables or TABLES:
        made[name](show, every if name in ("cells", "local", "parts") else few)


if __name__ == "__main__":
    main()
