"""From epsilon to noise and back: shares, prices, and what is refused."""

from __future__ import annotations

import math

import pytest

from streamfl.dp_frank_wolfe.learning.sketch import IdentitySketch, SignSketch
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE
from streamfl.dp_frank_wolfe.privacy.budget import (
    allowed_cost,
    choice_rate,
    claim,
    plan_fit,
    score_sensitivity,
)
from streamfl.privacy.zcdp import cost_of_choice

ROWS = 1000


def test_a_choice_s_scale_is_that_of_the_derivation() -> None:
    """Protects b = 2 Delta / eps0 with Delta = 2 (R + 1) / n, in the whole numbers of scores, which are n
    times FEATURE_ONE RESIDUAL_ONE.
    """
    cost, bound = 1e-4, 3 * RESIDUAL_ONE
    eps0 = math.sqrt(8 * cost)
    delta = 2 * (3 + 1) / ROWS
    scale = float(1 / choice_rate(cost, bound)) / (ROWS * FEATURE_ONE * RESIDUAL_ONE)
    assert scale == pytest.approx(2 * delta / eps0, rel=1e-6)
    assert cost_of_choice(2 * float(choice_rate(cost, bound)) * score_sensitivity(bound)) <= cost


@pytest.mark.parametrize("sketch", [IdentitySketch(ROWS), SignSketch(ROWS, 50, 0)])
def test_a_plan_costs_what_it_was_given(sketch: IdentitySketch | SignSketch) -> None:
    """Protects the budget: choices and sketches together cost cost, and not a share of it is lost; what
    sampling adds is in delta."""
    plan = plan_fit(0.01, 40, 6, 2.0, sketch, choice_share=0.3)
    assert 0.01 * (1 - 1e-6) < plan.cost <= 0.01 * (1 + 1e-12)
    assert plan.noise is not None
    assert 6 * plan.noise.cost == pytest.approx(0.007)
    # s = 2 max_j |J e_j| sqrt(N) / mu, of a sketch whose columns have norm 1.
    real = plan.noise.deviation / FEATURE_ONE * math.sqrt(sketch.scale)
    assert real == pytest.approx(2 * math.sqrt(6) / math.sqrt(2 * 0.007))
    assert plan.variation(sketch, 100) < 1e-15
    assert math.isinf(plan_fit(math.inf, 40, 6, 2.0, sketch).cost)
    assert plan_fit(math.inf, 40, 6, 2.0, sketch).variation(sketch, 100) == 0


def test_what_is_claimed_is_what_was_asked_for() -> None:
    """Protects epsilon: a whole budget, spent, is the epsilon of the configuration at its delta, sampling
    included."""
    for epsilon in (0.5, 5.0):
        assert epsilon * (1 - 1e-6) < claim(allowed_cost(epsilon, 1e-5, ROWS), 1e-14, 1e-5) <= epsilon
    assert math.isinf(claim(allowed_cost(math.inf, 1e-5, ROWS), 0.0, 1e-5))
    with pytest.raises(ValueError, match="variation"):
        claim(0.03, 1e-6, 1e-5)


def test_what_protects_nobody_is_refused() -> None:
    """Protects an operator: a delta that allows to show a whole row, no epsilon, no choices, no share, no
    bound."""
    for epsilon, delta in ((1.0, 1e-3), (1.0, 0.0), (0.0, 1e-5), (-1.0, 1e-5), (math.nan, 1e-5)):
        with pytest.raises(ValueError, match="epsilon"):
            allowed_cost(epsilon, delta, ROWS)
    sketch = IdentitySketch(ROWS)
    wrong = [(0, 6, 2.0, 0.5), (4, 0, 2.0, 0.5), (4, 6, 0.0, 0.5), (4, 6, math.inf, 0.5), (4, 6, 2.0, 1.0)]
    for choices, columns, bound, share in wrong:
        with pytest.raises(ValueError, match="a fit needs"):
            plan_fit(0.01, choices, columns, bound, sketch, share)
    with pytest.raises(ValueError, match="cost"):
        plan_fit(0.0, 4, 6, 2.0, sketch)
