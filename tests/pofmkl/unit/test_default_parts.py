"""The parts of the default learner, each alone, against what numpy, scikit-learn or a direct solution say."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from streamfl.learning.online_scaling import moments_with
from streamfl.pofmkl.learning.mixture import corrected, ridge_step
from streamfl.pofmkl.learning.neighbours import NEIGHBOURS, Projection, neighbour_predictions


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


@pytest.mark.long
def test_the_ridge_does_not_wind_up() -> None:
    """Protects clients that see the same for a long time: with a window Q would grow without end, and the
    first novelty explode."""
    deviations = np.array([[1.0, -1.0, 0.0, 0.0]])
    weights, covariances = np.zeros((1, 4)), np.eye(4)[None] / 10.0
    excited = np.random.default_rng(10).uniform(-3, 3, (1000, 1, 4))
    for number in range(20_000):
        u = excited[number] if number < 1000 else deviations
        weights, covariances = ridge_step(u, np.array([1.0]), weights, covariances, 10.0, 0.005)
        if number % 5_000 < 2:
            np.testing.assert_allclose(covariances, covariances.transpose(0, 2, 1), rtol=0, atol=1e-12)
            eigenvalues = np.linalg.eigvalsh(covariances[0])
            assert eigenvalues.min() >= -1e-12
            assert eigenvalues.max() <= 0.1 + 1e-12
    assert np.abs(weights).max() < 10
    assert (weights @ deviations.T).item() == pytest.approx(1.0, abs=0.05)


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
