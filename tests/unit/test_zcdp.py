"""zCDP: the cost of choices and noisy numbers, and its epsilon, checked by enumeration, another accountant
and known formulas."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import ZCDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import minimize_scalar

from streamfl.privacy.accountant import epsilon_of as gaussian_epsilon
from streamfl.privacy.zcdp import (
    cost_of_choice,
    cost_of_gaussian,
    delta_of_variation,
    epsilon_of,
    largest_cost,
    range_of,
)


def delta_of(cost: float, epsilon: float) -> float:
    """The least delta that rho-zCDP implies: the smallest of e^((alpha - 1)(alpha cost - epsilon))
    (1 - 1/alpha)^alpha / (alpha - 1) for alpha > 1."""

    def logarithm(order: float) -> float:
        less = math.exp(order)
        return less * ((1 + less) * cost - epsilon) + less * order - (1 + less) * math.log1p(less)

    found = minimize_scalar(logarithm, bounds=(-20, 20), method="bounded", options={"xatol": 1e-9})
    return math.exp(min(0.0, found.fun))


@pytest.mark.parametrize("cost", [1e-4, 0.0306, 0.5, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_cost_is_the_epsilon_of_google_s_accountant(cost: float, delta: float) -> None:
    """Protects the claim: dp-accounting's conversion on a fine grid of orders is lower than ours at most by
    the grid's error."""
    orders = 1 + np.geomspace(1e-2, 1e6, 4_000)
    theirs = RdpAccountant(orders).compose(ZCDpEvent(cost)).get_epsilon(delta)
    assert epsilon_of(cost, delta) == pytest.approx(theirs, rel=2e-5)
    assert epsilon_of(cost, delta) <= theirs * (1 + 1e-9)
    # The formula of most papers is an upper bound. The exact curve of a Gaussian is a lower bound.
    assert epsilon_of(cost, delta) < cost + 2 * math.sqrt(cost * math.log(1 / delta))
    assert epsilon_of(cost, delta) > gaussian_epsilon(math.sqrt(2 * cost), delta)


def test_epsilon_delta_and_cost_are_inverse() -> None:
    """Protects the budget: a plan made from epsilon never spends more than epsilon."""
    for epsilon, delta in itertools.product((0.1, 0.5, 1.0, 5.0, 20.0), (1e-3, 1e-5, 1e-9)):
        cost = largest_cost(epsilon, delta)
        assert epsilon * (1 - 1e-9) < epsilon_of(cost, delta) <= epsilon
        assert delta_of(cost, epsilon) == pytest.approx(delta, rel=1e-6)
        assert Fraction(0) < range_of(cost) ** 2 <= 8 * Fraction(cost)
        assert cost_of_choice(range_of(cost)) == pytest.approx(cost, rel=1e-6)
    assert largest_cost(1.0, 1e-5) == pytest.approx(0.0306, abs=2e-4)
    assert math.isinf(largest_cost(math.inf, 1e-5))
    assert math.isinf(epsilon_of(math.inf, 1e-5))
    assert epsilon_of(0.0, 1e-5) == 0.0
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta"):
            epsilon_of(0.1, wrong)


def test_five_members_at_epsilon_1_are_jointly_above_2() -> None:
    """Protects the rule that epsilon is for one entity over all members: five shares of epsilon 1 add up to
    2.42."""
    assert epsilon_of(5 * largest_cost(1.0, 1e-5), 1e-5) == pytest.approx(2.42, abs=0.01)


@pytest.mark.parametrize(("epsilon", "near"), [(0.1, 0.99), (1.0, 0.98), (3.0, 0.89)])
def test_no_choice_costs_more_than_an_eighth_of_its_range_squared(epsilon: float, near: float) -> None:
    """Protects the price of a choice: among all pairs of distributions with this range of log-ratios, the
    worst has two outcomes. Their divergences of many orders stay below cost alpha, and come near it.
    """
    worst = 0.0
    for start in np.linspace(-epsilon, 0, 41)[1:-1]:
        # Ratios e^start and e^(start + epsilon), with probabilities that sum to 1 on both sides.
        low, high = math.exp(start), math.exp(start + epsilon)
        second = (1 - low) / (high - low)
        first = np.array([1 - second, second])
        ratio = np.array([low, high])
        for alpha in 1 + np.geomspace(1e-3, 100, 60):
            divergence = math.log(float(first @ ratio**alpha)) / (alpha - 1)
            worst = max(worst, divergence / alpha)
    assert near * cost_of_choice(epsilon) < worst <= cost_of_choice(epsilon) * (1 + 1e-9)


def test_costs_of_gaussians_add_up_to_one_with_less_noise() -> None:
    """Protects composition, and the price of a mechanism that is not sampled exactly."""
    assert 9 * cost_of_gaussian(2.0, 6.0) == pytest.approx(cost_of_gaussian(2.0, 2.0))
    assert delta_of_variation(1e-12, 1.0) == pytest.approx(1e-12 + math.e * 1e-12)
