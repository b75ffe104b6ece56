"""The doubly stochastic solver against Algorithm 1 written in plain numbers, and the error contract of the
paper."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.fdskl.learning.doubly_stochastic import StepRule, decay, step_alphas, step_size
from streamfl.fdskl.learning.losses import LOSSES, MarginLoss

EVERY = tuple(LOSSES.values())
Floats = NDArray[np.float64]
REGULARISATION = 0.2


def algorithm_1(
    loss: str, instances: Floats, labels: Floats, frequencies: Floats, offsets: Floats, steps: Floats
) -> Floats:
    """alpha_1 .. alpha_T with B = R = 1: the loop as printed, with the losses of Table 1 by themselves."""

    def phi(i: int, x: Floats) -> float:
        return float(np.sqrt(2.0) * np.cos(frequencies[i] @ x + offsets[i]))

    def slope(u: float, y: float) -> float:
        if loss == "square":
            return 2.0 * (u - y)
        if loss == "logistic":
            return float(-y / (1.0 + np.exp(y * u)))
        z = y * u
        return -y if z <= 0 else -y * (1.0 - z) if z < 1 else 0.0

    alphas: list[float] = []
    for t, (x, y) in enumerate(zip(instances, labels, strict=True)):
        output = sum(alpha * phi(i, x) for i, alpha in enumerate(alphas))
        added = -steps[t] * slope(output, y) * phi(t, x)
        alphas = [(1.0 - steps[t] * REGULARISATION) * alpha for alpha in alphas]
        alphas.append(added)
    return np.array(alphas)


@pytest.mark.parametrize("loss", EVERY, ids=lambda loss: loss.name)
@pytest.mark.parametrize("rule", ["constant", "horizon", "inverse"])
def test_blocks_of_one_are_algorithm_1(loss: MarginLoss, rule: StepRule) -> None:
    """Protects the claim that B = R = 1 is the paper: alpha for alpha, over a common scale, to 1e-9."""
    random = np.random.default_rng(3)
    count = 400
    instances, frequencies = random.normal(size=(count, 4)), random.normal(size=(count, 4))
    labels = np.sign(instances[:, 0] * instances[:, 1])
    offsets = random.uniform(0, 2 * np.pi, count)
    steps = np.array([step_size(rule, t, 0.1, REGULARISATION, count) for t in range(count)])
    features = np.sqrt(2) * np.cos(instances @ frequencies.T + offsets)
    stored, scale = np.zeros(count), 1.0
    for t in range(count):
        outputs = scale * features[t : t + 1, :t] @ stored[:t]
        added = step_alphas(features[t : t + 1, t : t + 1], outputs, labels[t : t + 1], steps[t], loss)
        scale = decay(scale, steps[t], REGULARISATION)
        stored[t] = added[0] / scale
    expected = algorithm_1(loss.name, instances, labels, frequencies, offsets, steps)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(scale * stored, expected, rtol=0.0, atol=1e-9)


def test_a_block_is_the_mean_of_its_instances_and_shares_the_step_among_its_features() -> None:
    """Protects step sizes: one that was found with one size of the blocks has to serve with another."""
    random = np.random.default_rng(4)
    features = random.normal(size=(6, 3))
    outputs = random.normal(size=6)
    labels = np.sign(random.normal(size=6))
    loss = LOSSES["logistic"]
    whole = step_alphas(features, outputs, labels, 0.5, loss)
    singles = [
        [
            step_alphas(features[b : b + 1, r : r + 1], outputs[b : b + 1], labels[b : b + 1], 0.5, loss)[0]
            for r in range(3)
        ]
        for b in range(6)
    ]
    np.testing.assert_allclose(whole, np.mean(singles, axis=0) / 3, rtol=1e-12)
    twice = step_alphas(
        np.repeat(features, 2, axis=0), np.repeat(outputs, 2), np.repeat(labels, 2), 0.5, loss
    )
    np.testing.assert_allclose(twice, whole, rtol=1e-12)
    assert step_alphas(features[:0], outputs[:0], labels[:0], 0.5, loss).tolist() == [0.0, 0.0, 0.0]


def test_step_sizes_follow_their_rules() -> None:
    """Protects convergence, which depends on how a step falls, and from a step that forgets everything at
    once."""
    assert [step_size("constant", t, 0.3, 0.1) for t in (0, 5)] == [0.3, 0.3]
    assert step_size("inverse", 7, 0.3, 0.1) == pytest.approx(1 / (0.1 * (7 + 1 / (0.1 * 0.3))))
    assert step_size("horizon", 7, 9.0, 0.1, 1000) == pytest.approx(np.log(1000) / 100)
    assert step_size("horizon", 7, 0.01, 0.1, 1000) == 0.01
    with pytest.raises(ValueError, match="horizon"):
        step_size("horizon", 0, 1.0, 0.1)
    assert decay(0.5, 0.3, 0.1) == pytest.approx(0.485)
    with pytest.raises(ValueError, match="below 1"):
        decay(1.0, 10.0, 0.1)
