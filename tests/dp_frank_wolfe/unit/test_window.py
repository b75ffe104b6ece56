"""The frozen window: within its bounds and of its length whatever the data are, and sums that are exact."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.dp_frank_wolfe.party.window import (
    FEATURE_ONE,
    RESIDUAL_ONE,
    Bounds,
    correlations,
    freeze,
    outputs,
    whole_row,
)

FEATURES = Bounds(np.array([0.0, 10.0, 0.0]), np.array([2.0, 5.0, 1e-3]))
LABELS = Bounds(np.array([1.0]), np.array([4.0]))


def test_a_row_that_is_missing_or_invalid_is_zeros_and_the_window_keeps_its_length() -> None:
    """Protects the number of rows, which is public: NaN, infinity and rows that never came leave n as it was,
    and touch no other row.
    """
    features = np.array([[1.0, 12.5, -1.0], [np.nan, 10.0, 0.0], [np.inf, 10.0, 0.0], [2.0, 10.0, 0.0]])
    window = freeze(features, np.array([2.0, 99.0, 2.0, np.nan]), FEATURES, LABELS, 6)
    assert window.columns.shape == (6, 3)
    assert window.labels.shape == (6,)
    assert not window.columns[[1, 2, 4, 5]].any()
    # Scaled, and clipped.
    np.testing.assert_array_equal(window.columns[0], FEATURE_ONE * np.array([0.5, 0.5, -1.0]))
    np.testing.assert_array_equal(window.labels, RESIDUAL_ONE * np.array([0.25, 1.0, 0.25, 0, 0, 0]))
    np.testing.assert_array_equal(window.columns[3], [FEATURE_ONE, 0, 0])
    with pytest.raises(ValueError, match="window has 3"):
        freeze(features, np.zeros(4), FEATURES, LABELS, 3)


def test_a_record_is_the_row_that_a_table_would_have() -> None:
    """Protects a window from how its rows came: one by one they are those of a table, at bounds, halves and
    what is no number."""
    random = np.random.default_rng(6)
    bounds = Bounds(np.array([0.1, -3.0, 1e9]), np.array([0.7, 1e-3, 1e-9]))
    rows = bounds.centre + bounds.bound * random.uniform(-1.2, 1.2, (200, 3))
    rows[:6] = [
        [np.nan, 0, 0],
        [1, np.inf, 0],
        [-np.inf, 0, 1],
        [1e308, -1e308, 1e308],
        [0.8, -3.001, 1e9],
        [0.1, -3.0, 1e9],
    ]
    rows[6:60, 0] = 0.1 + 0.7 * (random.integers(-FEATURE_ONE, FEATURE_ONE, 54) + 0.5) / FEATURE_ONE
    window = freeze(rows, np.zeros(200), bounds, LABELS, 200)
    np.testing.assert_array_equal([whole_row(tuple(row.tolist()), bounds) for row in rows], window.columns)
    assert window.columns.any(axis=1).sum() > 150


def test_a_digest_is_of_every_number() -> None:
    """Protects noise keys: a window that differs in one feature, one label or the place of a row has another
    digest."""
    random = np.random.default_rng(0)
    features, labels = random.uniform(-1, 1, (5, 3)), random.uniform(-1, 1, 5)
    bounds = Bounds(np.zeros(3), np.ones(3))
    label_bounds = Bounds(np.zeros(1), np.ones(1))

    def digest(features: np.ndarray, labels: np.ndarray, rows: int = 5) -> bytes:
        return freeze(features, labels, bounds, label_bounds, rows).digest

    changed, other = features.copy(), labels.copy()
    changed[4, 2] += 1e-4
    other[0] += 1e-5
    cases = [
        digest(features, labels),
        digest(changed, labels),
        digest(features, other),
        digest(features, labels, 6),
    ]
    cases += [digest(features[::-1], labels), digest(features, labels[::-1])]
    assert len(set(cases)) == 6


def test_sums_are_exact_whole_numbers() -> None:
    """Protects integer scores: sums over more rows than a chunk equal Python's integers, and what could round
    is refused."""
    random = np.random.default_rng(1)
    columns = random.integers(-FEATURE_ONE, FEATURE_ONE + 1, (5000, 4)).astype(np.int16)
    residuals = random.integers(-3 * RESIDUAL_ONE, 3 * RESIDUAL_ONE, 5000)
    wanted = [
        sum(a * e for a, e in zip(column, residuals.tolist(), strict=True)) for column in columns.T.tolist()
    ]
    assert correlations(columns, residuals, 3 * RESIDUAL_ONE).tolist() == wanted
    weights = np.array([2**30, 0, -(2**29) + 1, 12345])
    wanted = [sum(a * w for a, w in zip(row, weights.tolist(), strict=True)) for row in columns.tolist()]
    assert outputs(columns, weights).tolist() == wanted
    with pytest.raises(ValueError, match="exact"):
        correlations(columns, residuals, 2**27)
    with pytest.raises(ValueError, match="exact"):
        outputs(columns, np.full(4, 2**38))


def test_bounds_that_bound_nothing_are_refused() -> None:
    """Protects the claim from a configuration without bounds."""
    for centre, bound in (([0.0], [0.0]), ([0.0], [np.inf]), ([np.nan], [1.0]), ([0.0, 1.0], [1.0])):
        with pytest.raises(ValueError, match="bound"):
            Bounds(np.array(centre), np.array(bound))
