"""What ``benchmarks.counts`` counts: a party's and the server's worker, from a sample to the model of its
window."""

from __future__ import annotations

from contextlib import closing

from benchmarks.counts import Meter
from benchmarks.dp_frank_wolfe.speed import federation

ROWS, WINDOWS = 600, 2


def _run(meter: Meter) -> None:
    with closing(federation(ROWS, WINDOWS)) as made:
        meter.watch("party", made.workers["hospital"], ROWS * WINDOWS)
        meter.watch("server", made.workers[""], ROWS * WINDOWS)
        meter.begin()
        while made.turn():
            pass
        models = len(list(made.bus.read("speed.model")))
        if models < WINDOWS or made.trouble is not None:
            raise RuntimeError(f"{models} models were made: {made.trouble}")


WORKLOADS = (_run,)
