"""Blocks and step sizes of the doubly stochastic solver. ``test_trace`` has Algorithm 1 in plain numbers."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.fdskl.learning.doubly_stochastic import decay, step_alphas, step_size
from streamfl.fdskl.learning.losses import LOSSES


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
