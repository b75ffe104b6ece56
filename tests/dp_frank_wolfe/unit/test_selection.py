"""Estimators that choose once: without privacy what plain numbers give, and sensitivities measured at the
corners of the bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_frank_wolfe.problems import real, sparse
from dp_frank_wolfe.proof.equal_shares import marginal, two_round
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


def test_without_privacy_they_are_least_squares_of_the_chosen_columns() -> None:
    """Protects the estimators: the marginal one has the best columns by |a'y| and their single fits, the
    other the joint fit."""
    windows = sparse(3000, 40, 2, seed=1)
    columns, labels = real(windows)
    products = columns.T @ labels / len(labels)
    best = sorted(
        20 * half + int(i)
        for half in (0, 1)
        for i in np.argsort(-np.abs(products[20 * half : 20 * half + 20]))[:4]
    )
    found = marginal(windows, math.inf, 8, 10.0)
    x = np.concatenate(list(found.x.values()))
    assert sorted(np.flatnonzero(x).tolist()) == best
    np.testing.assert_allclose(x[best], (products / np.mean(columns**2, axis=0))[best], atol=1e-9)
    joint = np.linalg.lstsq(columns[:, best], labels)[0]
    both = np.concatenate(list(two_round(windows, math.inf, 8, 10.0).x.values()))
    # Rows of the other party are clipped to whole numbers.
    np.testing.assert_allclose(both[best], joint, atol=1e-4)
    assert math.isinf(found.epsilon)
    assert found.uplink_numbers == 3 * 8


def test_what_they_release_costs_their_budget() -> None:
    """Protects the claim: choices and noises add up to cost, and to an epsilon that is not above the one that
    was asked for."""
    windows = sparse(3000, 40, 2, seed=1)
    public = marginal(windows, 0.03, 8, 1.0, norm=1 / 3)
    for estimate in (marginal(windows, 0.03, 8, 1.0), public, two_round(windows, 0.03, 8, 1.0)):
        assert 0.03 * (1 - 1e-6) < estimate.cost <= 0.03 * (1 + 1e-12)
        assert 0.9 < estimate.epsilon < 1.0
        assert sum(np.abs(x).sum() for x in estimate.x.values()) <= 1 + 1e-9


def test_sensitivities_are_those_of_the_derivation() -> None:
    """Protects every noise: replaced rows at the corners of the bounds move each release by its sensitivity
    at most, and some by it.
    """
    random = np.random.default_rng(0)
    count, others = 3, 4
    corners = [np.array(row) for row in itertools.product((-1.0, 0.0, 1.0), repeat=count)]
    bound = 7.0
    seen = {"values": 0.0, "norms": 0.0, "rows": 0.0, "products": 0.0, "gram": 0.0}
    for _ in range(20):
        z = random.normal(size=others)
        z *= bound / np.linalg.norm(z)
        corners.append(random.uniform(-1, 1, count))
        for a, b in itertools.product(corners, repeat=2):
            upper = np.triu_indices(count)
            seen["values"] = max(seen["values"], float(np.linalg.norm(a * 1.0 - b * -1.0)))
            seen["norms"] = max(seen["norms"], float(np.linalg.norm(a**2 - b**2)))
            seen["rows"] = max(seen["rows"], float(np.linalg.norm(a - b)))
            seen["products"] = max(seen["products"], float(np.linalg.norm(np.outer(a - b, z))))
            seen["gram"] = max(seen["gram"], float(np.linalg.norm((np.outer(a, a) - np.outer(b, b))[upper])))
        corners.pop()
    root = math.sqrt(count)
    claimed = {
        "values": 2 * root,
        "norms": root,
        "rows": 2 * root,
        "products": 2 * root * bound,
        "gram": math.sqrt(10.5),
    }
    for kind, most in claimed.items():
        assert seen[kind] <= most * (1 + 1e-9)
        assert seen[kind] > most * (0.85 if kind == "gram" else 1 - 1e-9)


@pytest.mark.parametrize("shares", [MARGINAL, TWO_ROUND])
def test_noise_covers_the_sensitivity_in_whole_numbers(shares: dict[str, float]) -> None:
    """Protects the units: the noise of each kind is for its sensitivity in the whole numbers that are
    released, and so is its cost.
    """
    plan = plan_selection(0.01, 3, 4, shares)
    one, root = FEATURE_ONE, math.sqrt(3)
    bits = 52 - 15 - (4096).bit_length() - plan.row_bound.bit_length()
    claimed = {
        "values": 2 * root * one * 2**18,
        "norms": root * one**2,
        "rows": 2 * root * one,
        "products": 2 * root * one * plan.row_bound * 2**bits,
        "gram": math.sqrt(10.5) * one**2,
    }
    for kind, noise in plan.noises.items():
        cost = cost_of_gaussian(claimed[kind], noise.deviation)
        assert 0.8 * noise.cost < cost <= noise.cost * (1 + 1e-12)
        assert noise.cost == pytest.approx(0.01 * shares[kind])
    assert plan.cost == pytest.approx(0.01, rel=1e-6)


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


def test_choices_are_of_columns_that_are_left_and_follow_from_the_secret() -> None:
    """Protects the selection: no column twice, the same again from the same secret and window, others from
    others."""
    windows = sparse(2000, 40, 1, seed=3)
    window = next(iter(windows.values()))
    plan = plan_selection(0.5, 6, 0, MARGINAL)

    def choose(secret: bytes, federation: int = 0) -> list[int]:
        return PartySelection(window, plan, place("a", federation, secret)).choose()

    assert len(set(choose(SECRET))) == 6
    assert choose(SECRET) == choose(SECRET)
    assert len({tuple(choose(SECRET)), tuple(choose(SECRET[::-1])), tuple(choose(SECRET, 1))}) > 1


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


def test_what_is_released_is_the_value_with_its_noise() -> None:
    """Protects the units on the way back: with a cost that hardly leaves noise, each release is the plain
    number of the table."""
    window = sparse(3000, 20, 1, seed=3)["party-0"]
    columns, labels = window.columns / FEATURE_ONE, window.labels / RESIDUAL_ONE
    party, found = releases(window, plan_selection(1e6, 3, 4, ALL))
    own = columns[:, party.chosen]
    wanted = {
        "values": own.T @ labels / 3000,
        "norms": np.mean(own**2, axis=0),
        "rows": own,
        "products": own.T @ np.full((3000, 4), 0.5) / 3000,
        "gram": own.T @ own / 3000,
    }
    for kind, value in wanted.items():
        np.testing.assert_allclose(found[kind], value, atol=0.03 if kind == "rows" else 2e-4)


def test_every_release_of_a_selection_has_a_noise_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from one draw on two contents: no two releases have one key, and a selection of other rows,
    another strength or after
    other rows of the others has none in common where that matters.
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
