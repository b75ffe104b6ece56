"""``python -m benchmarks --only history``: how near predictions of a deployment come to what ``simulate`` says, and how fast.

The table is of what a user runs: files by ``streamfl init``, with its defaults, and worker processes.
Figures are means over the seeds.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, size
from benchmarks.history.cell import CLIENTS_RATE, WAYS, Cell, Comparison, measure_cell, simulated
from benchmarks.history.tables import TABLES, Shape

__all__ = ["measure"]

PROGRAM = Path(sys.executable).with_name("streamfl")
DATA = size(("trump", "friedman", "meters"), ("diabetes",))
BUSES = size(("sqlite", "kafka"), ("sqlite",))
SEEDS = size(5, 1)
# By the number of clients: as many samples of each as it takes some seconds to catch up with, and how many a second are wanted.
HISTORIES = size({40: (1_000, 3_000.0), 1_000: (100, 15_000.0)}, {})


def measure() -> Iterator[Figure]:
    """The figures, table by table."""
    for data in DATA:
        shape = size(TABLES[data][1], Shape(5, 20))
        cell = Cell(data, shape.clients, shape.samples, rate=CLIENTS_RATE * shape.clients)
        cells = [dataclasses.replace(cell, seed=seed) for seed in range(SEEDS)]
        promised = [simulated(one, PROGRAM) for one in cells]
        for bus in BUSES:
            for way in WAYS:
                ways = [dataclasses.replace(one, way=way) for one in cells]
                found = Comparison([measure_cell(one, bus, PROGRAM) for one in ways], promised)
                name = f"history: {data}, {bus}, {way}"
                yield Figure(f"{name}: error differs from simulate's by", 100 * abs(found.error - 1.0), "%", 5.0, True)
                yield Figure(f"{name}: second half, of the difference that is allowed", found.share_of_allowed, "x", 1.0, True)
                yield Figure(f"{name}: predicted by version 0", 100 * found.mean("unlearnt"), "%")
        alone = Comparison([measure_cell(dataclasses.replace(one, server="never"), "sqlite", PROGRAM) for one in cells], promised)
        yield Figure(f"history: {data}, sqlite, no server: error against clients alone", alone.error_alone, "x", 1.1, True)
    for clients, (samples, wanted) in HISTORIES.items():
        one = measure_cell(Cell("friedman", clients, samples), "kafka+librdkafka", PROGRAM)
        yield Figure(f"history: {clients:,} clients, kafka+librdkafka: samples/s", one.rate, "", wanted)
