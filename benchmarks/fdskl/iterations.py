"""``python -m benchmarks.fdskl.iterations``: how long an iteration takes with q parties, for each topology,
and a picture of it.

All parties run in this process, on the memory bus. A virtual clock counts what messages take, and the
processor's own what is computed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.commands import Markdown, arguments
from benchmarks.fdskl.federations import federation_of, named
from benchmarks.figures import size
from streamfl.fdskl.tools.federation import KernelFederation
from streamfl.simulation.pictures import label_axes, new_picture

TOPOLOGIES = ("tree", "star", "ring")
PARTIES = size((2, 4, 8, 16), (2,))
MESSAGE_SECONDS = 0.05
# The paper's solver: B labels and R features an iteration, and so many features kept.
INSTANCES, FEATURES, KEPT, COLUMNS = 16, 64, 512, 4
WARM_UP, ITERATIONS = size(10, 1), size(40, 2)


@dataclass(frozen=True)
class IterationTime:
    """virtual: seconds, a message taking ``MESSAGE_SECONDS`` and nothing else any time. computed: processor
    seconds of all parties' work."""

    virtual: float
    computed: float


def iteration_times(parties: int) -> Mapping[str, IterationTime]:
    """By topology, of an iteration when all features are kept; the least computing time of some, the
    topologies taking turns."""
    federations = {topology: _federation(topology, parties) for topology in TOPOLOGIES}
    computed = dict.fromkeys(TOPOLOGIES, float("inf"))
    virtual = dict.fromkeys(TOPOLOGIES, 0.0)
    for federation in federations.values():
        federation.write_samples(range(len(federation.labels)))
        federation.run()
    for number in range(WARM_UP + ITERATIONS):
        for topology, federation in federations.items():
            federation.write_labels(range(number * INSTANCES, (number + 1) * INSTANCES))
            before, began = federation.now, time.process_time()
            federation.run()
            seconds = time.process_time() - began
            if number >= WARM_UP:
                computed[topology] = min(computed[topology], seconds)
                virtual[topology] += (federation.begin + federation.virtual_seconds - before) / ITERATIONS
    for federation in federations.values():
        with closing(federation):
            if federation.held.model.version != WARM_UP + ITERATIONS:
                raise RuntimeError(
                    f"{federation.held.model.version} iterations were made of {WARM_UP + ITERATIONS}"
                )
    return {topology: IterationTime(virtual[topology], computed[topology]) for topology in TOPOLOGIES}


def _federation(topology: str, parties: int) -> KernelFederation:
    columns = named({f"p{number}": COLUMNS for number in range(parties)})
    learning = {
        "solver": "sgd",
        "bandwidth": 3.0,
        "block_instances": INSTANCES,
        "block_features": FEATURES,
        "features_limit": KEPT,
        "window": 4096,
    }
    generator = np.random.default_rng(0)
    count = (WARM_UP + ITERATIONS) * INSTANCES
    inputs = np.hstack([generator.normal(size=(count, COLUMNS)) for _ in columns])
    return federation_of(
        columns,
        inputs,
        (inputs[:, 0] * inputs[:, 1 - COLUMNS] > 0).astype(float),
        MESSAGE_SECONDS,
        learning=learning,
        aggregation={"topology": topology},
        alignment={"linger_ms": 0.0},
    )


def picture(times: Mapping[int, Mapping[str, IterationTime]], path: Path) -> None:
    """Write both times over the number of parties to ``path``; the ending says the format."""
    figure, (messages, work) = new_picture(2, 11, 4.2)
    for topology, mark in zip(TOPOLOGIES, ("o-", "s--", "^:"), strict=True):
        found = {count: one[topology] for count, one in times.items()}
        computed = [1000 * one.computed / count for count, one in found.items()]
        messages.plot(list(times), [one.virtual for one in found.values()], mark, label=topology)
        work.plot(list(times), computed, mark, label=topology)
    label_axes(messages, f"virtual seconds an iteration, a message {1000 * MESSAGE_SECONDS:g} ms", "parties")
    label_axes(work, "processor milliseconds an iteration and party", "parties")
    for axes in (messages, work):
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print a table, and draw."""
    out = {"type": Path, "help": "where the picture is written; left out: none is"}
    path = arguments("fdskl.iterations", __doc__, out=out).out
    times = {}
    table = Markdown("q", *(f"{one}: {what}" for what in ("virtual s", "ms") for one in TOPOLOGIES))
    for parties in PARTIES:
        times[parties] = found = iteration_times(parties)
        virtual = [f"{found[one].virtual:.2f}" for one in TOPOLOGIES]
        table.add(parties, *virtual, *(f"{1000 * found[one].computed / parties:.2f}" for one in TOPOLOGIES))
    if path is not None:
        picture(times, path)


if __name__ == "__main__":
    main()
