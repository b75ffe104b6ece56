"""``streamfl demo fdskl``: two parties with one axis each learn a curved border that neither could draw
alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import rng_for
from streamfl.fdskl.learning.losses import loss_named
from streamfl.fdskl.learning.newton import solve_block
from streamfl.fdskl.messages import PARTIAL_SUM, PHASES, ROUND, Round
from streamfl.fdskl.sums.circle import from_circle, number_type
from streamfl.fdskl.tools.federation import settings_of_all
from streamfl.fdskl.tools.run import KernelOutcome, run_kernel
from streamfl.runtime.bus import Outgoing
from streamfl.simulation.pictures import (
    FEDERATION,
    LOCAL,
    STYLES,
    can_draw,
    label_axes,
    new_picture,
    save_picture,
)
from streamfl.simulation.system_tools import Report
from streamfl.simulation.tables import numbers, read_data
from streamfl.simulation.vertical.table import VerticalTable
from streamfl.terminal.progress import progress

__all__ = ["demo"]

# Points of two classes that lie around each other like two bananas.
DATA = "river:Bananas"
TEST = 1300
PARTIES = ("east", "north")
LABEL_DELAY, BATCH = 200, 128
# Virtual seconds of a message.
NETWORK_DELAY = 0.1
# Points of each axis at which the model is drawn.
GRID = 60
TITLES = {
    "together": "the two parties together",
    "one table": "whoever had both columns in one table",
    "linear": "a linear model of both columns",
    "east alone": "east alone",
    "north alone": "north alone",
}


class _Overheard:
    """The newest sum that a party sent, and what was asked for: entities and features."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[int, int], Round] = {}
        self.asked: Round | None = None
        self.numbers: NDArray[Any] | None = None

    def __call__(self, record: Outgoing) -> None:
        assert record.value is not None
        if record.topic.endswith(".rounds"):
            asked = ROUND.decode(record.value)
            self._rounds[asked.incarnations[0], asked.number] = asked
        elif record.topic.endswith(".sums"):
            sent = PARTIAL_SUM.decode(record.value)
            asked = self._rounds.pop((sent.incarnation, sent.number))
            if asked.purpose == PHASES and asked.ranges:
                self.asked = asked
                self.numbers = np.frombuffer(sent.values, number_type(32).newbyteorder("<"))

    def first_feature(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The numbers of the round's entities, and what was sent for its first feature, in radians:
        (entities,) each."""
        assert self.asked is not None
        assert self.numbers is not None
        count = sum(one.count for one in self.asked.ranges)
        entities = np.array([int(name) for name in self.asked.entities])
        sent = self.numbers[: len(entities) * count].reshape(len(entities), count)
        return entities, from_circle(sent[:, 0].astype(number_type(32)))


def demo(out: Path, seed: int) -> Report:
    """Let both parties learn together, each alone, one that has both columns, and a linear model; draw what
    is learnt and sent."""
    table = _table(seed)
    heard = _Overheard()
    together = _run(PARTIES, table, seed, heard)
    alone = {
        f"{name} alone": _run([name], VerticalTable([own], table.labels, TEST), seed)
        for name, own in zip(PARTIES, table.inputs, strict=True)
    }
    joined = _run(["everybody"], VerticalTable([np.hstack(table.inputs)], table.labels, TEST), seed)
    found: dict[str, dict[str, float | None]] = {
        name: {
            "accuracy": one.final.accuracy,
            "auc": one.final.auc,
            "progressive": (one.progressive or one.final).accuracy,
        }
        for name, one in {"together": together, "one table": joined, **alone}.items()
    }
    found["linear"] = {"accuracy": _linear(table), "auc": None, "progressive": None}
    if can_draw():
        _draw(
            out,
            table,
            together,
            {name: found[name]["accuracy"] or 0.0 for name in TITLES if name != "together"},
            heard,
        )
    summary = together.summary()
    return Report(
        title=f"Two kinds of points in {DATA}, of which each party knows one coordinate",
        columns=("who learns", "accuracy on other points", "before each label"),
        rows=[
            (
                title,
                f"{found[name]['accuracy']:.3f}",
                "" if (early := found[name]["progressive"]) is None else f"{early:.3f}",
            )
            for name, title in TITLES.items()
        ],
        figures={
            "runs": found,
            "history": [asdict(one) for one in together.history],
            **{
                key: summary[key]
                for key in ("iterations", "features", "messages", "bytes", "abandoned", "virtual_seconds")
            },
        },
    )


def _run(
    names: Sequence[str], table: VerticalTable, seed: int, overheard: _Overheard | None = None
) -> KernelOutcome:
    settings = settings_of_all(
        names,
        federation={"name": "demo", "seed": seed},
        learning={"block_instances": BATCH, "block_features": 64, "features_limit": 512},
        standardisation={"columns": False, "transform": "none"},
    )
    columns = [
        [f"{name}-{number}" for number in range(own.shape[1])]
        for name, own in zip(names, table.inputs, strict=True)
    ]
    with progress(" and ".join(names)) as work:
        return run_kernel(
            settings,
            table,
            columns,
            epochs=None,
            label_delay=LABEL_DELAY,
            network_delay=NETWORK_DELAY,
            trace=overheard is not None,
            overheard=overheard,
            watch=work,
        )


def _table(seed: int) -> VerticalTable:
    """The points in an order by ``seed``; both coordinates have mean 0 and deviation 1 already."""
    data = read_data(DATA)
    inputs = numbers(data, data.inputs(["y"]), DATA)
    labels = data.columns["y"].astype(np.float64)
    order = rng_for(seed, "demo", "rows").permutation(len(labels))
    return VerticalTable([inputs[order][:, [column]] for column in (0, 1)], labels[order], TEST)


def _linear(table: VerticalTable) -> float:
    """Accuracy of logistic regression on both columns, by Newton's method."""
    inputs = np.hstack([*table.inputs, np.ones((len(table.labels), 1))])
    labels, loss = 2 * table.labels - 1, loss_named("logistic")
    weights = np.zeros(3)
    for _ in range(20):
        rows = inputs[: table.learnt]
        weights = weights + solve_block(rows, rows @ weights, labels[: table.learnt], weights, 1, 1e-6, loss)
    return float(((inputs[table.learnt :] @ weights >= 0) == (labels[table.learnt :] > 0)).mean())


def _draw(
    out: Path, table: VerticalTable, together: KernelOutcome, levels: dict[str, float], heard: _Overheard
) -> None:
    """Draw the border that was learnt, accuracy over time, and what one party sends of its column."""
    figure, (border, curve, said) = new_picture(3, 13, 4.2)
    east, north = (own[:, 0] for own in table.inputs)
    axis = np.linspace(-3.2, 3.2, GRID)
    outputs = _model_at(together, *(grid.ravel() for grid in np.meshgrid(axis, axis)))
    border.contourf(
        axis,
        axis,
        outputs.reshape(GRID, GRID),
        levels=[-np.inf, 0, np.inf],
        colors=[FEDERATION, LOCAL],
        alpha=0.18,
    )
    test = slice(table.learnt, table.learnt + 600)
    for kind, colour in ((0, FEDERATION), (1, LOCAL)):
        chosen = table.labels[test] == kind
        border.scatter(east[test][chosen], north[test][chosen], s=5, color=colour)
    label_axes(border, "Points, and the border that was learnt", "column of the party east")
    border.set_ylabel("column of the party north")
    points = [(one.seconds, one.accuracy or 0.0) for one in together.history]
    curve.plot(*zip(*points, strict=True), color=FEDERATION, linewidth=2.5, label="both parties together")
    for style, (name, level) in zip(STYLES, levels.items(), strict=False):
        curve.axhline(level, color="black", linewidth=1, linestyle=style, label=f"{TITLES[name]}, at the end")
    label_axes(curve, "Accuracy on other points", f"virtual seconds, {NETWORK_DELAY:g} for a message")
    curve.legend(frameon=False, fontsize=7, loc=(0.25, 0.6))
    entities, sent = heard.first_feature()
    said.scatter(north[entities], sent, s=8, color=FEDERATION)
    said.set_yticks([0, np.pi, 2 * np.pi], ["0", "π", "2π"])
    # With two parties the other one can take the mask off. It hides the numbers from everybody else.
    label_axes(said, "What Kafka carries of one feature", "column of the party north")
    said.set_ylabel("sent by north")
    save_picture(figure, out, "streamfl: two parties, each with one coordinate of the same points")


def _model_at(
    together: KernelOutcome, east: NDArray[np.float64], north: NDArray[np.float64]
) -> NDArray[np.float64]:
    """f at these points, (n,)   (FDSKL, eq. 7)."""
    trace = together.trace
    first, last = trace["kept"]
    phases = np.outer(east, trace["frequencies/east"][first:last, 0]) + np.outer(
        north, trace["frequencies/north"][first:last, 0]
    )
    return np.asarray(np.sqrt(2.0) * np.cos(phases + trace["phases"][first:last]) @ trace["alphas"])
