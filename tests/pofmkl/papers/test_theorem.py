"""What POF-MKL's paper proves, held against the code: unbiased updates, Theorem 1, and weights that never
underflow."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamfl.kernels import SQUARE, bin_probabilities, bins, frequencies, grid, heaviest_first, normalised
from streamfl.pofmkl.estimators.online import POFMKLRegressor

SAMPLES = 100_000


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
    drawable = bins(order, kernels_per_bin)
    assert len(probabilities) == len(drawable) == -(-len(logarithms) // kernels_per_bin)
    assert math.fsum(probabilities) == pytest.approx(1.0, rel=1e-14)
    # Exploration bounds the variance: no bin is rarer than xi / m.
    assert probabilities.min() >= exploration / len(drawable) * (1 - 1e-12)

    expectation = np.zeros_like(gradients)
    for held, probability in zip(drawable, probabilities, strict=True):
        delta = np.zeros_like(gradients)
        delta[held] = learning_rate / probability * gradients[held]
        expectation += probability * delta
    np.testing.assert_allclose(expectation, learning_rate * gradients, rtol=1e-12)


@settings(deadline=None)
@given(
    kernels=st.integers(2, 20),
    samples=st.integers(1, 300),
    learning_rate=st.floats(0.001, 2.0),
    seed=st.integers(0, 10_000),
    opponent=st.sampled_from(["independent", "one good kernel", "the best one changes", "hits the heaviest"]),
)
def test_theorem_1_bounds_the_regret(
    kernels: int, samples: int, learning_rate: float, seed: int, opponent: str
) -> None:
    """With losses in [0, 1]: R(T) <= ln N / eta + eta T / 2, against whoever generates the losses (11,
    Theorem 1).

    The bound is checked for the weighted losses too, which by convexity are the larger: there an opponent who
    always
    hits the heaviest kernel comes as close as anybody can.
    """
    generator = np.random.default_rng(seed)
    log_weights = np.zeros(kernels)
    kernel_losses = np.zeros(kernels)
    mixed_loss = combined_loss = 0.0
    for t in range(samples):
        weights = normalised(log_weights)
        if opponent == "independent":
            predictions, label = generator.uniform(size=kernels), generator.uniform()
        elif opponent == "hits the heaviest":
            predictions, label = np.zeros(kernels), 0.0
            predictions[np.argmax(weights)] = 1.0
        else:
            good = 0 if opponent == "one good kernel" else t * 3 // samples % kernels
            predictions, label = np.ones(kernels), 0.0
            predictions[good] = 0.0
        losses = SQUARE.value(predictions, label)
        assert losses.min() >= 0.0
        assert losses.max() <= 1.0
        mixed_loss += float(weights @ losses)
        combined_loss += float(SQUARE.value(weights @ predictions, label))
        kernel_losses += losses
        log_weights = log_weights - learning_rate * losses
    bound = math.log(kernels) / learning_rate + learning_rate * samples / 2
    assert combined_loss <= mixed_loss + 1e-9
    assert mixed_loss - kernel_losses.min() <= bound + 1e-9


def test_theorem_1_bounds_the_estimator() -> None:
    """The learner that users get obeys the bound too: regret of its own predictions against its best kernel
    online."""
    kernels, samples = grid(["gaussian", "laplacian"], [0.1, 0.5, 2.0, 10.0]), 600
    learning_rate = 1 / math.sqrt(samples)
    generator = np.random.default_rng(5)
    inputs = generator.uniform(-1, 1, size=(samples, 2))
    labels = 0.5 + 0.2 * np.sin(4 * inputs[:, 0]) + generator.uniform(-0.05, 0.05, size=samples)
    drawn = frequencies(kernels, 10, 2, seed=0, dtype=np.float64)
    model = POFMKLRegressor(kernels, 10, learning_rate, regularisation=1e-3)
    exact = ExactLearner(drawn, learning_rate, 1e-3)
    online = 0.0
    for x, y in zip(inputs, labels, strict=True):
        sample = {"a": x[0], "b": x[1]}
        online += (model.predict_one(sample) - y) ** 2
        losses = exact.learn(x, y)
        assert losses.max() <= 1.0
        model.learn_one(sample, y)
    regret = online - float(exact.losses.min())
    assert regret <= math.log(len(kernels)) / learning_rate + learning_rate * samples / 2


def test_weights_stay_exact_over_100_000_samples_of_generated_losses() -> None:
    """Log-weights against sums in whole numbers, which round nothing, where the paper's plain product has
    long underflowed.

    Losses are multiples of 2^-40, so that a kernel's total is an exact integer whatever the number of
    samples.
    """
    kernels, learning_rate = 51, 0.02
    generator = np.random.default_rng(2)
    exact = np.zeros(kernels, dtype=np.int64)
    log_weights = np.zeros(kernels)
    plain = np.ones(kernels)
    # Kernels so alike that their weights still compete at the end: a lost digit would show.
    means = 0.9 - 0.01 * generator.uniform(size=kernels)
    for _ in range(SAMPLES // 1000):
        scaled = np.rint(2**40 * np.clip(means + 0.05 * generator.normal(size=(1000, kernels)), 0, 1)).astype(
            np.int64
        )
        exact += scaled.sum(axis=0)
        for losses in scaled * 2.0**-40:
            log_weights -= learning_rate * losses
            plain *= np.exp(-learning_rate * losses)
    # It ends at 0 or, worse, sticks at a denormal that no longer moves and is no NaN.
    assert plain.max() < np.finfo(np.float64).tiny, (
        "the plain product must underflow, or this test shows nothing"
    )
    assert np.all(np.isfinite(log_weights))

    rate = Fraction(learning_rate)
    behind = [rate * Fraction(int(total - exact.min()), 2**40) for total in exact]
    unscaled = [math.exp(-float(gap)) for gap in behind]
    weights = normalised(log_weights)
    assert math.fsum(weights) == pytest.approx(1.0, rel=1e-14)
    np.testing.assert_allclose(weights, np.array(unscaled) / math.fsum(unscaled), rtol=1e-8)
    assert np.sort(weights)[-2] > 1e-3, "the runner-up must still matter, or a frozen weight would pass"


def test_the_estimator_stays_exact_over_100_000_samples() -> None:
    """The whole learner, replayed in 80-bit numbers from the equations: weights that freeze or drift make no
    NaN."""
    kernels, learning_rate, count = grid(["gaussian"], [0.3, 1.0, 1.1]), 0.02, 3
    generator = np.random.default_rng(3)
    inputs = generator.uniform(-1, 1, size=(SAMPLES, 1))
    # Noise of variance 1: each kernel loses about 1 a sample, so that plain weights would be exp(-2000).
    labels = 0.1 * np.sin(3 * inputs[:, 0]) + generator.choice([-1.0, 1.0], size=SAMPLES)
    model = POFMKLRegressor(kernels, count, learning_rate, regularisation=1e-3)
    exact = ExactLearner(frequencies(kernels, count, 1, seed=0, dtype=np.float64), learning_rate, 1e-3)
    for start in range(0, SAMPLES, 10_000):
        block = slice(start, start + 10_000)
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

    def learn(self, x: NDArray[np.float64], y: float) -> NDArray[np.longdouble]:
        phases = (self.frequencies * x).sum(axis=2)
        features = np.concatenate([np.sin(phases), np.cos(phases)], axis=1) / np.sqrt(
            np.longdouble(self.count)
        )
        predictions = (self.parameters * features).sum(axis=1)
        losses = (predictions - y) ** 2 + self.regularisation * (self.parameters**2).sum(axis=1)
        gradients = 2 * (predictions - y)[:, None] * features + 2 * self.regularisation * self.parameters
        self.parameters = self.parameters - self.rate * gradients
        self.losses += losses
        return losses

    def weights(self) -> NDArray[np.longdouble]:
        unscaled = np.exp(-self.rate * (self.losses - self.losses.min()))
        return unscaled / unscaled.sum()
