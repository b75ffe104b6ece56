"""What ``benchmarks.counts`` counts: a party's and a coordinator's worker, from a sample to what its label
teaches."""

from __future__ import annotations

import numpy as np

from benchmarks.counts import Meter
from streamfl.simulation.vertical.members import HEAD
from streamfl.vafl.config import COORDINATOR, VaflSettings
from streamfl.vafl.metrics import PartyMetrics
from streamfl.vafl.tools.federation import VerticalFederation

PARTIES, FEATURES, ROUND, BEFORE, ROUNDS = ("bank", "shop", "phone"), 8, 400, 1, 2


def _run(meter: Meter) -> None:
    settings = VaflSettings.model_validate(
        {
            "federation": {"name": "counts", "parties": list(PARTIES), "embedding_size": 1},
            "role": {"kind": COORDINATOR},
            "labels": {"topic": "labels", "label": "y"},
        }
    )
    inputs = np.random.default_rng(0).normal(size=(len(PARTIES), (BEFORE + ROUNDS) * ROUND, FEATURES))
    federation = VerticalFederation(
        settings, list(inputs), (inputs[:, :, 0].sum(axis=0) > 0).astype(np.float64)
    )
    meter.watch("party", federation.parties[0].worker, ROUNDS * ROUND)
    meter.watch("coordinator", federation.workers[HEAD], ROUNDS * ROUND)
    for number in range(BEFORE + ROUNDS):
        if number == BEFORE:
            meter.begin()
        entities = range(number * ROUND, (number + 1) * ROUND)
        federation.replay([entities] * len(PARTIES))
        federation.run()
        federation.write_labels(entities)
        federation.run()
    learnt = federation.figure(PARTIES[0], PartyMetrics.gradients)
    if learnt != (BEFORE + ROUNDS) * ROUND:
        raise RuntimeError(f"a party learnt from {learnt:g} entities")


WORKLOADS = (_run,)
