"""Block Newton against the joint optimum of the same regularised problem, as SciPy finds it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from streamfl.fdskl.learning.losses import LOSSES, MarginLoss
from streamfl.fdskl.learning.newton import solve_block

ENTITIES, FEATURES, BLOCK, REGULARISATION = 300, 40, 8, 1e-2
EVERY = tuple(LOSSES.values())
Floats = NDArray[np.float64]


def problem(seed: int = 0, size: float = 1.0) -> tuple[Floats, Floats, Floats]:
    """Random features of a disc's inside and outside, labels and weights."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(ENTITIES, 3))
    labels = np.where(np.square(inputs).sum(axis=1) + 0.3 * random.normal(size=ENTITIES) > 2.4, 1.0, -1.0)
    phases = inputs @ random.normal(size=(3, FEATURES)) + random.uniform(0, 2 * np.pi, FEATURES)
    return size * np.sqrt(2) * np.cos(phases), labels, random.uniform(0.2, 3.0, ENTITIES)


def objective(
    loss: MarginLoss, features: Floats, labels: Floats, weights: Floats, alphas: Floats
) -> tuple[float, Floats]:
    """J and its gradient, written from the problem."""
    outputs = features @ alphas
    shares = weights / weights.sum()
    value = np.sum(shares * loss.value(outputs, labels)) + 0.5 * REGULARISATION * FEATURES * alphas @ alphas
    return float(value), features.T @ (
        shares * loss.gradient(outputs, labels)
    ) + REGULARISATION * FEATURES * alphas


def optimum(loss: MarginLoss, features: Floats, labels: Floats, weights: Floats) -> Floats:
    found = minimize(
        lambda alphas: objective(loss, features, labels, weights, alphas),
        np.zeros(FEATURES),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 20000, "maxfun": 40000, "ftol": 0.0, "gtol": 1e-12, "maxcor": 40},
    )
    return np.asarray(found.x)


@pytest.mark.parametrize(
    ("loss", "weighted"),
    [(LOSSES["logistic"], True), (LOSSES["square"], False), (LOSSES["smooth-hinge"], True)],
    ids=lambda given: getattr(given, "name", None),
)
def test_sweeps_over_the_blocks_reach_the_joint_optimum(loss: MarginLoss, weighted: bool) -> None:
    """Protects the model: a solver that leaves out weights, penalty or the other blocks stops somewhere
    else."""
    features, labels, weights = problem()
    if not weighted:
        weights = np.ones(ENTITIES)
    alphas, outputs = np.zeros(FEATURES), np.zeros(ENTITIES)
    last = np.inf
    for _ in range(400):
        for first in range(0, FEATURES, BLOCK):
            block = slice(first, first + BLOCK)
            given = weights if weighted else None
            step = solve_block(
                features[:, block], outputs, labels, alphas[block], FEATURES, REGULARISATION, loss, given
            )
            alphas[block] += step
            outputs += features[:, block] @ step
        value, _ = objective(loss, features, labels, weights, alphas)
        assert value <= last + 1e-15
        last = value
    best = optimum(loss, features, labels, weights)
    np.testing.assert_allclose(alphas, best, atol=2e-5)
    np.testing.assert_allclose(last, objective(loss, features, labels, weights, best)[0], rtol=1e-9)


def test_one_block_of_the_square_loss_is_ridge_regression() -> None:
    """Protects the factors of the paper's square loss, (f - y)^2 and lambda / 2, by the closed form."""
    features, labels, weights = problem()
    step = solve_block(
        features, np.zeros(ENTITIES), labels, np.zeros(FEATURES), FEATURES, 0.01, LOSSES["square"], weights
    )
    shares = np.diag(weights / weights.sum())
    ridge = features.T @ shares @ features + 0.5 * 0.01 * FEATURES * np.eye(FEATURES)
    np.testing.assert_allclose(step, np.linalg.solve(ridge, features.T @ shares @ labels), rtol=1e-9)


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: loss.name)
def test_a_step_from_far_away_lowers_the_objective(loss: MarginLoss) -> None:
    """Protects from overshooting: where all margins are wrong by far, a logistic loss has next to no
    curvature."""
    features, labels, weights = problem(size=5.0)
    alphas = np.random.default_rng(1).normal(size=FEATURES)
    before, _ = objective(loss, features, labels, weights, alphas)
    step = solve_block(features, features @ alphas, labels, alphas, FEATURES, REGULARISATION, loss, weights)
    after, _ = objective(loss, features, labels, weights, alphas + step)
    assert after < before


def test_single_precision_gives_the_same_step() -> None:
    """Protects the fast path: features in float32 are for speed and change nothing that matters."""
    features, labels, _ = problem()
    arguments = (np.zeros(ENTITIES), labels, np.zeros(FEATURES), FEATURES, REGULARISATION, LOSSES["logistic"])
    exact = solve_block(features, *arguments)
    assert exact.dtype == solve_block(features.astype(np.float32), *arguments).dtype == np.float64
    np.testing.assert_allclose(
        solve_block(features.astype(np.float32), *arguments), exact, atol=1e-3 * np.abs(exact).max()
    )


def test_a_repeated_feature_and_an_empty_window_do_no_harm() -> None:
    """Protects a role from a matrix that rounding makes singular, and from its first moments without a
    label."""
    features, labels, _ = problem()
    same = np.repeat(features[:, :1], FEATURES, axis=1).astype(np.float32)
    alphas = np.zeros(FEATURES)
    assert np.isfinite(
        solve_block(same, np.zeros(ENTITIES), labels, alphas, FEATURES, 1e-12, LOSSES["logistic"])
    ).all()
    empty = np.zeros(0)
    assert not solve_block(
        features[:0], empty, empty, alphas, FEATURES, REGULARISATION, LOSSES["square"]
    ).any()
    zeros = np.zeros(ENTITIES)
    assert not solve_block(
        features, zeros, labels, alphas, FEATURES, REGULARISATION, LOSSES["square"], zeros
    ).any()
    with pytest.raises(ValueError, match="above 0"):
        solve_block(features, zeros, labels, alphas, FEATURES, 0.0, LOSSES["square"])
