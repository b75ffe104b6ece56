"""The Taylor loss against the logistic one, finite differences and its own expansion."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from quasi_newton.makers import problem

from streamfl.quasi_newton.learning import taylor

Floats = NDArray[np.float64]


def written_out(inputs: Floats, labels: Floats, weights: Floats) -> float:
    """Equation (2), row by row."""
    total = 0.0
    for row, label in zip(inputs, labels, strict=True):
        score = float(sum(x * w for x, w in zip(row, weights, strict=True)))
        total += np.log(2) - label * score / 2 + score**2 / 8
    return total / len(labels)


@pytest.fixture(name="given")
def _given() -> tuple[Floats, Floats, Floats]:
    inputs, labels = problem(rows=90)
    return inputs, labels, np.random.default_rng(1).normal(size=inputs.shape[1])


def test_it_is_the_logistic_loss_to_second_order() -> None:
    """Protects the signs: with the paper's (1) the loss falls towards the wrong labels."""
    for label in (-1.0, 1.0):
        for output in (1e-2, -1e-2, 1e-3):
            exact = np.logaddexp(0.0, -label * output)
            assert abs(taylor.loss(np.array([output]), np.array([label])) - exact) < output**4 / 100


def test_gradient_is_the_slope_of_the_loss(given: tuple[Floats, Floats, Floats]) -> None:
    """Protects the model from the paper's misplaced y / 2, by finite differences: exact, for the loss is
    quadratic."""
    inputs, labels, weights = given
    found = taylor.gradient(inputs.T @ taylor.residuals(inputs @ weights, labels), len(inputs))
    for column, direction in enumerate(np.eye(len(weights))):
        slope = (
            written_out(inputs, labels, weights + direction)
            - written_out(inputs, labels, weights - direction)
        ) / 2
        assert found[column] == pytest.approx(slope, abs=1e-12)


def test_hessian_product_is_the_change_of_the_gradient(given: tuple[Floats, Floats, Floats]) -> None:
    """Protects the curvature: without the 1/4 that (6) lacks every step would be four times too short."""
    inputs, labels, weights = given
    step = np.random.default_rng(2).normal(size=len(weights))
    before, after = (
        taylor.gradient(inputs.T @ taylor.residuals(inputs @ at, labels), len(inputs))
        for at in (weights - step / 2, weights + step / 2)
    )
    changes = inputs @ step
    found = taylor.gradient(inputs.T @ changes, len(inputs))
    np.testing.assert_allclose(found, after - before, rtol=1e-12)


@pytest.mark.parametrize("parties", [1, 3])
def test_loss_from_gradients_is_the_loss_for_any_number_of_hosts(
    given: tuple[Floats, Floats, Floats], parties: int
) -> None:
    """Protects the convergence test: sums of the hosts' own squares lack what two hosts have in common."""
    inputs, labels, weights = given
    residuals = taylor.residuals(inputs @ weights, labels)
    products = sum(
        float(weights[own] @ taylor.gradient(inputs[:, own].T @ residuals, len(inputs)))
        for own in np.array_split(np.arange(len(weights)), parties)
    )
    found = taylor.loss_from_products(products - float(np.mean(labels * residuals)) / 2)
    assert found == pytest.approx(written_out(inputs, labels, weights), abs=1e-13)
    assert taylor.loss(inputs @ weights, labels) == pytest.approx(found, abs=1e-13)


def test_probability_is_half_of_the_output_around_a_half() -> None:
    """Protects scores: the best constant output of a base rate of .0668 is 2 E[y], where a sigmoid would say
    .150."""
    rate = 0.0668
    labels = np.where(np.arange(10_000) < 668, 1.0, -1.0)
    best = min(
        np.linspace(-2, 2, 40_001),
        key=lambda output: taylor.loss(np.full(1, output), labels.mean(keepdims=True)),
    )
    assert 0.5 + best / 4 == pytest.approx(rate, abs=1e-4)
    assert 1 / (1 + np.exp(-best)) > 0.14
