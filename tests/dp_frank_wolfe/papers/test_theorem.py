"""Theorem 1 of the paper, corrected: the expected distance from the optimum under each sampling, and its
rate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_frank_wolfe.problems import divided, real, sparse
from dp_frank_wolfe.proof.equal_shares import equal_blocks, plans_of

from streamfl.dp_frank_wolfe.learning.blocks import Block, Sampling
from streamfl.dp_frank_wolfe.learning.refit import project
from streamfl.dp_frank_wolfe.learning.sketch import IdentitySketch
from streamfl.dp_frank_wolfe.party.window import Window
from streamfl.dp_frank_wolfe.tools.direct import fit


def objectives(windows: dict[str, Window], samplings: list[Sampling], iterations: int) -> np.ndarray:
    """The mean objective before each step over the samplings, which differ by their seed."""
    sketch = IdentitySketch(len(next(iter(windows.values())).labels))
    total = np.zeros(iterations)
    for sampling in samplings:
        plans = plans_of(windows, sampling, iterations, sketch, math.inf, 10_000, 8.0)
        found = fit(windows, sampling, iterations, sketch, plans, until_gap=-1.0)
        total += [step.objective for step in found.steps]
    return total / len(samplings)


def optimum(columns: np.ndarray, labels: np.ndarray, blocks: list[Block], starts: list[int]) -> float:
    """The least objective in the product of the balls, by projected gradients with momentum."""
    x, ahead, momentum = np.zeros(columns.shape[1]), np.zeros(columns.shape[1]), 1.0
    step = len(labels) / np.linalg.norm(columns, 2) ** 2

    for _ in range(400):
        before = x
        moved = ahead - step * columns.T @ (columns @ ahead - labels) / len(labels)
        x = np.empty_like(moved)
        for block, start in zip(blocks, starts, strict=True):
            own = start + np.array(block.columns)
            x[own] = project(moved[own], block.radius)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead, momentum = x + (momentum - 1) / following * (x - before), following
    return float(np.sum((columns @ x - labels) ** 2)) / (2 * len(labels))


@pytest.mark.parametrize("name", ["full", "uniform", "nice", "distributed"])
def test_each_sampling_respects_the_bound_and_its_rate(name: str) -> None:
    """Protects the rate: the mean distance over seeds is below 2 (h_0 + C / p) / (p t + 2), and falls as 1 /
    t."""
    windows = sparse(200, 36, 3, seed=2)
    columns, labels = real(windows)
    blocks = list(equal_blocks(windows, 0.6, parts=2))
    best = optimum(columns, labels, blocks, [12 * number for number in (0, 0, 1, 1, 2, 2)])
    options = {"nice": 3, "distributed": 1}
    samplings = [
        Sampling(name, blocks, seed, count=options.get(name, 1)) for seed in range(1 if name == "full" else 3)
    ]
    p, taking_part = samplings[0].least, len(samplings[0].blocks_of(0, 0))
    iterations = int(80 / p)
    h = objectives(windows, samplings, iterations) - best
    # C: f moves by at most gamma^2 / 2 of the squared length of A d / sqrt(n), d between points of the
    # sampled balls.
    widest = 2 * blocks[0].radius * taking_part * float(np.linalg.norm(columns, axis=0).max())
    t = np.arange(iterations)
    bound = 2 * (h[0] + widest**2 / len(labels) / p) / (p * t + 2)
    assert (h > -1e-9).all()
    assert (h <= bound).all()
    late = slice(int(10 / p), None)
    slope = np.polyfit(np.log(p * t[late] + 2), np.log(h[late]), 1)[0]
    assert slope <= -0.9


def test_from_the_optimum_the_paper_s_theorem_fails_and_the_corrected_one_holds() -> None:
    """Protects the correction: f = |x|^2 / 2 on 50 intervals, one at a time, begun at the optimum."""
    windows = divided(np.eye(50), np.zeros(50), 1)
    blocks = [Block("party-0", (number,), 1.0) for number in range(50)]
    samplings = [Sampling("uniform", blocks, seed) for seed in range(4)]
    h = 50 * objectives(windows, samplings, 400)
    t, p, curvature = np.arange(400), 1 / 50, 4.0
    assert h[0] == 0
    printed = 2 * (h[0] + curvature) / p / (t + 2)
    corrected = 2 * (h[0] + curvature / p) / (p * t + 2)
    assert (h <= corrected).all()
    assert (h / printed).max() > 1.3
