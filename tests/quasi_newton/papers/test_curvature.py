"""The recursion over inner products against the BFGS matrix written out, and against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import LbfgsInvHessProduct

from streamfl.quasi_newton.learning.curvature import IterateMeans, is_usable, two_loop
from streamfl.quasi_newton.learning.descent import Descent, DescentSettings

Floats = NDArray[np.float64]
COLUMNS = 9


def curved(seed: int = 0) -> Floats:
    """A positive definite matrix of condition 1e3 or so."""
    random = np.random.default_rng(seed)
    turned = np.linalg.qr(random.normal(size=(COLUMNS, COLUMNS)))[0]
    return np.asarray(turned @ np.diag(np.geomspace(1e-2, 10, COLUMNS)) @ turned.T)


def pairs(count: int, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    random = np.random.default_rng(seed)
    steps = random.normal(size=(count, COLUMNS))
    noise = 0.05 * random.normal(size=(count, COLUMNS))
    return steps, steps @ curved() + noise, random.normal(size=COLUMNS)


def test_coefficients_give_the_step_of_scipy() -> None:
    """Protects from a mistake that our matrix would share: SciPy's product starts from the identity."""
    steps, curvatures, gradient = pairs(6, seed=3)
    assert ((steps * curvatures).sum(axis=1) > 0).all()
    basis = np.array([*steps, *curvatures, gradient])
    expected = LbfgsInvHessProduct(steps, curvatures).matvec(gradient)
    np.testing.assert_allclose(two_loop(basis @ basis.T, 1.0) @ basis, expected, rtol=1e-10)


def test_s_is_the_difference_of_two_means_in_a_row() -> None:
    """Protects (5) from the paper's line 12, which is a second difference."""
    iterates = np.random.default_rng(5).normal(size=(12, 3))
    means = IterateMeans(4, 3)
    found = [means.add(iterate) for iterate in iterates]
    assert [at for at, step in enumerate(found) if step is not None] == [7, 11]
    np.testing.assert_allclose(found[7], iterates[4:8].mean(axis=0) - iterates[:4].mean(axis=0))
    np.testing.assert_allclose(found[11], iterates[8:].mean(axis=0) - iterates[4:8].mean(axis=0))


@pytest.mark.parametrize(
    ("products", "usable"),
    [
        ((1.0, 0.5, 0.3), True),
        ((1.0, 0.0, 0.0), False),
        ((1.0, -0.5, 0.3), False),
        ((1.0, 1e-6, 1e-6), False),
        ((1.0, 1e-3, 1e4), False),
        ((0.0, 0.0, 0.0), False),
        ((np.nan, 0.5, 0.3), False),
        ((1.0, np.inf, 0.3), False),
    ],
)
def test_pairs_without_curvature_are_skipped(products: tuple[float, float, float], usable: bool) -> None:
    """Protects H from indefinite updates, from noise and from numbers that are none."""
    assert is_usable(*products) == usable


def test_a_step_is_never_longer_than_allowed_and_never_uphill() -> None:
    """Protects weights from a batch of outliers, and from products that rounding or a peer has made
    nonsense."""
    learning = DescentSettings(learning_rate=0.5, largest_step=0.1)
    descent = Descent(learning)
    for size in (1e-4, 1.0, 1e6):
        gradient = size * np.ones(4)
        moved = descent.step(np.array([gradient @ gradient]))[0] * gradient
        assert np.linalg.norm(moved) == pytest.approx(min(0.1, 0.5 * np.linalg.norm(gradient)))
    assert descent.offer(np.array([1.0, 0.5]), np.array([0.5, 0.3]))
    # No vectors have these products: g is too short for them.
    np.testing.assert_allclose(descent.step(np.array([1.0, 1.0, 0.01])), [0, 0, 0.5])
    # A step that has a length but goes uphill.
    np.testing.assert_allclose(descent.step(np.array([1.0, 3.0, 0.01])), [0, 0, 0.5])
    assert descent.fallbacks == 2
    assert descent.step(np.zeros(3)).tolist() == [0, 0, 0.5]


def test_sgd_is_the_same_code_without_pairs() -> None:
    """Protects the comparison with Hardy et al.: only the curvature may differ."""
    descent = Descent(DescentSettings(optimiser="sgd"))
    assert descent.frozen
    descent.end_epoch(1.0, 5)
    descent.end_epoch(0.5, 5)
    assert descent.frozen


def test_it_ends_when_two_losses_agree_and_pairs_are_taken_while_they_do_not() -> None:
    """Protects the stopping rule, and the freeze without which the iterates of an epoch never settle."""
    descent = Descent(DescentSettings(tolerance=1e-5, freeze_below=1e-3, epochs=50))
    seen = []
    for loss in (0.6, 0.5, 0.4995, 0.502, 0.50203, 0.502035):
        seen.append((descent.end_epoch(loss, 5), descent.frozen))
    assert seen == [
        (False, False),
        (False, False),
        (False, True),
        (False, False),
        (False, True),
        (True, True),
    ]
    assert descent.converged
    short = Descent(DescentSettings(epochs=2))
    assert [short.end_epoch(1.0, 5), short.end_epoch(0.5, 5)] == [False, True]
    assert not short.converged


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"memory": 0},
        {"epochs": 0},
        {"curvature_every": 0},
        {"learning_rate": 0.0},
        {"largest_step": 0.0},
        {"regularisation": -1.0},
        {"tolerance": -1.0},
        {"freeze_below": float("nan")},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    """Protects an operator from a run that fails, or never ends, hours later."""
    with pytest.raises(ValueError, match=r"have to be|are at least"):
        DescentSettings(**wrong)  # type: ignore[arg-type]
