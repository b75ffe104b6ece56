"""The parts of the default learner, each alone, against what numpy, scikit-learn or a direct solution say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from streamfl.kernels import SQUARE
from streamfl.learning.online_scaling import moments_with, predictive_deviation, reach, standardised
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.learner import Batch
from streamfl.pofmkl.learning.mixture import corrected, log_posterior, mixed, ridge_step
from streamfl.pofmkl.learning.neighbours import NEIGHBOURS, Projection, neighbour_predictions
from streamfl.pofmkl.learning.views import VIEWS, ViewedFeatures, centred

LARGEST_STATE = 65_536


def test_moments_far_from_zero_equal_numpys() -> None:
    """Protects scaling of timestamps and pressures: a sum of squares would lose every digit at an offset of a
    thousand million."""
    values = 1e9 + np.random.default_rng(1).standard_normal((500, 2, 3)) * [1.0, 10.0, 0.1]
    means, squares = np.zeros((2, 3)), np.zeros((2, 3))
    for number, row in enumerate(values, start=1):
        means, squares = moments_with(np.full(2, number), means, squares, row)
        if number in (1, 2, 500):
            np.testing.assert_allclose(means, values[:number].mean(axis=0), rtol=1e-14)
            np.testing.assert_allclose(squares / number, values[:number].var(axis=0), rtol=1e-5, atol=1e-12)


def test_moments_of_clients_are_their_own() -> None:
    """Protects clients whose numbers of samples differ: each row is divided by its own count."""
    means, squares = moments_with(
        np.array([1, 4]), np.array([0.0, 2.0]), np.array([0.0, 6.0]), np.array([5.0, 6.0])
    )
    np.testing.assert_allclose(means, [5.0, 3.0])
    np.testing.assert_allclose(squares, [0.0, 18.0])


def test_the_predictive_deviation_is_that_of_the_next_value() -> None:
    """Protects young clients: over many draws, it is how far the next value is from the mean of those
    seen."""
    drawn = np.random.default_rng(2).standard_normal((40_000, 5))
    for count in (2, 4):
        seen = drawn[:, :count]
        squares = count * seen.var(axis=1)
        deviations = predictive_deviation(np.full(len(seen), count), squares, 1e-9)
        np.testing.assert_allclose(deviations, seen.std(axis=1, ddof=1) * np.sqrt(1 + 1 / count))
        assert np.mean(np.square(deviations)) == pytest.approx(
            np.mean(np.square(drawn[:, 4] - seen.mean(axis=1))), rel=0.03
        )
    assert predictive_deviation(np.array([0, 1, 9]), np.zeros(3), 0.25).tolist() == [0.25] * 3


@pytest.mark.parametrize("drawn", ["normal", "rare"])
def test_what_was_seen_once_is_within_reach_of_those_seen(drawn: str) -> None:
    """Protects labels that are 0 but for rare large values: what came before is never cut when it comes
    again."""
    rng = np.random.default_rng(4)
    for count in (2, 5, 100, 3000):
        values = (
            rng.standard_normal(count) if drawn == "normal" else np.where(np.arange(count) == 1, 1e6, 0.0)
        )
        squares = np.array([count * values.var()])
        assert np.abs(values - values.mean()).max() <= reach(np.array([count]), squares)[0] * (1 + 1e-12)


def test_one_value_weighs_no_more_than_all_before_it() -> None:
    """Protects scales: after a hundred values, the variance at most doubles by one value, whatever it is."""
    for count in (100, 1000):
        values = np.random.default_rng(5).standard_normal(count)
        squares = np.array([count * values.var()])
        far = values.mean() + reach(np.array([count]), squares)
        _, after = moments_with(np.array([count + 1]), np.array([values.mean()]), squares, far)
        assert squares[0] < after[0] <= 2 * squares[0] * (1 + 1e-12)


def test_views_have_bounded_norms_and_no_constant_columns() -> None:
    """Protects one set of bandwidths for all data: columns that never varied count nothing, and no outlier
    leaves the ball."""
    inputs = np.array([[1e12, 5.0, 3.0], [0.5, 5.0, -2.0], [4.0, 9.0, 1.0]])
    means, variances = np.tile([0.0, 5.0, 1.0], (3, 1)), np.tile([1.0, 0.0, 4.0], (3, 1))
    by_columns, by_total = standardised(inputs, means, variances), centred(inputs, means, variances)
    np.testing.assert_allclose(by_columns[1], np.array([0.5, 0.0, -1.5]) / np.sqrt(2))
    np.testing.assert_allclose(by_columns[0], np.array([3.0, 0.0, 1.0]) / np.sqrt(2))
    np.testing.assert_allclose(by_total[1], np.array([0.5, 0.0, -3.0]) / np.sqrt(5))
    for view in (by_columns, by_total):
        assert (np.linalg.norm(view, axis=1) <= 3 + 1e-12).all()
    assert np.linalg.norm(by_total[0]) == pytest.approx(3.0)
    for view in (standardised, centred):
        assert not view(inputs, means, np.zeros((3, 3))).any()


def test_a_sample_of_each_view_has_features_of_norm_one() -> None:
    """Protects the server's least squares, which divides by the norm; and lags that a view does not have."""
    features = ViewedFeatures(VIEWS, (0.7, 2.8), 8, 3, seed=1, dtype=np.float64)
    samples, lags = np.random.default_rng(3).standard_normal((5, 3)), np.array([[1.0, -2.0]] * 5)
    views = features.inputs(samples, np.zeros((5, 3)), np.ones((5, 3)), lags)
    assert [view.shape[1] for view in views] == [3, 3, 5, 5]
    np.testing.assert_allclose(views[2], np.hstack([views[0], lags / 2]))
    numbers, kernels = np.repeat(np.arange(5), 8), np.tile(np.arange(8), 5)
    rows = features.rows(views, numbers, kernels)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0)
    theta = np.random.default_rng(4).standard_normal((8, 16))
    np.testing.assert_allclose(
        (rows * theta[kernels]).sum(axis=1).reshape(5, 8), features.predict(views, theta), rtol=1e-10
    )
    omega = np.concatenate(list(features.frequencies["standardised"]))
    expected = np.hstack([np.sin(views[0] @ omega[:8].T), np.cos(views[0] @ omega[:8].T)]) / np.sqrt(8)
    np.testing.assert_allclose(rows[kernels == 0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dimension", [1, 3, 16])
def test_neighbours_are_those_of_scikit_learn(dimension: int) -> None:
    """Protects both metrics and the weight of each neighbour, where some of the places are not in use yet."""
    rng = np.random.default_rng(dimension)
    rows, size = 4, 30
    filled = np.array([1, 2, 12, 30])
    queries, lags = rng.standard_normal((rows, dimension)), rng.standard_normal((rows, 2))
    kept, kept_lags = rng.standard_normal((rows, size, dimension)), rng.standard_normal((rows, 2, size))
    labels, variances = rng.standard_normal((rows, size)), rng.uniform(0.1, 9, (rows, dimension))
    if dimension > 1:
        variances[:, 0] = 0.0
    arrays = [array.astype(np.float32) for array in (queries, lags, kept, kept_lags, labels, variances)]
    found = neighbour_predictions(*arrays[:5], filled, arrays[5])
    for row in range(rows):
        count = filled[row]
        scale = np.where(variances[row] > 0, 1 / np.sqrt(np.where(variances[row] > 0, variances[row], 1)), 0)
        plain = kept[row, :count], queries[row]
        scaled = (
            np.hstack([kept[row, :count] * scale, kept_lags[row, :, :count].T / 2]),
            np.hstack([queries[row] * scale, lags[row] / 2]),
        )
        for metric, (held, query) in enumerate((plain, scaled)):
            distances, nearest = (
                NearestNeighbors(n_neighbors=min(NEIGHBOURS, count)).fit(held).kneighbors(query[None])
            )
            weights = 1 / (distances[0] / distances[0].mean() + 0.1)
            expected = (weights * labels[row, nearest[0]]).sum() / weights.sum()
            assert found[row, metric] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_sample_that_came_before_is_answered_by_the_labels_it_had() -> None:
    """Protects distances of zero, where the mean distance is zero too."""
    kept = np.zeros((1, 4, 2), np.float32)
    labels = np.array([[1.0, 1.0, 1.0, 1.0]], np.float32)
    found = neighbour_predictions(
        kept[:, 0],
        np.zeros((1, 2), np.float32),
        kept,
        np.zeros((1, 2, 4), np.float32),
        labels,
        np.array([4]),
        kept[:, 0],
    )
    assert found.tolist() == [[1.0, 1.0]]


def test_projection_keeps_distances() -> None:
    """Protects neighbours of wide inputs, and of narrow ones, which are left as they are."""
    rng = np.random.default_rng(7)
    one, other = rng.standard_normal((2, 200, 520))
    project = Projection(520, seed=3)
    ratios = np.linalg.norm(project(one) - project(other), axis=1) / np.linalg.norm(one - other, axis=1)
    assert abs(ratios.mean() - 1) < 0.05
    assert ratios.min() > 0.6
    assert ratios.max() < 1.4
    np.testing.assert_array_equal(Projection(16, seed=3)(one[:, :16]), one[:, :16])
    found = project.variances(np.ones((1, 520)))
    assert found[0].mean() == pytest.approx(np.var(project(rng.standard_normal((4000, 520)))), rel=0.1)


def test_the_posterior_is_bayes_rule() -> None:
    """Protects personal weights: densities of Gaussian noise of the best expert's variance, and likelihoods
    as they are."""
    errors = np.random.default_rng(8).standard_normal((20, 3)) * [0.1, 0.2, 0.12]
    losses, prior = np.square(errors).sum(axis=0), np.array([0.2, 0.5, 0.3])
    variance = losses.min() / 20
    densities = np.prod(np.exp(-np.square(errors) / (2 * variance)), axis=0) * prior
    weights = np.exp(log_posterior(losses[None], np.array([20.0]), np.log(prior), noisy=True))
    np.testing.assert_allclose(weights[0] / weights.sum(), densities / densities.sum())
    likelihoods = np.array([[0.9, 0.5, 0.7], [0.8, 0.6, 0.1]])
    weights = np.exp(
        log_posterior(-np.log(likelihoods).sum(axis=0)[None], np.array([2.0]), np.log(prior), noisy=False)
    )
    expected = likelihoods.prod(axis=0) * prior
    np.testing.assert_allclose(weights[0] / weights.sum(), expected / expected.sum())
    predictions = np.array([[1.0, 2.0, 4.0]])
    assert mixed(predictions, np.log(expected)[None])[0] == pytest.approx(
        (predictions @ expected)[0] / expected.sum()
    )


def test_no_loss_at_all_gives_finite_weights() -> None:
    """Protects constant labels, where the best expert has no noise."""
    weights = log_posterior(np.array([[0.0, 1e6]]), np.array([0.0]), np.zeros(2), noisy=True)
    assert np.isfinite(weights).all()
    assert weights[0, 0] - weights[0, 1] > 1e6


def test_the_ridge_without_a_leak_is_the_direct_solution() -> None:
    """Protects the correction of the mixture: (U'U + ridge I)^-1 U't, and the covariance that goes with it,
    client by client."""
    rng = np.random.default_rng(9)
    deviations, targets = rng.standard_normal((40, 2, 5)), rng.standard_normal((40, 2))
    weights, covariances = np.zeros((2, 5)), np.tile(np.eye(5) / 10.0, (2, 1, 1))
    for u, target in zip(deviations, targets, strict=True):
        weights, covariances = ridge_step(u, target, weights, covariances, 10.0, 0.0)
    for client in range(2):
        u = deviations[:, client]
        inverse = np.linalg.inv(u.T @ u + 10.0 * np.eye(5))
        np.testing.assert_allclose(covariances[client], inverse, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(weights[client], inverse @ u.T @ targets[:, client], rtol=1e-10)
        query = rng.standard_normal(5)
        change, _, _ = corrected(query[None], weights[client : client + 1], covariances[client : client + 1])
        assert change[0] == pytest.approx(weights[client] @ query / (1 + query @ inverse @ query))


@pytest.mark.long
def test_the_ridge_does_not_wind_up() -> None:
    """Protects clients that see the same for a long time: with a window Q would grow without end, and the
    first novelty explode."""
    deviations = np.array([[1.0, -1.0, 0.0, 0.0]])
    weights, covariances = np.zeros((1, 4)), np.eye(4)[None] / 10.0
    excited = np.random.default_rng(10).uniform(-3, 3, (1000, 1, 4))
    for number in range(100_000):
        u = excited[number] if number < 1000 else deviations
        weights, covariances = ridge_step(u, np.array([1.0]), weights, covariances, 10.0, 0.005)
        if number % 10_000 < 2:
            np.testing.assert_allclose(covariances, covariances.transpose(0, 2, 1), rtol=0, atol=1e-12)
            eigenvalues = np.linalg.eigvalsh(covariances[0])
            assert eigenvalues.min() >= -1e-12
            assert eigenvalues.max() <= 0.1 + 1e-12
    assert np.abs(weights).max() < 10
    assert (weights @ deviations.T).item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.long
@pytest.mark.parametrize("dimension", [16, 520])
def test_a_clients_state_is_below_64_kilobytes(dimension: int) -> None:
    """Protects workers that host a hundred thousand clients: everything that grows by the client, and the
    samples it remembers."""
    learner = DefaultLearner(
        features=ViewedFeatures(VIEWS, (0.35, 0.5, 0.7, 1.4, 2.8, 5.6), 4, dimension, seed=0),
        loss=SQUARE,
        seed=0,
    )

    def by_client() -> list[NDArray[Any]]:
        owners = [learner, *(part for part in vars(learner).values() if hasattr(part, "__dict__"))]
        arrays = [
            array for owner in owners for array in vars(owner).values() if isinstance(array, np.ndarray)
        ]
        return [array for array in arrays if array.ndim and len(array) >= 400]

    assert not by_client()
    rows = [learner.borrow() for _ in range(400)]
    assert sum(array.nbytes / len(array) for array in by_client()) <= LARGEST_STATE
    assert len(by_client()) >= 2
    kept: dict[bytes, int] = {}
    rng = np.random.default_rng(0)
    theta = np.zeros((learner.kernels, learner.row_length), np.float32)
    for _ in range(11):
        samples = batch(rows[0], rng.standard_normal((100, dimension)), rng.random(100))
        learner.predict_and_learn(samples, theta, np.zeros(learner.kernels))
        kept.update((key, len(value)) for key, value in learner.parts(rows[0]))
    ring = sum(size for key, size in kept.items() if key[:1] == b"k")
    snapshot = kept[b"s"]
    assert 10_000 < ring + snapshot <= LARGEST_STATE


def batch(row: int, inputs: NDArray[np.float64], labels: NDArray[np.float64]) -> Batch:
    """Samples of one client; a label that is no number is none."""
    labelled = np.isfinite(labels)
    return Batch(
        rows=np.array([row]),
        starts=np.array([0]),
        counts=np.array([len(labels)]),
        inputs=inputs,
        labels=np.where(labelled, labels, 0.0),
        labelled=labelled,
    )
