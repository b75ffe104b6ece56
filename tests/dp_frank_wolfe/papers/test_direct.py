"""A fit without privacy is block Frank-Wolfe: written once more from the paper, on all columns in one
place."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_frank_wolfe.problems import real, sparse
from dp_frank_wolfe.proof.equal_shares import equal_blocks, plans_of
from sklearn.linear_model import Lasso

from streamfl.dp_frank_wolfe.learning.blocks import Sampling
from streamfl.dp_frank_wolfe.learning.sketch import IdentitySketch, SignSketch
from streamfl.dp_frank_wolfe.party.window import Window
from streamfl.dp_frank_wolfe.tools.direct import DirectFit, fit


def run(windows: dict[str, Window], sampling: Sampling, iterations: int, **options: object) -> DirectFit:
    rows = len(next(iter(windows.values())).labels)
    sketch = IdentitySketch(rows)
    plans = plans_of(windows, sampling, iterations, sketch, math.inf, 10_000, 4.0)
    return fit(windows, sampling, iterations, sketch, plans, **options)


def centralised(
    columns: np.ndarray, labels: np.ndarray, sampling: Sampling, starts: dict[str, int], iterations: int
) -> tuple[np.ndarray, list[float]]:
    """Block Frank-Wolfe in floating point: x and the objective before each step."""
    x, values = np.zeros(columns.shape[1]), []
    for t in range(iterations):
        residuals = columns @ x - labels
        values.append(float(residuals @ residuals) / (2 * len(labels)))
        gradient = columns.T @ residuals / len(labels)
        gamma, moved = 2 / (sampling.least * t + 2), x.copy()
        for number in sampling.blocks_of(0, t):
            block = sampling.blocks[number]
            own = starts[block.party] + np.array(block.columns)
            best = own[np.argmax(np.abs(gradient[own]))]
            moved[own] *= 1 - gamma
            moved[best] -= gamma * block.radius * np.sign(gradient[best])
        x = moved
    return x, values


@pytest.mark.parametrize("parties", [1, 3, 5])
@pytest.mark.parametrize("name", ["full", "uniform", "nice", "distributed"])
def test_without_privacy_it_is_centralised_block_frank_wolfe(name: str, parties: int) -> None:
    """Protects the algorithm: split, sketched by the identity and in whole numbers, the iterate is that of
    one place to 1e-12."""
    windows = sparse(400, 60, parties, seed=parties)
    blocks = equal_blocks(windows, 1.0, parts=2)
    sampling = Sampling(name, blocks, 3, count={"nice": min(3, len(blocks))}.get(name, 1))
    found = run(windows, sampling, 60)
    columns, labels = real(windows)
    starts = dict(
        zip(windows, np.cumsum([0] + [w.columns.shape[1] for w in windows.values()]).tolist(), strict=False)
    )
    x, values = centralised(columns, labels, sampling, starts, 60)
    np.testing.assert_allclose(np.concatenate(list(found.x.values())), x, atol=1e-12)
    np.testing.assert_allclose([step.objective for step in found.steps], values, atol=1e-12)
    assert math.isinf(found.epsilon)
    assert found.l1_norm <= 1 + 1e-12


def test_the_gap_is_above_the_distance_from_the_optimum_and_ends_a_fit() -> None:
    """Protects stopping: with one block the gap bounds the distance to scikit-learn's optimum in the same
    ball, and is reached."""
    windows = sparse(500, 40, 1, seed=9)
    columns, labels = real(windows)
    sampling = Sampling("full", equal_blocks(windows, 0.5), 0)
    found = run(windows, sampling, 3000, until_gap=1e-4)
    low, high = 1e-6, 1.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        lasso = Lasso(alpha=middle, fit_intercept=False, tol=1e-10, max_iter=100_000).fit(columns, labels)
        low, high = (middle, high) if np.abs(lasso.coef_).sum() > 0.5 else (low, middle)
    optimum = float(np.sum((columns @ lasso.coef_ - labels) ** 2)) / (2 * len(labels))
    assert 10 < len(found.steps) < 3000
    assert all(step.gap >= step.objective - optimum - 1e-9 for step in found.steps)
    assert found.steps[-1].objective - optimum < 3e-4


def test_blocks_of_parties_that_do_not_answer_stay_as_they_are() -> None:
    """Protects a step without a party: its weights do not shrink, the others' move, and the iterate stays in
    its balls."""
    windows = sparse(300, 30, 3)
    sampling = Sampling("full", equal_blocks(windows, 1.0), 0)

    def away(iteration: int, party: str) -> bool:
        return iteration % 2 == 1 and party == "party-1"

    ran = [run(windows, sampling, number, absent=away) for number in (11, 12)]
    np.testing.assert_array_equal(ran[0].x["party-1"], ran[1].x["party-1"])
    assert np.abs(ran[0].x["party-0"] - ran[1].x["party-0"]).max() > 1e-3
    assert all(1 not in step.chosen for step in ran[1].steps[1::2])
    assert ran[1].l1_norm <= 1 + 1e-12


def test_at_the_cap_only_shown_columns_are_chosen() -> None:
    """Protects the sketches' price: no party shows more columns than its cap, goes on with those it has
    shown, and uplink is counted.
    """
    windows = sparse(300, 60, 3)
    sampling = Sampling("full", equal_blocks(windows, 1.0, parts=2), 0)
    sketch = SignSketch(300, 40, 1)
    plans = plans_of(windows, sampling, 80, sketch, math.inf, 6, 4.0)
    found = fit(windows, sampling, 80, sketch, plans)
    shown = [column for step in found.steps for column in step.shown]
    assert len(shown) == len(set(shown)) == 6
    assert found.support <= 6
    answers = sum(len(step.chosen) for step in found.steps)
    # A block without a shown column at the cap does not answer.
    assert 240 <= answers <= 480
    assert found.uplink_numbers == answers + 6 * 40


def test_sketched_predictions_come_near_those_of_all_columns() -> None:
    """Protects the sketch: with enough numbers the objective is near that of the identity, and with few it is
    further away."""
    windows = sparse(400, 40, 2, seed=5)
    sampling = Sampling("full", equal_blocks(windows, 1.0), 0)
    whole = run(windows, sampling, 60).steps[-1].objective
    ends = {}
    for numbers in (20, 2000):
        sketch = SignSketch(400, numbers, 2)
        plans = plans_of(windows, sampling, 60, sketch, math.inf, 100, 4.0)
        ends[numbers] = fit(windows, sampling, 60, sketch, plans).steps[-1].objective
    assert ends[2000] - whole < 0.1 * (ends[20] - whole)


def test_a_private_fit_is_a_function_of_its_secret_and_stays_in_its_budget() -> None:
    """Protects redoing: the same secret gives the same fit, another one another, and what it costs is not
    above the budget."""
    windows = sparse(2000, 40, 2, seed=5)
    sampling = Sampling("full", equal_blocks(windows, 1.0), 0)
    sketch = SignSketch(2000, 60, 2)
    cost = 0.5
    plans = plans_of(windows, sampling, 20, sketch, cost, 8, 4.0)
    ran = [
        fit(windows, sampling, 20, sketch, plans, secret=secret)
        for secret in (bytes(range(32)),) * 2 + (bytes(range(1, 33)),)
    ]
    chosen = [[step.chosen for step in one.steps] for one in ran]
    assert chosen[0] == chosen[1] != chosen[2]
    for key, sums in ran[0].sums.items():
        np.testing.assert_array_equal(sums, ran[1].sums[key])
    assert cost * (1 - 1e-6) < ran[0].cost <= cost * (1 + 1e-12)
    assert 4 < ran[0].epsilon < 6
