"""``python -m benchmarks.history``: one cell of the table, or some."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.history.bus import BUSES
from benchmarks.history.cell import CLIENTS_RATE, SERVERS, WAYS, Cell, Comparison, measure_cell, simulated
from benchmarks.history.tables import FILES, TABLES, Shape


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description=__doc__)
    parser.add_argument(
        "--data", action="append", choices=(*TABLES, *FILES), help="a table; may be given several times"
    )
    parser.add_argument(
        "--way",
        action="append",
        choices=WAYS,
        help="records lie there before, or come one by one; left out: both",
    )
    parser.add_argument("--bus", action="append", choices=BUSES, help="left out: sqlite")
    parser.add_argument("--clients", type=int, help="left out: as the table is dealt")
    parser.add_argument("--samples", type=int, help="a client; left out: as the table is dealt")
    parser.add_argument(
        "--rate", type=float, help="records a second of --way paced; left out: 5 of each client"
    )
    parser.add_argument(
        "--server",
        choices=SERVERS,
        default="always",
        help="half: stopped when half of the predictions are out",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="section.key=value of both roles' files; may come several times",
    )
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--workers", type=int, default=1, help="processes of clients")
    parser.add_argument("--partitions", type=int, default=4, help="of the topic of the samples")
    parser.add_argument(
        "--patience", type=float, default=180.0, help="seconds that predictions are waited for"
    )
    parser.add_argument("--no-simulate", action="store_true", help="leave out what simulate says")
    parser.add_argument(
        "--tenths", action="store_true", help="print the error of each tenth of the samples, too"
    )
    parser.add_argument(
        "--streamfl",
        type=Path,
        default=Path(sys.executable).with_name("streamfl"),
        help="the program, such as another checkout's",
    )
    given = parser.parse_args()
    table = Table(*COLUMNS, title="mean squared errors in the label's unit, squared; (2) is the second half")
    for data in given.data or TABLES:
        shape = TABLES[data][1] if data in TABLES else FILES[data]
        shape = Shape(given.clients or shape.clients, given.samples or shape.samples)
        seeds = range(given.seed, given.seed + given.seeds)
        rate = given.rate or CLIENTS_RATE * shape.clients
        first = Cell(
            data, shape.clients, shape.samples, rate=rate, server=given.server, settings=tuple(given.set)
        )
        first = dataclasses.replace(
            first, workers=given.workers, partitions=given.partitions, patience=given.patience
        )
        promised = (
            []
            if given.no_simulate
            else [simulated(dataclasses.replace(first, seed=seed), given.streamfl) for seed in seeds]
        )
        for bus in given.bus or ["sqlite"]:
            for way in given.way or WAYS:
                measured = []
                for seed in seeds:
                    measured.append(
                        measure_cell(dataclasses.replace(first, way=way, seed=seed), bus, given.streamfl)
                    )
                figures = _row(Comparison(measured, promised), shape.clients * shape.samples)
                table.add_row(f"{data} {shape.clients}x{shape.samples}", bus, way, *figures)
                if given.tenths:
                    print(
                        " ".join(
                            f"{tenth:.4g}" for tenth in np.mean([one.by_tenth for one in measured], axis=0)
                        )
                    )
    Console(width=200).print(table)


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
        "" if math.isnan(told) else "yes" if holds else "NO",
        f"{found.mean('versions'):.0f}", f"{found.mean('unlearnt'):.1%}", f"{found.mean('rate'):,.0f}",
        f"{found.mean('seconds'):.1f}",
        f"{1000 * found.mean('processor') / samples:.2f}", f"{found.mean('missing'):g}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
