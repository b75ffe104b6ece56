"""The paper's error contract: E|f_T - f*|^2 falls near 1 / T, against the best function as SciPy finds it."""

from __future__ import annotations

import numpy as np
import pytest
from fdskl.proof.convergence import RegularisedRisk, distances, slope

from streamfl.fdskl.learning.losses import LOSSES

HORIZONS = (500, 1000, 2000, 4000)
RUNS = 8
# So regularised that a step of log(T) / (lambda T) is stable from the first T on.
REGULARISATION = {"square": 0.2, "logistic": 0.05}


def problem(loss: str) -> RegularisedRisk:
    """Labels that no linear function tells apart."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(24, 2))
    return RegularisedRisk(
        inputs, np.where(inputs[:, 0] * inputs[:, 1] > 0, 1.0, -1.0), LOSSES[loss], REGULARISATION[loss]
    )


@pytest.mark.parametrize("loss", ["square", "logistic"])
def test_the_error_falls_like_one_over_the_horizon(loss: str) -> None:
    """Protects the paper's theorem: a step or a decay that is off by a factor converges to another function,
    or not at all."""
    errors = distances(problem(loss), "horizon", 1e9, HORIZONS, RUNS)
    assert slope(HORIZONS, errors) <= -0.9
    assert errors[-1] < 0.15 * np.square(problem(loss).best()).mean()


def test_a_step_that_falls_needs_no_horizon_and_does_better() -> None:
    """Protects streams, whose end nobody knows."""
    falling = distances(problem("square"), "inverse", 0.1, HORIZONS, RUNS)
    assert slope(HORIZONS, falling) <= -0.9
    assert (falling < 0.5 * distances(problem("square"), "horizon", 1e9, HORIZONS, RUNS)).all()


def test_a_constant_step_stops_at_a_floor_that_the_step_decides() -> None:
    """Protects what the documentation says of it: more iterations do not help, a smaller step does."""
    some = problem("square")
    best = some.best()
    looks = range(2000, 8001, 50)

    def errors(step: float) -> np.ndarray:
        return np.array(
            [np.square(found - best).mean() for found in some.run("constant", step, looks[-1], 0, looks)]
        )

    floor, lower = errors(0.04), errors(0.01)
    assert floor[60:].mean() > 0.7 * floor[:60].mean()
    assert 2.5 < floor.mean() / lower.mean() < 8
