"""``python -m benchmarks.history``: one cell of the table, or some."""

from __future__ import annotations

import dataclasses
from itertools import product

from rich.console import Console
from rich.table import Table

from benchmarks.commands import arguments, several
from benchmarks.history.cell import CLIENTS_RATE, WAYS, Cell, Comparison, measure_cell, simulated
from benchmarks.history.tables import TABLES


def main() -> None:
    given = arguments(
        "history",
        __doc__,
        data=several("a table", TABLES),
        way=several("records lie there before, or come one by one; left out: both", WAYS),
        bus=several("left out: sqlite", BUSES),
        clients=(0, "left out: as the table is dealt"),
        samples=(0, "a client; left out: as the table is dealt"),
        set=several("section.key=value of both roles' files"),
        seeds=(1, "how many seeds"),
    )
    table = Table(*COLUMNS, title="mean squared errors in the label's unit, squared; (2) is the second half")
    settings = tuple(given.set or ())
    for data in given.data or TABLES:
        _, shape = TABLES[data]
        clients, samples = given.clients or shape.clients, given.samples or shape.samples
        cells = [
            Cell(data, clients, samples, rate=CLIENTS_RATE * clients, settings=settings, seed=seed)
            for seed in range(given.seeds)
        ]
        promised = [simulated(cell) for cell in cells]
        for bus, way in product(given.bus or ["sqlite"], given.way or WAYS):
            measured = [measure_cell(dataclasses.replace(cell, way=way), bus) for cell in cells]
            figures = _row(Comparison(measured, promised), clients * samples)
            table.add_row(f"{data} {clients}x{samples}", bus, way, *figures)
    Console(width=200).print(table)


BUSES = ("sqlite", "kafka", "kafka+librdkafka")
COLUMNS = (
    "table", "bus", "way", "live", "simulate", "alone", "live (2)", "simulate (2)", "alone (2)",
    "5 % or 1 % var", "versions",
    "by version 0", "samples/s", "s", "CPU ms/sample", "missing",
)  # fmt: skip


def _row(found: Comparison, samples: int) -> list[str]:
    """The means over seeds; samples: of one run."""
    live, told = found.mean("mse"), found.promised("mse")
    holds = abs(found.error - 1) <= 0.05 and found.share_of_allowed <= 1
    return [
        f"{live:.4g}", f"{told:.4g} ({found.error - 1:+.1%})", f"{found.promised('alone'):.4g}",
        f"{found.mean('mse_half'):.3g}", f"{found.promised('mse_half'):.3g}",
        f"{found.promised('alone_half'):.3g}",
        "yes" if holds else "NO",
        f"{found.mean('versions'):.0f}", f"{found.mean('unlearnt'):.1%}", f"{found.mean('rate'):,.0f}",
        f"{found.mean('seconds'):.1f}",
        f"{1000 * found.mean('processor') / samples:.2f}", f"{found.mean('missing'):g}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
