"""Random features, losses and kernel weights, checked by code written from the equations."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import gamma, kv

from streamfl.contract.role import ConfigurationError
from streamfl.contract.seeding import cauchy, normal
from streamfl.kernels import (
    LOGISTIC,
    LOSSES,
    SQUARE,
    FeatureMap,
    Kernel,
    frequencies,
    grid,
    loss_named,
    paper_dictionary,
    random_features,
)
from streamfl.pofmkl.learning.log_weights import bin_probabilities, heaviest_first, normalised

finite = st.floats(-30, 30, allow_nan=False)


def kernel_value(kernel: Kernel, r: NDArray[np.float64]) -> float:
    """The kernel in closed form, as in textbooks, without random features."""
    if kernel.family == "gaussian":
        return math.exp(-float(r @ r) / (2 * kernel.bandwidth**2))
    if kernel.family == "laplacian":
        return math.exp(-float(np.abs(r).sum()) / kernel.bandwidth)
    nu = kernel.smoothness
    assert nu is not None
    s = math.sqrt(2 * nu) * float(np.linalg.norm(r)) / kernel.bandwidth
    return float(2 ** (1 - nu) / gamma(nu) * s**nu * kv(nu, s))


def test_paper_dictionary_is_the_stated_grid() -> None:
    """The preset must have the 51 bandwidths of the reproduction tables."""
    dictionary = paper_dictionary()
    assert len(dictionary) == 51
    for i, kernel in enumerate(dictionary, start=1):
        assert kernel.family == "gaussian"
        assert kernel.bandwidth == pytest.approx(math.exp(math.log(10) * (2 * i - 52) / 25), rel=1e-14)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("rbf", 1.0), "rbf"),
        (("gaussian", 0.0), "0.0"),
        (("gaussian", math.inf), "inf"),
        (("gaussian", math.nan), "nan"),
        (("matern", 1.0), "None"),
        (("matern", 1.0, 0.7), "0.7"),
        (("matern", 1.0, -0.5), "-0.5"),
        (("gaussian", 1.0, 0.5), "0.5"),
    ],
)
def test_a_kernel_that_cannot_be_drawn_is_refused_by_name(
    arguments: tuple[str, float, float], named: str
) -> None:
    """A mistake in the dictionary must be reported with its value, and not appear as NaN features."""
    with pytest.raises(ConfigurationError, match=named):
        Kernel(*arguments)


def test_grid_gives_smoothness_to_matern_alone_and_refuses_nothing_and_doubles() -> None:
    """Kernel numbers are keys in the protocol, so the grid's order is fixed, and a repeated kernel is a
    mistake."""
    kernels = grid(["matern", "laplacian"], [0.5, 2.0], smoothness=1.5)
    assert kernels == (
        Kernel("matern", 0.5, 1.5),
        Kernel("matern", 2.0, 1.5),
        Kernel("laplacian", 0.5),
        Kernel("laplacian", 2.0),
    )
    with pytest.raises(ConfigurationError, match="at least one"):
        grid([], [1.0])
    with pytest.raises(ConfigurationError, match="twice"):
        grid(["gaussian"], [1.0, 1.0])


@pytest.mark.parametrize(
    "kernel",
    [
        Kernel("gaussian", 0.7),
        Kernel("laplacian", 1.3),
        Kernel("matern", 0.9, 0.5),
        Kernel("matern", 0.9, 1.0),
        Kernel("matern", 1.1, 2.5),
    ],
    ids=str,
)
def test_features_approximate_their_kernel(kernel: Kernel) -> None:
    """z(x) . z(x') must estimate k(x, x'). A wrong spectral density would still give unit-norm features,
    which learn badly."""
    count, dimension = 40_000, 3
    drawn = frequencies([kernel], count, dimension, seed=3, dtype=np.float64)
    points = np.random.default_rng(1).normal(size=(6, dimension))
    features = random_features(points, drawn)[:, 0]
    for a in range(6):
        for b in range(a):
            # The estimate is a mean of `count` cosines with standard deviation at most sqrt(1/2). Five of
            # these are allowed.
            estimate = float(features[a] @ features[b])
            assert abs(estimate - kernel_value(kernel, points[a] - points[b])) < 5 * math.sqrt(0.5 / count)


def test_frequencies_follow_the_documented_streams() -> None:
    """A client in another language draws by the documentation: row by row, kernel i from stream
    ("frequencies", i)."""
    kernels = [Kernel("gaussian", 0.5), Kernel("laplacian", 2.0), Kernel("matern", 4.0, 1.5)]
    drawn = frequencies(kernels, 4, 2, seed=11, dtype=np.float64)
    np.testing.assert_allclose(drawn[0].ravel(), normal(8, 11, "frequencies", 0) / 0.5, rtol=1e-15)
    np.testing.assert_allclose(drawn[1].ravel(), cauchy(8, 11, "frequencies", 1) / 2.0, rtol=1e-15)
    words = normal(4 * 5, 11, "frequencies", 2)
    for row in range(4):
        direction, rest = words[5 * row : 5 * row + 2], words[5 * row + 2 : 5 * row + 5]
        expected = direction / math.sqrt(sum(w * w for w in rest) / 3) / 4.0
        np.testing.assert_allclose(drawn[2, row], expected, rtol=1e-14)
    np.testing.assert_array_equal(frequencies(kernels, 4, 2, seed=11), drawn.astype(np.float32))


def test_shared_directions_differ_by_bandwidth_alone_within_a_kind() -> None:
    """Directions are shared by family and smoothness: two Matern kernels of different tails must not share
    them."""
    kernels = [
        Kernel("gaussian", 0.5),
        Kernel("matern", 1.0, 0.5),
        Kernel("gaussian", 4.0),
        Kernel("matern", 3.0, 1.5),
        Kernel("matern", 3.0, 0.5),
    ]
    shared = frequencies(kernels, 5, 3, seed=2, dtype=np.float64, shared_directions=True)
    own = frequencies(kernels, 5, 3, seed=2, dtype=np.float64)
    np.testing.assert_allclose(shared[0] * 0.5, shared[2] * 4.0, rtol=1e-14)
    np.testing.assert_allclose(shared[1] * 1.0, shared[4] * 3.0, rtol=1e-14)
    np.testing.assert_array_equal(shared[[0, 1, 3]], own[[0, 1, 3]])
    assert not np.allclose(own[0] * 0.5, own[2] * 4.0)
    assert not np.allclose(shared[3], shared[4])


def test_random_features_are_equation_4() -> None:
    """Sines first, then cosines, each row of unit norm: the server's parameters only fit this layout."""
    drawn = frequencies([Kernel("gaussian", 1.0), Kernel("laplacian", 1.0)], 3, 2, seed=0, dtype=np.float64)
    inputs = np.array([[0.3, -1.2], [2.0, 0.1]])
    features = random_features(inputs, drawn)
    assert features.shape == (2, 2, 6)
    phases = np.einsum("kra,sa->skr", drawn, inputs)
    expected = np.concatenate([np.sin(phases), np.cos(phases)], axis=-1) / math.sqrt(3)
    np.testing.assert_allclose(features, expected, atol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(features, axis=-1), 1.0, rtol=1e-14)
    with pytest.raises(ValueError):
        random_features(np.zeros((1, 3)), drawn)


@pytest.mark.parametrize("samples", [0, 1, 15, 16, 31, 32, 33, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predict_equals_the_features_times_the_parameters(samples: int, dtype: type) -> None:
    """Equation (6) for any batch: few rows, whole blocks, and an incomplete last block."""
    generator = np.random.default_rng(samples)
    drawn = frequencies(grid(["gaussian", "laplacian"], [0.5, 3.0]), 10, 4, seed=1, dtype=dtype)
    inputs, parameters = generator.normal(size=(samples, 4)), generator.normal(size=(4, 20))
    exact = random_features(inputs.astype(dtype), drawn.astype(np.float64))
    predictions = FeatureMap(drawn).predict(inputs, parameters)
    assert predictions.dtype == dtype
    expected = (exact * parameters).sum(axis=-1)
    # Heavy-tailed Cauchy frequencies give phases of a thousand, which float32 rounds to 1e-4.
    np.testing.assert_allclose(predictions, expected, atol=2e-3 if dtype is np.float32 else 1e-11)


def test_a_sine_and_a_cosine_are_one_sine_in_every_quadrant() -> None:
    """The phase of a sin + b cos has branches: an error with a sign or a zero would give a prediction of the
    wrong sign."""
    drawn = frequencies([Kernel("gaussian", 2.0)], 49, 3, seed=5)
    values = [-2.0, -1e-3, -0.0, 0.0, 1e-30, 0.5, 3.0]
    inputs = np.random.default_rng(0).uniform(-1, 1, size=(40, 3)).astype(np.float32)
    phases = inputs.astype(np.float64) @ drawn[0].astype(np.float64).T
    of_sines, of_cosines = np.repeat(values, 7), np.tile(values, 7)
    expected = (np.sin(phases) @ of_sines + np.cos(phases) @ of_cosines) / 7
    predictions = FeatureMap(drawn).predict(inputs, np.concatenate([of_sines, of_cosines])[None])
    np.testing.assert_allclose(predictions[:, 0], expected, atol=2e-6)


def test_predict_sees_parameters_that_were_changed_in_place() -> None:
    """Each version of the model is written into the same array. Predictions must not be those of the version
    before."""
    feature_map = FeatureMap(frequencies(paper_dictionary()[-3:], 5, 2, seed=1))
    inputs, parameters = np.ones((40, 2), dtype=np.float32), np.ones((3, 10), dtype=np.float32)
    before = feature_map.predict(inputs, parameters)
    parameters[2] *= -2
    after = feature_map.predict(inputs, parameters)
    np.testing.assert_allclose(after, before * [1, 1, -2], rtol=1e-4)


MIXED = [
    Kernel("gaussian", 0.5),
    Kernel("matern", 1.0, 0.5),
    Kernel("gaussian", 4.0),
    Kernel("laplacian", 3.0),
    Kernel("matern", 3.0, 1.5),
    Kernel("matern", 2.0, 0.5),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shared_directions_change_no_result(dtype: type) -> None:
    """One product for all kernels of a kind only changes the speed: features and predictions equal those of
    the plain path."""
    drawn = frequencies(MIXED, 10, 4, seed=1, dtype=dtype, shared_directions=True)
    plain, shared = FeatureMap(drawn), FeatureMap(drawn, shared_by=MIXED)
    generator = np.random.default_rng(0)
    # Cauchy frequencies reach hundreds, so their phases lose as many digits.
    tolerance = {"rtol": 0, "atol": 1e-3 if dtype is np.float32 else 1e-11}
    for samples in (0, 1, 32, 77):
        inputs, kernels = generator.normal(size=(samples, 4)), generator.integers(0, len(MIXED), samples)
        parameters = generator.normal(size=(len(MIXED), 20))
        predictions, rows = shared.predict(inputs, parameters), shared.rows(inputs, kernels)
        assert predictions.dtype == rows.dtype == dtype
        np.testing.assert_allclose(predictions, plain.predict(inputs, parameters), **tolerance)
        np.testing.assert_allclose(rows, plain.rows(inputs, kernels), **tolerance)


@pytest.mark.parametrize(
    ("drawn_for", "shared", "named"),
    [(MIXED, False, MIXED), (MIXED, True, MIXED[::-1]), (MIXED, True, MIXED[:2])],
)
def test_frequencies_that_are_not_shared_by_the_named_kernels_are_refused(
    drawn_for: list[Kernel], shared: bool, named: list[Kernel]
) -> None:
    """Directions with the wrong bandwidths are features of no kernel, and look like any other."""
    with pytest.raises(ValueError):
        FeatureMap(frequencies(drawn_for, 10, 4, seed=1, shared_directions=shared), shared_by=named)


def test_predictions_are_not_overwritten_by_the_next_call() -> None:
    """Buffers are reused between calls, but a returned array must not be one of them."""
    drawn = frequencies(paper_dictionary()[:3], 5, 2, seed=1)
    feature_map = FeatureMap(drawn)
    inputs = np.ones((20, 2), dtype=np.float32)
    first = feature_map.predict(inputs, np.ones((3, 10), dtype=np.float32))
    features = feature_map.rows(inputs, np.zeros(20, dtype=np.intp))
    kept = first.copy(), features.copy()
    feature_map.predict(-2 * inputs, np.full((3, 10), 7.0, dtype=np.float32))
    feature_map.rows(-2 * inputs, np.ones(20, dtype=np.intp))
    np.testing.assert_array_equal(first, kept[0])
    np.testing.assert_array_equal(features, kept[1])


def test_predict_needs_memory_for_the_result_alone() -> None:
    """All phases of a large poll at once would need a gigabyte: apart from the result, memory must not grow
    with the samples."""
    feature_map = FeatureMap(frequencies(paper_dictionary(), 100, 4, seed=1))
    inputs = np.ones((3000, 4), dtype=np.float32)
    parameters = np.ones((51, 200), dtype=np.float32)
    tracemalloc.start()
    try:
        result = feature_map.predict(inputs, parameters)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.nbytes <= peak < result.nbytes + 200_000


def test_rows_are_the_features_of_the_asked_kernel() -> None:
    """Equation (9)'s update uses one kernel's features for each row. Norms would not reveal mixed-up
    kernels."""
    drawn = frequencies(grid(["gaussian"], [0.5, 1.0, 3.0]), 7, 4, seed=1, dtype=np.float64)
    generator = np.random.default_rng(0)
    inputs, kernels = generator.normal(size=(70, 4)), generator.integers(0, 3, 70)
    rows = FeatureMap(drawn).rows(inputs, kernels)
    np.testing.assert_allclose(rows, random_features(inputs, drawn)[np.arange(70), kernels], atol=1e-14)
    assert FeatureMap(drawn).rows(inputs[:0], kernels[:0]).shape == (0, 14)


def test_wrong_shapes_are_refused() -> None:
    """Broadcasting would turn a transposed or short array into predictions that look like any other."""
    feature_map = FeatureMap(frequencies(paper_dictionary()[:3], 5, 2, seed=1))
    inputs, parameters = np.zeros((4, 2)), np.zeros((3, 10))
    for wrong in (np.zeros((4, 1)), np.zeros(2)):
        with pytest.raises(ValueError, match="inputs"):
            feature_map.predict(wrong, parameters)
    for wrong in (np.zeros((1, 10)), np.zeros((10, 3)), np.zeros(10)):
        with pytest.raises(ValueError, match="parameters"):
            feature_map.predict(inputs, wrong)
    with pytest.raises(ValueError, match="kernel numbers"):
        feature_map.rows(inputs, np.zeros(3, dtype=np.intp))
    with pytest.raises(IndexError):
        feature_map.rows(inputs, np.full(4, 3))


@pytest.mark.parametrize("name", sorted(LOSSES))
@given(prediction=finite, label=st.sampled_from([0.0, 1.0]))
def test_gradient_is_the_slope_of_the_value(name: str, prediction: float, label: float) -> None:
    """A factor lost in a gradient, such as the 2 of the square, would only look like another learning
    rate."""
    loss, step = loss_named(name), 1e-4
    slope = (loss.value(prediction + step, label) - loss.value(prediction - step, label)) / (2 * step)
    assert float(loss.gradient(prediction, label)) == pytest.approx(float(slope), abs=1e-6)


@given(prediction=finite, label=st.floats(0, 1))
def test_losses_are_their_formulas(prediction: float, label: float) -> None:
    """Regret and weights are computed from these values."""
    assert float(SQUARE.value(prediction, label)) == pytest.approx((prediction - label) ** 2, rel=1e-14)
    expected = math.log1p(math.exp(prediction)) - label * prediction
    assert float(LOGISTIC.value(prediction, label)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_logistic_loss_stands_large_log_odds() -> None:
    """exp(1000) is infinite: a confident kernel must not turn the weights into NaN, nor a tiny loss into
    0."""
    assert float(LOGISTIC.value(1000.0, 0.0)) == 1000.0
    assert float(LOGISTIC.value(-1000.0, 1.0)) == 1000.0
    assert float(LOGISTIC.value(1000.0, 1.0)) == 0.0
    assert float(LOGISTIC.value(50.0, 1.0)) == pytest.approx(math.exp(-50), rel=1e-12)
    np.testing.assert_array_equal(
        LOGISTIC.gradient(np.array([1000.0, -1000.0]), np.array([0.0, 1.0])), [1.0, -1.0]
    )


def test_losses_broadcast_and_are_summed_in_float64() -> None:
    """Labels of a batch (B, 1) meet predictions (B, N) in float32. Losses are added up over months, so in
    float64."""
    predictions = np.array([[0.25, 1.0], [2.0, 0.5]], dtype=np.float32)
    for loss in LOSSES.values():
        value = loss.value(predictions, np.array([[0.0], [1.0]], dtype=np.float32))
        assert value.shape == (2, 2)
        assert value.dtype == loss.gradient(predictions, 1.0).dtype == np.float64
    with pytest.raises(ConfigurationError, match="'hinge' is not one of square, logistic"):
        loss_named("hinge")


@given(st.lists(st.integers(-400, 0), min_size=1, max_size=8), st.integers(-(10**6), 10**6))
def test_normalised_weights_are_exact_ratios(halvings: list[int], shift: int) -> None:
    """Weights 2^h have ratios that fractions give exactly, whatever is added to every logarithm."""
    weights = [Fraction(1, 2**-h) for h in halvings]
    logarithms = np.array([h * math.log(2) for h in halvings]) + shift
    computed = normalised(logarithms)
    for value, weight in zip(computed, weights, strict=True):
        assert value == pytest.approx(float(weight / sum(weights)), rel=1e-8, abs=1e-15)
    assert computed.dtype == np.float64


def test_equal_weights_keep_the_kernels_in_number() -> None:
    """All weights are equal at the start: a replay must get the same bins without knowing this sort."""
    order = heaviest_first(np.array([[0.0] * 20, [0.0] * 19 + [1.0]]))
    assert order[0].tolist() == list(range(20))
    assert order[1].tolist() == [19, *range(19)]


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=12), st.integers(1, 12), st.floats(0, 1))
def test_bin_probabilities_are_equation_8(weights: list[float], size: int, exploration: float) -> None:
    """Probabilities by a plain loop over the bins: division by p is only unbiased if p is the probability of
    the draw."""
    ordered = sorted(weights, reverse=True)
    held = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    expected = [(1 - exploration) * math.fsum(h) / math.fsum(ordered) + exploration / len(held) for h in held]
    computed = bin_probabilities(np.array([ordered, ordered]), size, exploration)
    np.testing.assert_allclose(computed, [expected, expected], rtol=1e-12)


def test_full_exploration_is_uniform_to_the_last_bit() -> None:
    """With xi = 1 the draw must not depend on weights, so that replays need no sort and agree bit for bit."""
    probabilities = bin_probabilities(np.array([0.9, 0.05, 0.03, 0.02]), 1, exploration=1.0)
    assert probabilities.tolist() == [0.25] * 4
