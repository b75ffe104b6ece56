"""What ``benchmarks.counts`` counts: the active and another worker, from a sample to what its label
teaches."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from benchmarks.counts import Meter
from benchmarks.fdskl.federations import federation_of, named, show

PARTIES, ROUND, BEFORE, ROUNDS = {"bank": 8, "shop": 7, "phone": 7}, 512, 1, 2


def _run(meter: Meter) -> None:
    inputs = np.random.default_rng(0).normal(size=((BEFORE + ROUNDS) * ROUND, sum(PARTIES.values())))
    labels = (inputs[:, 0] + inputs[:, 9] > 0).astype(np.float64)
    with closing(federation_of(named(PARTIES), inputs, labels)) as federation:
        meter.watch("active worker", federation.workers["bank"], ROUNDS * ROUND)
        meter.watch("worker", federation.workers["shop"], ROUNDS * ROUND)
        for number in range(BEFORE + ROUNDS):
            if number == BEFORE:
                meter.begin()
            show(federation, range(number * ROUND, (number + 1) * ROUND))
        predicted, version = len(federation.predictions()), federation.held.model.version
        if predicted != (BEFORE + ROUNDS) * ROUND or version <= ROUNDS:
            raise RuntimeError(f"{predicted} entities were predicted, and {version} iterations made")


WORKLOADS = (_run,)
