"""The accountant: mu, epsilon and delta, checked by integration and by another accountant."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian

from streamfl.privacy.accountant import cost_of, delta_of, epsilon_of


def test_mu_becomes_epsilon_and_delta_as_the_curve_says() -> None:
    """Protects the figures that people compare: delta at epsilon, by numerical integration of the two normal
    densities."""
    grid = np.linspace(-40, 40, 2_000_001)
    for mu, epsilon in ((0.5, 0.3), (1.0, 1.0), (3.0, 5.0)):
        left = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
        right = np.exp(-((grid - mu) ** 2) / 2) / np.sqrt(2 * np.pi)
        area = np.maximum(right - np.exp(epsilon) * left, 0).sum() * (grid[1] - grid[0])
        assert delta_of(mu, epsilon) == pytest.approx(area, rel=1e-6)
        assert epsilon_of(mu, delta_of(mu, epsilon)) == pytest.approx(epsilon, rel=1e-9)
    assert delta_of(0.0, 0.1) == 0.0
    assert epsilon_of(0.01, 0.5) == 0.0


def test_mu_is_the_epsilon_of_google_s_accountant() -> None:
    """Protects the figures that people compare: the epsilon of one Gaussian release, by dp-accounting's exact
    curve."""
    for mu in (0.1, 0.5, 1.0, 1.4, 2.2, 4.5, 8.9):
        for delta in (1e-3, 1e-5, 1e-8):
            assert epsilon_of(mu, delta) == pytest.approx(get_epsilon_gaussian(1 / mu, delta), rel=1e-6)


def test_costs_add_up_to_the_mechanism_of_all_releases_together() -> None:
    """Protects composition: k releases of one value equal one release with the noise of their mean."""
    assert math.sqrt(9 * cost_of(2.0, 6.0)) == pytest.approx(math.sqrt(cost_of(2.0, 6.0 / math.sqrt(9))))
