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
from streamfl.dp_frank_wolfe.learning.sketch import IdentitySketch
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


@pytest.mark.parametrize(
    ("name", "parties"), [("full", 1), ("full", 3), ("uniform", 3), ("nice", 5), ("distributed", 3)]
)
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
    for _ in range(30):
        middle = math.sqrt(low * high)
        lasso = Lasso(alpha=middle, fit_intercept=False, tol=1e-8, max_iter=100_000).fit(columns, labels)
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
