"""Losses of Table 1 against finite differences and the closed forms of SciPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad, minimize_scalar
from sklearn.metrics import log_loss, mean_squared_error

from streamfl.contract.role import ConfigurationError
from streamfl.fdskl.learning.losses import LOGISTIC, LOSSES, SMOOTH_HINGE, SQUARE, MarginLoss, loss_named

EVERY = (*LOSSES.values(), loss_named("logistic", 7.5), loss_named("smooth-hinge", 0.2))
# Away from the places 0 and 1 where the smooth hinge has no second derivative.
OUTPUTS = np.array([-40.0, -3.7, -1.2, -0.4, 0.31, 0.77, 1.4, 2.9, 38.0])


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: loss.name)
@pytest.mark.parametrize("label", [-1.0, 1.0])
def test_gradient_is_the_derivative_of_the_value(loss: MarginLoss, label: float) -> None:
    """Protects both solvers: a gradient of another loss than the one named still learns something, and nobody
    sees it."""
    for output in OUTPUTS:
        error = check_grad(
            lambda f: loss.value(f[0], label), lambda f: np.atleast_1d(loss.gradient(f[0], label)), [output]
        )
        assert error < 1e-5 * max(1.0, abs(output))


@pytest.mark.parametrize("loss", [SQUARE, LOGISTIC], ids=lambda loss: loss.name)
def test_curvature_is_the_derivative_of_the_gradient(loss: MarginLoss) -> None:
    """Protects Newton's steps, which a wrong curvature makes too long or too short."""
    for label in (-1.0, 1.0):
        steps = (loss.gradient(OUTPUTS + 1e-5, label) - loss.gradient(OUTPUTS - 1e-5, label)) / 2e-5
        np.testing.assert_allclose(loss.curvature(OUTPUTS, label), steps, atol=1e-8)


def test_curvature_of_the_smooth_hinge_bounds_it_from_above() -> None:
    """Protects Newton from the smooth hinge's second derivative, which is 0 wherever a margin is below 0."""
    start, moved = np.meshgrid(np.linspace(-3, 3, 61), np.linspace(-3, 3, 61))
    for label in (-1.0, 1.0):
        model = SMOOTH_HINGE.value(start, label) + SMOOTH_HINGE.gradient(start, label) * (moved - start)
        model += 0.5 * SMOOTH_HINGE.curvature(start, label) * (moved - start) ** 2
        assert (model >= SMOOTH_HINGE.value(moved, label) - 1e-12).all()


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: loss.name)
@pytest.mark.parametrize("positive", [0, 3, 10])
def test_the_best_constant_is_the_least_of_all(loss: MarginLoss, positive: int) -> None:
    """Protects the regret: nothing fixed that knows no columns loses less than what it is compared with, and
    one thing loses as much.
    """
    labels = np.where(np.arange(10) < positive, 1.0, -1.0)
    if not loss.classifies:
        labels = labels * np.linspace(0.1, 0.9, 10)
    found = loss.of_constant(len(labels), labels.sum(), np.square(labels).sum())
    bounds = (-60.0, 60.0)
    least = minimize_scalar(
        lambda c: float(loss.value(c, labels).sum()), bounds=bounds, method="bounded", options={"xatol": 1e-9}
    )
    assert found == pytest.approx(least.fun, abs=1e-6)
    assert loss.of_constant(0, 0.0, 0.0) == 0.0


def test_values_are_those_of_table_1() -> None:
    """Protects comparisons with the paper and with other programs, which mean these losses by these names."""
    labels = np.array([1.0, -1.0, 1.0, -1.0])
    outputs = np.array([0.3, 0.7, -1.9, -4.0])
    probabilities = 1.0 / (1.0 + np.exp(-outputs))
    np.testing.assert_allclose(
        LOGISTIC.value(outputs, labels).mean(), log_loss(labels, probabilities), rtol=1e-12
    )
    np.testing.assert_allclose(
        SQUARE.value(outputs, labels).mean(), mean_squared_error(labels, outputs), rtol=1e-12
    )
    # z = .3, -.7, -1.9, 4
    np.testing.assert_allclose(SMOOTH_HINGE.value(outputs, labels), [0.245, 1.2, 2.4, 0.0], rtol=1e-12)


def test_a_label_of_1_counts_as_often_as_the_weight_says() -> None:
    """Protects whoever looks for what is rare: the weight is of label 1, and is what sample weights are
    elsewhere."""
    labels, outputs = np.array([1.0, -1.0, 1.0]), np.array([0.3, 0.7, -1.9])
    weighted = loss_named("logistic", 5.0)
    whole = log_loss(labels, 1.0 / (1.0 + np.exp(-outputs)), sample_weight=[5.0, 1.0, 5.0], normalize=False)
    np.testing.assert_allclose(weighted.value(outputs, labels).sum(), whole, rtol=1e-12)
    np.testing.assert_array_equal(
        weighted.curvature(outputs, labels), LOGISTIC.curvature(outputs, labels) * [5.0, 1.0, 5.0]
    )


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: loss.name)
def test_outputs_of_any_size_give_numbers(loss: MarginLoss) -> None:
    """Protects a model from one wild output: exp of 1000 is infinite, and infinity minus infinity is learnt
    for ever."""
    for outputs in (-1e3, 1e3):
        for label in (-1.0, 1.0):
            found = loss.value(outputs, label), loss.gradient(outputs, label), loss.curvature(outputs, label)
            assert np.isfinite(found).all()


def test_an_unknown_loss_is_refused() -> None:
    """Protects operators from a mistyped name."""
    assert loss_named("smooth-hinge") is SMOOTH_HINGE
    with pytest.raises(ConfigurationError, match="logistic, square, smooth-hinge"):
        loss_named("hinge")
