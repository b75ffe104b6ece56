"""Estimators that choose once: without privacy what plain numbers give, and sensitivities measured at the
corners of the bounds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from dp_frank_wolfe.problems import sparse
from dp_frank_wolfe.proof.equal_shares import marginal
from scipy.optimize import minimize

from streamfl.dp_frank_wolfe.learning.refit import project, refit
from streamfl.dp_frank_wolfe.learning.selection import (
    MARGINAL,
    TWO_ROUND,
    SelectionPlan,
    clip_rows,
    plan_selection,
    row_bound,
)
from streamfl.dp_frank_wolfe.party.selection import PartySelection
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Window
from streamfl.dp_frank_wolfe.tools.direct import place
from streamfl.privacy.release_bits import Release, release_bits
from streamfl.privacy.zcdp import cost_of_gaussian

SECRET = bytes(range(32))


def furthest(count: int, bound: float) -> dict[str, float]:
    """How far a replaced row moves each release: between the corners of the bounds, of which A'A reaches
    most where signs differ in half of the columns."""
    corners = [np.array(row) for row in itertools.product((-1.0, 0.0, 1.0), repeat=count)]
    z = np.full(4, bound / 2)
    upper = np.triu_indices(count)
    found = dict.fromkeys(("values", "norms", "rows", "products", "gram"), 0.0)
    for a, b in itertools.product(corners, repeat=2):
        moved = {
            "values": a + b,
            "norms": a**2 - b**2,
            "rows": a - b,
            "products": np.outer(a - b, z),
            "gram": (np.outer(a, a) - np.outer(b, b))[upper],
        }
        found = {kind: max(most, float(np.linalg.norm(moved[kind]))) for kind, most in found.items()}
    return found


@pytest.mark.parametrize("shares", [MARGINAL, TWO_ROUND])
def test_noise_covers_the_sensitivity_in_whole_numbers(shares: dict[str, float]) -> None:
    """Protects every noise: it is for what a replaced row moves at most, in the whole numbers that are
    released, and so is its cost."""
    plan = plan_selection(0.01, 3, 4, shares)
    bits = 52 - 15 - (4096).bit_length() - plan.row_bound.bit_length()
    one = {"values": FEATURE_ONE * RESIDUAL_ONE, "norms": FEATURE_ONE**2, "rows": FEATURE_ONE}
    one |= {"products": FEATURE_ONE * 2**bits, "gram": FEATURE_ONE**2}
    moved = furthest(3, plan.row_bound)
    for kind, noise in plan.noises.items():
        cost = cost_of_gaussian(moved[kind] * one[kind], noise.deviation)
        assert 0.6 * noise.cost < cost <= noise.cost * (1 + 1e-12)
        assert noise.cost == pytest.approx(0.01 * shares[kind])
    assert plan.cost == pytest.approx(0.01, rel=1e-6)


def test_a_public_norm_is_not_paid_for() -> None:
    """Protects who knows how long columns are: the norms' share of the budget goes to the values, which lose
    noise by it."""
    windows = sparse(3000, 40, 2, seed=1)
    found = marginal(windows, 0.03, 8, 1.0, norm=1 / 3)
    assert 0.03 * (1 - 1e-6) < found.cost <= 0.03 * (1 + 1e-12)
    assert found.uplink_numbers == 2 * 8
    assert 0.5 < sum(np.abs(x).sum() for x in found.x.values()) <= 1 + 1e-9


def test_rows_are_never_longer_than_their_bound() -> None:
    """Protects the products' sensitivity: released rows have no bound of their own, and are clipped to one;
    few are, as it is chosen.
    """
    plan = plan_selection(0.01, 4, 16, TWO_ROUND)
    deviation = plan.noises["rows"].deviation / FEATURE_ONE
    rows = np.random.default_rng(0).normal(size=(5000, 16)) * deviation + np.random.default_rng(1).uniform(
        -1, 1, (5000, 16)
    )
    clipped = clip_rows(rows, plan.row_bound)
    scale = 2.0 ** (52 - 15 - (4096).bit_length() - plan.row_bound.bit_length())
    assert np.linalg.norm(clipped / scale, axis=1).max() <= plan.row_bound
    assert np.mean(np.linalg.norm(rows, axis=1) > plan.row_bound) < 0.01
    # A bound of twice that would be paid for with twice the noise.
    assert np.mean(np.linalg.norm(rows, axis=1) > plan.row_bound / 2) > 0.5
    assert np.linalg.norm(clip_rows(1e9 * rows, plan.row_bound) / scale, axis=1).max() <= plan.row_bound
    assert row_bound(None, 4) >= 2


def test_the_refit_is_the_constrained_optimum() -> None:
    """Protects the model: the refit's objective is SciPy's, in the ball, also where noise made the matrix
    indefinite."""
    random = np.random.default_rng(0)
    for radius in (0.3, 5.0):
        half = random.normal(size=(30, 5))
        gram, right = half.T @ half / 30, random.normal(size=5)
        found = refit(gram, right, radius, 1e-6)

        def value(x: np.ndarray, gram: np.ndarray = gram, right: np.ndarray = right) -> float:
            return float(x @ gram @ x / 2 - right @ x)

        # x = u - v with u, v >= 0 makes the ball smooth.
        other = minimize(
            lambda both: value(both[:5] - both[5:]),
            np.full(10, radius / 20),
            bounds=[(0, None)] * 10,
            constraints={"type": "ineq", "fun": lambda both, radius=radius: radius - both.sum()},
            options={"maxiter": 1000, "ftol": 1e-14},
        )
        assert np.abs(found).sum() <= radius * (1 + 1e-12)
        assert value(found) <= other.fun + 1e-7
    noisy = np.diag([1.0, -0.5, 0.2, 0.0, 1.0])
    assert np.abs(refit(noisy, right, 2.0, 0.01)).sum() <= 2 * (1 + 1e-12)
    np.testing.assert_allclose(
        refit(noisy, right, 1e6, 0.01), right / np.maximum(np.diag(noisy), 0.01), rtol=1e-6
    )
    np.testing.assert_allclose(project(np.array([3.0, -1.0]), 2.0), [2.0, 0.0])
    np.testing.assert_allclose(project(np.array([0.5, -1.0]), 2.0), [0.5, -1.0])


def releases(
    window: Window, plan: SelectionPlan, told: float = 0.5
) -> tuple[PartySelection, dict[str, np.ndarray]]:
    """Everything that a party may release, the others' rows being this."""
    party = PartySelection(window, plan, place("a", 0, SECRET))
    party.choose()
    found = {"values": party.values(), "norms": party.norms(), "rows": party.rows()}
    others = clip_rows(np.full((len(window.labels), plan.others), told), plan.row_bound)
    return party, found | {"products": party.products(others), "gram": party.gram()}


ALL = {"choices": 0.3, "values": 0.1, "norms": 0.1, "rows": 0.2, "products": 0.2, "gram": 0.1}


def test_every_release_of_a_selection_has_a_noise_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from one draw on two contents: no two releases have one key, and a selection of other rows,
    another strength or after other rows of the others has none in common where that matters.
    """
    heard: list[Release] = []

    def bits(secret: bytes, release: Release, draws: int) -> bytes:
        heard.append(release)
        return release_bits(secret, release, draws)

    monkeypatch.setattr("streamfl.dp_frank_wolfe.party.selection.release_bits", bits)
    windows = [sparse(1000, 20, 1, seed=seed)["party-0"] for seed in (3, 4)]

    def keys(window: Window, cost: float = 0.5, told: float = 0.5) -> set[Release]:
        heard.clear()
        plan = plan_selection(cost, 3, 4, ALL)
        releases(window, plan, told)
        assert len(heard) == len(set(heard)) == 3 + 5
        # Four times the budget may be the same noise in units of half the size.
        strength = {kind: (noise.variance, noise.unit) for kind, noise in plan.noises.items()}
        assert {one.kind: one.parameters[-2:] for one in heard if one.kind in strength} == strength
        return set(heard)

    once = keys(windows[0])
    assert keys(windows[0]) == once
    assert not keys(windows[1]) & once
    assert not keys(windows[0], cost=0.6) & once
    assert {release.kind for release in keys(windows[0], told=0.4) - once} == {"products", "gram"}
