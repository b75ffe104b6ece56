"""What POF-MKL's paper proves, held against the code: unbiased updates, and weights that never underflow."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamfl.kernels import frequencies, grid
from streamfl.pofmkl.estimators.online import POFMKLRegressor
from streamfl.pofmkl.learning.bins import draw_bins
from streamfl.pofmkl.learning.log_weights import bin_probabilities, heaviest_first, normalised

SAMPLES = 10_000


@given(
    log_weights=st.lists(st.floats(-800, 0), min_size=1, max_size=12),
    kernels_per_bin=st.integers(1, 13),
    exploration=st.floats(0.01, 1.0),
    seed=st.integers(0, 1000),
)
def test_updates_are_unbiased_by_enumeration_of_the_bins(
    log_weights: list[float], kernels_per_bin: int, exploration: float, seed: int
) -> None:
    """E[delta_i] = eta grad_i (9): summed over every bin that could be drawn, each kernel's update is the
    full gradient.

    Lost, and unseen in any single run, if a kernel were in no bin or in two, or if p were not what the bin is
    drawn with."""
    logarithms = np.array(log_weights)
    learning_rate = 0.1
    gradients = np.random.default_rng(seed).normal(size=(len(logarithms), 3))
    order = heaviest_first(logarithms)
    probabilities = bin_probabilities(normalised(logarithms)[order], kernels_per_bin, exploration)
    # A number in the middle of each bin's share draws that bin.
    drawable, _ = draw_bins(
        np.tile(logarithms, (len(probabilities), 1)),
        np.full(len(probabilities), kernels_per_bin),
        np.cumsum(probabilities) - probabilities / 2,
        exploration,
    )
    assert [number for number, _, _ in drawable] == list(range(-(-len(logarithms) // kernels_per_bin)))
    assert math.fsum(probabilities) == pytest.approx(1.0, rel=1e-14)
    # Exploration bounds the variance: no bin is rarer than xi / m.
    assert probabilities.min() >= exploration / len(drawable) * (1 - 1e-12)

    expectation = np.zeros_like(gradients)
    for _, probability, kernels in drawable:
        delta, held = np.zeros_like(gradients), list(kernels)
        delta[held] = learning_rate / probability * gradients[held]
        expectation += probability * delta
    np.testing.assert_allclose(expectation, learning_rate * gradients, rtol=1e-12)


def test_the_estimator_stays_exact_over_10_000_samples() -> None:
    """The whole learner, replayed in 80-bit numbers from the equations: weights that freeze or drift make no
    NaN."""
    kernels, learning_rate, count = grid(["gaussian"], [0.3, 1.0, 1.1]), 0.2, 3
    generator = np.random.default_rng(3)
    inputs = generator.uniform(-1, 1, size=(SAMPLES, 1))
    # Noise of variance 1: each kernel loses about 1 a sample, so that plain weights would be exp(-2000).
    labels = 0.1 * np.sin(3 * inputs[:, 0]) + generator.choice([-1.0, 1.0], size=SAMPLES)
    model = POFMKLRegressor(kernels, count, learning_rate, regularisation=1e-3)
    exact = ExactLearner(frequencies(kernels, count, 1, seed=0, dtype=np.float64), learning_rate, 1e-3)
    for start in range(0, SAMPLES, 2_000):
        block = slice(start, start + 2_000)
        model.learn_many(pd.DataFrame(inputs[block], columns=["x"]), pd.Series(labels[block]))
        for x, y in zip(inputs[block], labels[block], strict=True):
            exact.learn(x, y)
        np.testing.assert_allclose(model.kernel_weights, exact.weights(), rtol=1e-7)
    assert learning_rate * exact.losses.min() > 1000, (
        "plain weights must underflow here, or this test shows nothing"
    )
    assert np.sort(model.kernel_weights)[-2] > 1e-3, (
        "the runner-up must still matter, or a frozen weight would pass"
    )


class ExactLearner:
    """Equations (4), (6), (7), (9) and (10) with K = 1 and all kernels updated, kernel by kernel in extended
    precision."""

    def __init__(self, drawn: NDArray[np.float64], learning_rate: float, regularisation: float) -> None:
        self.frequencies = drawn.astype(np.longdouble)
        self.count = drawn.shape[1]
        self.rate = np.longdouble(learning_rate)
        self.regularisation = np.longdouble(regularisation)
        self.parameters = np.zeros((len(drawn), 2 * self.count), dtype=np.longdouble)
        self.losses = np.zeros(len(drawn), dtype=np.longdouble)

    def learn(self, x: NDArray[np.float64], y: float) -> None:
        phases = (self.frequencies * x).sum(axis=2)
        features = np.concatenate([np.sin(phases), np.cos(phases)], axis=1) / np.sqrt(
            np.longdouble(self.count)
        )
        predictions = (self.parameters * features).sum(axis=1)
        losses = (predictions - y) ** 2 + self.regularisation * (self.parameters**2).sum(axis=1)
        gradients = 2 * (predictions - y)[:, None] * features + 2 * self.regularisation * self.parameters
        self.parameters = self.parameters - self.rate * gradients
        self.losses += losses

    def weights(self) -> NDArray[np.longdouble]:
        unscaled = np.exp(-self.rate * (self.losses - self.losses.min()))
        return unscaled / unscaled.sum()
