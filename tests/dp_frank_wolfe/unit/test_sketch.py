"""Sketches: their signs, their norms, what a row moves, and how well they keep products."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.dp_frank_wolfe.learning.sketch import IdentitySketch, SignSketch, Sketch
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE

ROWS = 5000


def unit(row: int) -> np.ndarray:
    column = np.zeros(ROWS, dtype=np.int16)
    column[row] = 1
    return column


@pytest.mark.parametrize("sketch", [SignSketch(ROWS, 30, 1), SignSketch(ROWS, 1, 2), IdentitySketch(ROWS)])
def test_a_row_moves_a_release_by_exactly_what_the_noise_is_made_for(sketch: Sketch) -> None:
    """Protects the sensitivity: every row's column of J has norm 1, and a row that goes from 1 to -1 moves
    `moved` sums by 2 each.
    """
    for row in (0, 4095, 4096, ROWS - 1):
        first, second = sketch.apply(FEATURE_ONE * unit(row)), sketch.apply(-FEATURE_ONE * unit(row))
        change = np.abs(first - second)
        assert set(change) <= {0, 2 * FEATURE_ONE}
        assert np.count_nonzero(change) == sketch.moved
        assert np.linalg.norm(first) ** 2 * sketch.scale == pytest.approx(FEATURE_ONE**2)


def test_signs_are_fair_and_products_are_kept_to_one_over_root_m() -> None:
    """Protects Johnson and Lindenstrauss: products of columns come back with the error that m numbers allow,
    and no bias."""
    random = np.random.default_rng(0)
    first, second = (random.integers(-FEATURE_ONE, FEATURE_ONE + 1, ROWS).astype(np.int16) for _ in range(2))
    errors = []
    for seed in range(100):
        sketch = SignSketch(ROWS, 50, seed)
        found = float(sketch.apply(first) @ sketch.apply(second)) * sketch.scale
        errors.append(
            (found - float(first.astype(float) @ second)) / (np.linalg.norm(first) * np.linalg.norm(second))
        )
    assert abs(np.mean(errors)) < 4 / np.sqrt(50 * 100)
    assert np.std(errors) == pytest.approx(1 / np.sqrt(50), rel=0.3)


def test_signs_that_are_not_kept_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects large windows: signs that are drawn anew each time are those that memory would have had."""
    column = np.arange(-2500, 2500).astype(np.int16)
    kept = SignSketch(ROWS, 9, 4)
    monkeypatch.setattr("streamfl.dp_frank_wolfe.learning.sketch.MOST_KEPT", 0)
    np.testing.assert_array_equal(SignSketch(ROWS, 9, 4).apply(column), kept.apply(column))
    assert SignSketch(ROWS, 9, 5).apply(column).tolist() != kept.apply(column).tolist()
    with pytest.raises(ValueError, match="at least one"):
        SignSketch(ROWS, 0, 1)
