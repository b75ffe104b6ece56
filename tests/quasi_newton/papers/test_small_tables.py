"""Small tables converge: the command that says how near they come to the optimum, on a table that scikit-learn has."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.quasi_newton.small_tables import GOAL, Table, measured, read
from streamfl.quasi_newton.lab.direct import train


def test_a_table_of_one_batch_comes_to_its_optimum() -> None:
    """Protects small tables, and the figures of the page: 20 passes over one batch are 20 short steps, far from the optimum."""
    table = Table.drawn(*read(Path(), "breast_cancer"), 500, 0)
    found = measured(table, 0)
    assert found.converged
    assert -1e-4 < found.gap < GOAL

    def in_passes(parties: Any, labels: Any, learning: Any, batches: Any, **numbers: Any) -> Any:
        return train(parties, labels, replace(learning, iterations=0), batches, **numbers)

    assert measured(table, 0, in_passes).gap > GOAL


def test_the_optimum_is_that_of_the_loss() -> None:
    """Protects the gap: it is never below 0 but for rounding, and three batches of usual columns come near it."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(3000, 6))
    labels = np.where(inputs @ random.normal(size=6) + random.normal(size=3000) > 0, 1.0, -1.0)
    for patient, most in ((False, GOAL), (True, GOAL / 5)):
        found = measured(Table.drawn(inputs, labels, 3000, 1), 1, patient=patient)
        assert -1e-5 < found.gap < most
