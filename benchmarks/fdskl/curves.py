"""``STREAMFL_DATA=folder python -m benchmarks.fdskl.curves --out FILE``: error against iterations, as a
picture.

Settings are those that docs/fdskl-accuracy.json chose for seed 0, on the same split. Each point is a model
that is learnt anew, from the first labels of the one pass. Exact kernels and boosted trees have no
iterations: they are lines.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks.commands import DOCS, arguments, data_folder
from benchmarks.fdskl.accuracy import BLOCKS, NEWTON, SINGLE, Split, learnt_from, outputs_of, read
from streamfl.simulation.pictures import label_axes, new_picture

# Sets, whose measure in the table is an error in percent; points of a curve; and labels that the paper's own
# iterations stop at.
SHOWN = ("phishing", "a9a")
POINTS, SINGLE_LABELS = 7, 5_000
SOLVERS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "newton": ("newton, blocks of 256 labels", NEWTON, False),
    "sgd": ("sgd, blocks of 64 labels", BLOCKS, False),
    "DSG": ("sgd, one label an iteration", SINGLE, True),
}
LINES = ("exact kernel", "gradient boosting")
Curve = list[tuple[int, float]]


def curve(split: Split, fixed: dict[str, Any], choice: dict[str, Any], alone: bool) -> Curve:
    """Iterations, and percent of test rows that are wrong after them. alone: one party has all columns."""
    parties = split.whole if alone else split.parts
    most = SINGLE_LABELS if alone else len(split.labels)
    found = []
    for labels in np.unique(np.geomspace(fixed["block_instances"], most, POINTS).astype(int)).tolist():
        learnt = learnt_from(split, {**fixed, **choice}, 0, parties, labels)
        found.append((learnt.iterations, split.measures(outputs_of(learnt, split, parties))["error"]))
    return found


def main() -> None:
    """Learn, print each point, and draw."""
    out = (DOCS / "fdskl-curves.png", "where the picture is written")
    path = arguments("fdskl.curves", __doc__, out=out).out
    kept = json.loads((DOCS / "fdskl-accuracy.json").read_text(encoding="utf-8"))
    figure, every = new_picture(len(SHOWN), 11, 4.2)
    for axes, data in zip(every, SHOWN, strict=True):
        split = read(data_folder(), data, 0)
        for (name, (says, fixed, alone)), mark in zip(SOLVERS.items(), ("o-", "s--", "^:"), strict=True):
            found = curve(split, fixed, kept[f"{name}|{data}|seed 0"]["choice"], alone)
            points = ", ".join(f"{iterations}: {error:.2f}%" for iterations, error in found)
            print(f"{data}, {says}: {points}", flush=True)
            axes.plot(*zip(*found, strict=True), mark, label=says)
        for name, style in zip(LINES, ("-", "--"), strict=True):
            axes.axhline(kept[f"{name}|{data}|seed 0"]["error"], color="grey", linestyle=style, label=name)
        label_axes(axes, f"{data}: test rows that are wrong, percent", "iterations")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
