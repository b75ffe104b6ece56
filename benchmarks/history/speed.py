"""``python -m benchmarks --only history``: how near predictions of a deployment come to what ``simulate``
says, and how fast.

The table is of what a user runs: files by ``streamfl init``, with its defaults, and worker processes.
Figures are means over the seeds. Where only errors are measured, on SQLite, two deployments run beside each
other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks.figures import Figure, size
from benchmarks.history.cell import CLIENTS_RATE, WAYS, Cell, Comparison, Measured, measure_cell, simulated
from benchmarks.history.tables import TABLES, Shape

DATA = size(("trump", "friedman", "meters"), ("diabetes",))
BUSES = size(("sqlite", "kafka"), ("sqlite",))
MEASURED_WAYS = size(WAYS, WAYS[:1])
SEEDS = size(5, 1)
# By the number of clients: as many samples of each as it takes some seconds to catch up with, and how many a
# second are wanted.
HISTORIES = size({40: (1_000, 3_000.0), 1_000: (100, 15_000.0)}, {})
# Bytes a second that deploy/client.toml allows each client.
BUDGET = 20_000
CAPPED = Cell("friedman", 40, 100, settings=(f"uplink.budget_bytes_per_second={BUDGET}",))
# Whether there are also cells without a server, and one whose uploads are capped.
UNUSUAL = size(True, False)


def measure() -> Iterator[Figure]:
    """The figures, table by table."""
    for data in DATA:
        shape = size(TABLES[data][1], Shape(5, 20))
        cell = Cell(data, shape.clients, shape.samples, rate=CLIENTS_RATE * shape.clients)
        cells = [dataclasses.replace(cell, seed=seed) for seed in range(SEEDS)]
        promised = [simulated(one) for one in cells]
        for bus in BUSES:
            for way in MEASURED_WAYS:
                found = Comparison(
                    _measured([dataclasses.replace(one, way=way) for one in cells], bus), promised
                )
                name = f"history: {data}, {bus}, {way}"
                away, share = 100 * abs(found.error - 1.0), found.share_of_allowed
                yield Figure(f"{name}: error differs from simulate's by", away, "%", 5.0, True)
                yield Figure(f"{name}: second half, of the difference that is allowed", share, "x", 1.0, True)
                yield Figure(f"{name}: predicted by version 0", 100 * found.mean("unlearnt"), "%")
        if not UNUSUAL:
            continue
        without = [dataclasses.replace(one, server=False) for one in cells]
        alone = Comparison(_measured(without, "sqlite"), promised)
        name = f"history: {data}, sqlite, no server: error against clients alone"
        yield Figure(name, alone.error_alone, "x", 1.1, True)
    for clients, (samples, wanted) in HISTORIES.items():
        one = measure_cell(Cell("friedman", clients, samples), "kafka+librdkafka")
        yield Figure(f"history: {clients:,} clients, kafka+librdkafka: samples/s", one.rate, "", wanted)
    if not UNUSUAL:
        return
    one = measure_cell(CAPPED, BUSES[-1])
    name = f"history: friedman, {BUDGET:,} bytes a second and client"
    yield Figure(f"{name}: samples/s", one.rate, "")
    yield Figure(f"{name}: error against simulate's", one.mse / simulated(CAPPED).mse, "x")


def _measured(cells: list[Cell], bus: str) -> list[Measured]:
    """On SQLite two at a time, for they wait most of the time; with a broker each they would slow each other,
    and be less exact."""
    with ThreadPoolExecutor(2 if bus == "sqlite" else 1) as pool:
        return list(pool.map(lambda one: measure_cell(one, bus), cells))
