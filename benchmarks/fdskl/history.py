"""What a history is predicted with, against what ``simulate --online`` says of the same rows.

``python -m benchmarks.fdskl.history`` prints a table. It needs the data sets in the folder ``STREAMFL_DATA``.
Three parties that share the columns evenly, with their defaults, the first 4,000 rows in an order by seed.
Samples and labels of all rows lie in the topics before any worker is there; *away*: and one party's worker
comes so many seconds later. *at once*: with ``learning.catch_up_samples = 0``. Losses are means over the rows
after the first tenth, each of the row's last prediction. Seconds are of a virtual clock.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.commands import Floats, Markdown, arguments, data_folder, data_set, several
from benchmarks.fdskl.federations import federation_of, rows_by_iteration, show
from streamfl.fdskl.learning.losses import loss_named
from streamfl.fdskl.tools.federation import KernelFederation

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
        self.columns = {
            name: [f"x{place}" for place in own] for name, own in zip(PARTIES, places, strict=True)
        }
        self.inputs, self.labels = inputs, labels
        square = not set(np.unique(labels)) <= {0.0, 1.0}
        self.learning = {"loss": "square" if square else "logistic", **learning}

    def federation(self) -> KernelFederation:
        return federation_of(
            self.columns, self.inputs, self.labels, federation={"seed": 3}, learning=self.learning
        )


def simulated(history: KernelHistory) -> KernelFederation:
    """As ``simulate --online``: a row after the other, labels as soon as an iteration lacks no others."""
    found = history.federation()
    for rows in rows_by_iteration(found.settings.learning, len(history.labels)):
        show(found, rows)
    return found


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
    versions = np.array([last[row].model for row in range(len(labels))])
    return np.asarray(chosen.value(outputs, labels)), versions


def read(folder: Path, name: str, count: int, seed: int) -> KernelHistory:
    """So many rows of a set."""
    inputs, labels = data_set(folder, name)
    if len(np.unique(labels)) == 2:
        labels = (labels > 0).astype(float)
    else:
        labels = (labels - labels.min()) / np.ptp(labels)
    rows = np.random.default_rng(seed).permutation(len(labels))[:count]
    return KernelHistory(inputs[rows], labels[rows])


def main() -> None:
    given = arguments(
        "fdskl.history",
        __doc__,
        data=several("a set", SETS),
        rows=(4000, "of each"),
        seed=(0, "of the order of rows"),
    )
    table = Markdown("set", "way", "loss", "against simulate", "by version 0", "seconds")
    for name in given.data or SETS:
        history = read(data_folder(), name, given.rows, given.seed)
        at_once = KernelHistory(history.inputs, history.labels, catch_up_samples=0)
        promised = np.nan
        for way, run in (
            ("simulate", partial(simulated, history)),
            ("history", partial(of_history, history)),
            (f"history, a party {AWAY:g} s away", partial(of_history, history, AWAY)),
            ("history, at once", partial(of_history, at_once)),
        ):
            with closing(run()) as found:
                each, versions = losses(found)
                loss = float(each[len(each) // 10 :].mean())
                promised = loss if way == "simulate" else promised
                change, unlearnt = f"{loss / promised - 1:+.1%}", (versions == 0).sum()
                table.add(name, way, f"{loss:.4f}", change, f"{unlearnt:,}", f"{found.virtual_seconds:.1f}")


if __name__ == "__main__":
    main()
