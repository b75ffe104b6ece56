"""How a federation writes its predictions is nothing to a simulation of it."""

from __future__ import annotations

import numpy as np
import pandas as pd

import streamfl

COORDINATOR = {
    "federation": {"name": "credit", "seed": 11, "parties": ["bank", "shop"], "embedding_size": 1},
    "role": {"kind": "vafl-coordinator"},
    "labels": {"topic": "outcomes", "label": "y"},
}


def test_a_simulation_reads_predictions_whatever_their_format() -> None:
    """Protects whoever publishes MessagePack and wants to know what the federation is worth: it ended in a traceback."""
    values = np.random.default_rng(4).normal(size=(80, 4))
    data = pd.DataFrame(values, columns=list("abcd")).assign(y=(values.sum(axis=1) > 0).astype(int))
    figures = [
        streamfl.simulate(data, COORDINATOR | section, label="y", split="bank=a+b,shop=c+d", online=True).figures["progressive"]
        for section in ({}, {"predictions": {"format": "msgpack"}})
    ]
    assert figures[0] == figures[1]
