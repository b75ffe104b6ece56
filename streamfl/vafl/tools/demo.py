"""``streamfl demo vafl``: three parties have different columns of the same images; one party is slow, and
labels are late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from streamfl.contract.seeding import rng_for
from streamfl.simulation.parties import Delay
from streamfl.simulation.pictures import can_draw, picture_over_time
from streamfl.simulation.system_tools import Report
from streamfl.simulation.tables import numbers, read_data
from streamfl.simulation.vertical.members import HEAD
from streamfl.simulation.vertical.table import VerticalTable
from streamfl.terminal.progress import progress
from streamfl.vafl.config import VaflFederation, VaflSettings, VerticalLearningSection
from streamfl.vafl.tools.run import VerticalOutcome, run_vertical
from streamfl.vafl.tools.simulated_members import members

__all__ = ["demo"]

# Pieces of outdoor photographs, of seven kinds: brick, cement, leaves, grass, a path, sky, a window.
DATA = "river:ImageSegments"
CLASSES, TEST = 7, 462
# The columns of each party, and below its virtual seconds between two uploads.
PARTIES = {"place": slice(0, 2), "edges": slice(2, 8), "colours": slice(8, 18)}
DELAYS = {"place": 10.0, "edges": 1.0, "colours": 1.0}
LABEL_DELAY, BATCH = 200, 16
GOAL = 0.75
TITLES = {
    "asynchronous": "the parties together",
    "synchronous": "together, each waiting for all",
    "one table": "whoever had all columns in one table",
}


def demo(out: Path, seed: int) -> Report:
    """Run the parties together without and with waiting, each alone, and one with all columns; draw accuracy
    over time."""
    table = _table(seed)
    names = list(PARTIES)
    runs = {
        "asynchronous": _run(names, table, seed),
        "synchronous": _run(names, table, seed, synchronous=True),
        **{
            f"{name} alone": _run([name], VerticalTable([own], table.labels, TEST), seed)
            for name, own in zip(names, table.inputs, strict=True)
        },
        "one table": _run(["everybody"], VerticalTable([np.hstack(table.inputs)], table.labels, TEST), seed),
    }
    lines = {name: runs[name].history for name in ("asynchronous", "synchronous")}
    levels = {name: one.final.accuracy or 0.0 for name, one in runs.items() if name not in lines}
    curves = {
        name: [(one.seconds, one.accuracy or 0.0) for one in history] for name, history in lines.items()
    }
    if can_draw():
        picture_over_time(
            curves, levels, out, "streamfl: three parties, one ten times slower, labels 200 images late"
        )
    found = {
        name: {"accuracy": one.final.accuracy, "virtual_seconds": one.seconds} for name, one in runs.items()
    }
    return Report(
        title=f"Kinds of surface in {DATA}",
        columns=("who learns", "accuracy on other images", "virtual time", f"until accuracy {GOAL}"),
        rows=[
            (TITLES.get(name, name), f"{one.final.accuracy:.3f}", f"{one.seconds:,.0f} s", _until(one))
            for name, one in runs.items()
        ],
        figures={"runs": found, "history": {name: [asdict(one) for one in lines[name]] for name in lines}},
    )


def _run(names: Sequence[str], table: VerticalTable, seed: int, synchronous: bool = False) -> VerticalOutcome:
    learning = VerticalLearningSection(
        loss="softmax",
        classes=CLASSES,
        learning_rate=0.1,
        batch_size=BATCH,
        wait_for=len(names) if synchronous else 1,
        # A party that waits for the slowest must not send embeddings long before it: they would be of an old
        # model.
        in_flight=LABEL_DELAY + BATCH if synchronous else None,
    )
    federation = VaflFederation(name="demo", seed=seed, parties=list(names), embedding_size=CLASSES)
    coordinator = members(federation, dict.fromkeys(names, 1))[HEAD]
    settings = VaflSettings(federation=federation, learning=learning, **coordinator)
    delays = [Delay(DELAYS.get(name, 1.0)) for name in names]
    with progress(" and ".join(names)) as work:
        return run_vertical(settings, table, delays=delays, epochs=None, label_delay=LABEL_DELAY, watch=work)


def _table(seed: int) -> VerticalTable:
    """The images in an order by ``seed``; every column has mean 0 and deviation 1 over the training
    images."""
    data = read_data(DATA)
    inputs = numbers(data, data.inputs(["y"]), DATA)
    labels = np.unique(data.columns["y"].astype(str), return_inverse=True)[1].astype(np.float64)
    order = rng_for(seed, "demo", "rows").permutation(len(labels))
    inputs, labels = inputs[order], labels[order]
    learnt = inputs[:-TEST]
    inputs = (inputs - learnt.mean(axis=0)) / learnt.std(axis=0)
    return VerticalTable([inputs[:, own] for own in PARTIES.values()], labels, TEST)


def _until(outcome: VerticalOutcome) -> str:
    """Virtual seconds until the goal was first reached."""
    reached = [one.seconds for one in outcome.history if (one.accuracy or 0.0) >= GOAL]
    return f"{reached[0]:,.0f} s" if reached else "never"
