"""The scale of columns that are standardised to mean 0 and deviation 1 as they come."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.contract.role import BadRecord
from streamfl.learning.running_scale import RunningScale


def test_a_row_is_scaled_by_all_rows_so_far() -> None:
    """Protects the equation: numpy's mean and deviation so far, cut at 3, divided by the root of the number
    of varying columns."""
    rows = np.random.default_rng(0).normal(size=(60, 3))
    # No later value is out of the range of these two.
    rows[:2] = [[-4.0] * 3, [4.0] * 3]
    rows = rows * [1.0, 1e6, 0.0] + [5.0, -1e8, 7.0]
    scale = RunningScale(3)
    for number, row in enumerate(rows, start=1):
        seen, found = rows[:number, :2], scale.see(row)
        expected = np.zeros(2)
        if number > 1:
            expected = np.clip((row[:2] - seen.mean(axis=0)) / seen.std(axis=0), -3, 3) / np.sqrt(2)
        np.testing.assert_allclose(found, [*expected, 0.0], rtol=1e-6, atol=1e-9)
    assert scale.rows == 60


def test_what_is_asked_for_leaves_no_trace() -> None:
    """Protects predictions of other rows: they are scaled like the next row, but not counted."""
    scale = RunningScale(2)
    for row in ([1.0, 2.0], [3.0, 8.0], [5.0, 2.0]):
        scale.see(np.array(row))
    before = scale.arrays["moments"].copy()
    np.testing.assert_allclose(scale.scaled(np.array([[3.0, 4.0]])), [[0.0, 0.0]], atol=1e-15)
    np.testing.assert_array_equal(scale.arrays["moments"], before)


def test_one_number_that_nobody_meant_does_not_undo_the_scale() -> None:
    """Protects a party from a faulty record: afterwards others are scaled as before within a factor of
    two."""
    rows = np.random.default_rng(1).normal(size=(200, 1))
    scale = RunningScale(1)
    for row in rows:
        scale.see(row)
    healthy = scale.scaled(np.array([[1.0]]))[0, 0]
    assert scale.see(np.array([1e9]))[0] == 3.0
    assert 0.5 * healthy <= scale.scaled(np.array([[1.0]]))[0, 0] <= healthy


def test_moments_that_cannot_be_are_refused() -> None:
    """Protects a start from a damaged changelog."""
    with pytest.raises(BadRecord):
        RunningScale.check("moments", np.array([1.0, np.inf]))
