"""Small tables converge: the command that says how near they come to the optimum, on a table that
scikit-learn has."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.quasi_newton.small_tables import GOAL, Table, measured, optimum, read
from streamfl.quasi_newton.learning import descent
from streamfl.quasi_newton.tools.direct import train


def test_a_table_of_one_batch_comes_to_its_optimum() -> None:
    """Protects small tables, and the figures of the page: 20 passes over one batch are 20 short steps, far
    from the optimum."""
    table = Table.drawn(*read(Path(), "breast_cancer"), 500, 0)
    assert -1e-4 < measured(table, 0).gap < GOAL

    def in_passes(parties: Any, labels: Any, learning: Any, batches: Any, **numbers: Any) -> Any:
        return train(parties, labels, replace(learning, iterations=0), batches, **numbers)

    assert measured(table, 0, in_passes).gap > GOAL


def nearly_repeated(rows: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Columns of which one nearly repeats another, and labels that follow from what differs: the optimum's
    weights are far away."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, 4))
    inputs[:, 3] = inputs[:, 0] + 0.05 * inputs[:, 3]
    told = 20 * (inputs[:, 3] - inputs[:, 0]) + inputs[:, 1]
    return inputs, np.where(told + random.normal(size=rows) > 0, 1.0, -1.0)


def test_weights_that_lie_far_away_are_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects tables whose columns nearly repeat one another, learnt as one batch: steps become longer while
    all are too short, and two losses that agree by chance are not the end."""
    table = Table.drawn(*nearly_repeated(1000, 3), 1000, 0, together=True)
    found = measured(table, 0)
    assert found.converged
    assert -1e-4 < found.gap < GOAL / 5
    monkeypatch.setattr(descent, "FARTHEST", 1.0)
    assert measured(table, 0).iterations > 1.3 * found.iterations


def test_the_optimum_is_that_of_the_loss() -> None:
    """Protects the gap: it is never below 0 but for rounding, and three batches of usual columns come near
    it."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(3000, 6))
    labels = np.where(inputs @ random.normal(size=6) + random.normal(size=3000) > 0, 1.0, -1.0)
    for together, most in ((False, GOAL), (True, 1e-5)):
        found = measured(Table.drawn(inputs, labels, 3000, 1, together), 1)
        assert -1e-5 < found.gap < most


def test_the_optimum_leaves_out_what_rounding_made() -> None:
    """Protects the gap where a column repeats another: what rounding left between them is nothing that
    anybody learns."""
    random = np.random.default_rng(0)
    step, signs = 2.0**-8, np.where(random.normal(size=500) > 0, 1.0, -1.0)
    column = random.normal(size=500)
    twice = np.stack([column, column / 3], axis=1)
    weights = optimum(np.round(twice / step) * step, signs, step)
    expected = np.linalg.lstsq(twice, 2 * signs, rcond=1e-6)[0]
    np.testing.assert_allclose(twice @ weights, twice @ expected, atol=1e-3)
