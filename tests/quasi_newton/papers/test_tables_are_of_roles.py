"""The page's tables are made without roles: for what they quote, roles on the bus have the same columns and
come to the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.quasi_newton.small_tables import Table
from benchmarks.quasi_newton.table1 import Split
from streamfl.quasi_newton.config import GUEST, QuasiNewtonSettings
from streamfl.quasi_newton.tools.direct import Party, train
from streamfl.quasi_newton.tools.run import CurvatureOutcome, run_curvature
from streamfl.simulation.vertical.table import VerticalTable

Floats = NDArray[np.float64]
NAMES, TEST = ("guest", "host"), 60


def columns_and_signs(rows: int) -> tuple[Floats, Floats]:
    """Of real rows, each of which comes as often as is needed, with a little noise: (rows, 12) and -1 or
    1."""
    inputs, labels = load_breast_cancer(return_X_y=True)
    random = np.random.default_rng(5)
    chosen = random.integers(0, len(labels), rows)
    return inputs[chosen, :12] * random.uniform(0.99, 1.01, (rows, 12)), 2.0 * labels[chosen] - 1


def by_roles(inputs: Floats, signs: Floats, batch: int, method: str, **learning: Any) -> CurvatureOutcome:
    """A federation of guest and host on the memory bus. The last ``TEST`` rows are not learnt from."""
    settings = QuasiNewtonSettings.model_validate(
        {
            "federation": {"name": "f", "parties": list(NAMES), "seed": 3},
            "bus": {"url": "memory://"},
            "role": {"kind": GUEST},
            "party": {"name": NAMES[0]},
            "samples": {"topic": "samples", "features": "columns", "dimension": 1},
            "labels": {"topic": "labels", "label": "y", "label_range": (0.0, 1.0)},
            "learning": {"batch": batch, **learning},
            "preprocessing": {"method": method},
            "alignment": {"held_out": 0.0, "entities": batch},
            "encryption": {
                "precision": "plain",
                "key_fingerprint": "0" * 64,
                "secret_file": "",
                "link_secret_file": {NAMES[1]: ""},
            },
        }
    )
    half = inputs.shape[1] // 2
    parts = [inputs[:, :half], inputs[:, half:]]
    return run_curvature(settings, VerticalTable(parts, (signs + 1) / 2, TEST), trace=True)


def assert_equals_direct(
    found: CurvatureOutcome, columns: list[Floats], muted: list[NDArray[np.bool_]]
) -> None:
    """What the roles learnt is what these columns of all rows give without roles."""
    trace, learning = found.trace, found.settings.learning.descent
    parties = [
        Party(own, trace[f"weights/{name}"][0], far)
        for name, own, far in zip(NAMES, columns, muted, strict=True)
    ]
    direct = train(parties, trace["labels"], learning, trace["batches"], numbers=found.settings.kinds)
    assert found.converged == direct.converged
    for number, name in enumerate(NAMES):
        np.testing.assert_array_equal(trace[f"weights/{name}"], direct.weights[number])
        np.testing.assert_array_equal(trace[f"models/{name}"][-1], direct.model[number])


def test_small_tables_are_those_of_a_federation() -> None:
    """Protects the page of small tables: the benchmark's own columns, muted rows and training are the roles',
    with the defaults."""
    batches = 3
    inputs, signs = columns_and_signs(300 * batches + TEST)
    found = by_roles(inputs, signs, 300, "clip")
    half = inputs.shape[1] // 2
    table = Table((inputs[:, :half], inputs[:, half:]), signs, found.trace["batches"])
    columns, muted, _ = table.prepared()
    learnt = table.batches.ravel()
    assert table.batches.shape == (batches, 300)
    for name, own, far in zip(NAMES, columns, muted, strict=True):
        np.testing.assert_array_equal(own[learnt], found.trace[f"inputs/{name}"][learnt])
        np.testing.assert_array_equal(far[learnt], found.trace[f"muted/{name}"][learnt])
    assert any(far.any() for far in muted)
    assert_equals_direct(found, columns, muted)


@pytest.mark.parametrize(
    ("method", "optimiser"),
    [("rank", "quasi-newton"), ("weight-of-evidence", "quasi-newton"), ("standardise", "sgd")],
)
def test_table_1_is_that_of_a_federation(method: Any, optimiser: str) -> None:
    """Protects the page's other tables: columns by each preprocessing, and both optimisers."""
    batch = 300
    inputs, signs = columns_and_signs(3 * batch + TEST)
    found = by_roles(inputs, signs, batch, method, optimiser=optimiser, epochs=4)
    split = Split(inputs[:-TEST], signs[:-TEST], inputs[-TEST:], signs[-TEST:], inputs.shape[1] // 2)
    largest = found.settings.learning.largest_leverage
    host = "clip" if method == "weight-of-evidence" else method
    columns, _ = split.prepared(method, host, found.trace["batches"], largest)
    muted = [found.trace[f"muted/{name}"][:-TEST] for name in NAMES]
    assert_equals_direct(found, columns, muted)
