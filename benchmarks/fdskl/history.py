"""What a history is predicted with, against what ``simulate --online`` says of the same rows.

``python -m benchmarks.fdskl.history`` prints a table. It needs the data sets in the folder ``STREAMFL_DATA``.
Three parties that share the columns evenly, with their defaults, the first 4,000 rows in an order by seed.
Samples and labels of all rows lie in the topics before any worker is there; *away*: and one party's worker
comes so many seconds later. *at once*: with ``learning.catch_up_samples = 0``. Losses are means over the rows
after the first tenth, each of the row's last prediction. Seconds are of a virtual clock.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.commands import Floats
from streamfl.fdskl.learning.losses import loss_named
from streamfl.fdskl.learning.schedule import ends_of_iterations
from streamfl.fdskl.tools.federation import KernelFederation, settings_of_all

PARTIES = ("a", "b", "c")
SETS = ("elec2", "phishing", "credit_default", "bike_hour")
AWAY = 20.0


class KernelHistory:
    """Three parties, their columns of some rows, and how they learn.

    inputs: (rows, columns).
    labels: (rows,), 0 and 1, or from 0 to 1.
    """

    def __init__(self, inputs: Floats, labels: Floats, **learning: Any) -> None:
        places = np.array_split(np.arange(inputs.shape[1]), len(PARTIES))
        self.columns = [[f"x{place}" for place in own] for own in places]
        self.inputs, self.labels = [inputs[:, own] for own in places], labels
        square = not set(np.unique(labels)) <= {0.0, 1.0}
        learning["loss"] = "square" if square else "logistic"
        self.settings = settings_of_all(PARTIES, federation={"seed": 3}, learning=learning)

    def federation(self) -> KernelFederation:
        return KernelFederation(self.settings, self.inputs, self.columns, self.labels)


def simulated(history: KernelHistory) -> KernelFederation:
    """As ``simulate --online``: a row after the other, labels as soon as an iteration lacks no others."""
    found, count, learning = history.federation(), len(history.labels), history.settings.learning
    begin = 0
    for end in ends_of_iterations(learning.first_block, learning.block_instances):
        rows = range(begin, min(end, count))
        found.write_samples(rows)
        found.run()
        found.write_labels(rows)
        found.run()
        begin = end
        if end >= count:
            return found
    raise AssertionError


def of_history(history: KernelHistory, away: float = 0.0) -> KernelFederation:
    """All of it lies in the topics when the workers begin. away: seconds for which the last party's is not
    there."""
    found, rows = history.federation(), range(len(history.labels))
    late = PARTIES[-1]
    for name in PARTIES:
        found.stop(name)
    found.write_samples(rows)
    found.write_labels(rows)
    for name in PARTIES:
        if name != late or not away:
            found.restart(name)
    if away:
        found.run(away)
        found.now = found.begin + away
        found.restart(late)
    found.run()
    return found


def losses(found: KernelFederation) -> tuple[Floats, NDArray[np.int64]]:
    """The loss of each row's last prediction, (rows,), and the version of its model, (rows,)."""
    last = {int(one.entity): one for one in found.predictions()}
    outputs = np.array([last[row].score for row in range(len(found.labels))])
    chosen = loss_named(found.settings.learning.loss)
    labels = 2 * found.labels - 1 if chosen.classifies else found.labels
    return np.asarray(chosen.value(outputs, labels)), np.array(
        [last[row].model for row in range(len(labels))]
    )


def read(folder: Path, name: str, count: int, seed: int) -> KernelHistory:
    """So many rows of a set."""
    kept = np.load(folder / f"{name}.npz")
    labels = kept["y"].astype(float)
    labels = (
        (labels > 0).astype(float)
        if len(np.unique(labels)) == 2
        else (labels - labels.min()) / np.ptp(labels)
    )
    rows = np.random.default_rng(seed).permutation(len(labels))[:count]
    return KernelHistory(kept["X"][rows].astype(float), labels[rows])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fdskl.history", description=__doc__)
    parser.add_argument("--data", action="append", choices=SETS, help="a set; may be given several times")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0, help="of the order of rows")
    given = parser.parse_args()
    if "STREAMFL_DATA" not in os.environ:
        sys.exit("STREAMFL_DATA is not set: the folder with the data sets")
    print("| set | way | loss | against simulate | by version 0 | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in given.data or SETS:
        history = read(Path(os.environ["STREAMFL_DATA"]), name, given.rows, given.seed)
        at_once = KernelHistory(np.hstack(history.inputs), history.labels, catch_up_samples=0)
        promised = np.nan
        for way, run in (
            ("simulate", partial(simulated, history)),
            ("history", partial(of_history, history)),
            (f"history, a party {AWAY:g} s away", partial(of_history, history, AWAY)),
            ("history, at once", partial(of_history, at_once)),
        ):
            found = run()
            each, versions = losses(found)
            loss = float(each[len(each) // 10 :].mean())
            promised = loss if way == "simulate" else promised
            figures = (
                f"{loss:.4f} | {loss / promised - 1:+.1%} | {(versions == 0).sum():,} | "
                f"{found.virtual_seconds:.1f}"
            )
            print(f"| {name} | {way} | {figures} |", flush=True)
            found.close()


if __name__ == "__main__":
    main()
