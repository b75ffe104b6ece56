"""Steps along gradients that are not finite."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from streamfl.learning.optimisers import OptimiserName, finite_step, optimiser_named


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e200])
@pytest.mark.parametrize("name", get_args(OptimiserName))
def test_what_an_optimiser_remembers_stays_finite(name: OptimiserName, number: float) -> None:
    """Protects a member from failing at every start: infinite sums of squares used to be stored and could not
    be restored."""
    optimiser, parameters = optimiser_named(name, 0.1, 3), np.ones(3)
    assert finite_step(optimiser, parameters, np.full(3, 0.5), 1)
    before = [parameters.copy(), *(array.copy() for array in optimiser.arrays.values())]
    assert not finite_step(optimiser, parameters, np.array([0.5, number, 0.5]), 2)
    for array, kept in zip([parameters, *optimiser.arrays.values()], before, strict=True):
        np.testing.assert_array_equal(array, kept)
    assert finite_step(optimiser, parameters, np.full(3, 0.5), 2)
