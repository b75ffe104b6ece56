"""Input that is legal and hostile to the default learner, and streams that are long or change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.kernels import LOGISTIC, SQUARE
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.learner import Batch
from streamfl.pofmkl.learning.recursive_least_squares import RecursiveLeastSquares
from streamfl.pofmkl.learning.views import VIEWS, ViewedFeatures

Floats = NDArray[np.float64]
Stream = tuple[Floats, Floats]
ROUNDS = 130


def plain(dimension: int = 3) -> Stream:
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((ROUNDS, dimension))
    return inputs, np.sin(inputs[:, 0])


def constant_labels() -> Stream:
    return plain()[0], np.full(ROUNDS, 0.7)


def alternating_labels() -> Stream:
    return plain()[0], 1000.0 * (-1.0) ** np.arange(ROUNDS)


def largest_inputs() -> Stream:
    return np.where(plain(1)[0] > 0, 9.9e17, -9.9e17), plain()[1]


def tiny_inputs() -> Stream:
    inputs, labels = plain()
    return inputs * [1e-20, 1e-160, 1e-22], labels


def jumping_column() -> Stream:
    inputs, labels = plain()
    inputs[ROUNDS // 2 :, 1] += 1e12
    return inputs, labels


def no_inputs() -> Stream:
    return np.zeros((ROUNDS, 2)), plain()[1]


def one_sample() -> Stream:
    inputs, labels = plain()
    return inputs[:1], labels[:1]


def labels_late() -> Stream:
    inputs, labels = plain()
    return inputs, np.where(np.arange(ROUNDS) < 100, np.nan, labels)


def wide_and_huge() -> Stream:
    inputs, labels = plain(60)
    return 1e16 * inputs / 60, labels


STREAMS: list[Callable[[], Stream]] = [
    constant_labels,
    alternating_labels,
    largest_inputs,
    tiny_inputs,
    jumping_column,
    no_inputs,
    one_sample,
    labels_late,
    wide_and_huge,
]


@pytest.mark.long
# Each stream in each precision would take twice the time; a batch is worth its samples by a law of its own.
@pytest.mark.parametrize(
    ("stream", "together", "precision"),
    [
        (stream, *((60, np.float32), (1, np.float64))[number % 4 == 3])
        for number, stream in enumerate(STREAMS)
    ],
)
def test_hostile_input_gives_finite_predictions(
    stream: Callable[[], Stream], together: int, precision: type
) -> None:
    """Protects users with odd data: no warning, no error, and numbers, with the labels as they are and as
    classes."""
    inputs, given = stream()
    for loss in (SQUARE, LOGISTIC):
        labels = given if loss is SQUARE else np.where(np.isnan(given), np.nan, (given > 0).astype(float))
        features = ViewedFeatures(VIEWS, (0.35, 2.8), 6, inputs.shape[1], seed=2, dtype=precision)
        learner = DefaultLearner(features=features, loss=loss, seed=2)
        server = RecursiveLeastSquares(learner.kernels, learner.row_length, dtype=precision)
        theta = np.zeros((learner.kernels, learner.row_length), precision)
        row = learner.borrow()
        every = np.arange(learner.kernels)
        largest = np.nanmax(np.abs(labels), initial=1.0)
        for start in range(0, len(inputs), together):
            some = labels[start : start + together]
            labelled = np.isfinite(some)
            batch = Batch(
                rows=np.array([row]),
                starts=np.array([0]),
                counts=np.array([len(some)]),
                inputs=inputs[start : start + together],
                labels=np.where(labelled, some, 0.0),
                labelled=labelled,
            )
            taken = learner.predict_and_learn(batch, theta, np.zeros(learner.kernels))
            assert np.isfinite(taken.predictions).all()
            assert np.isfinite(taken.scores).all()
            # A prediction leaves the range of the labels by that range at most.
            assert (np.abs(taken.predictions) <= 3 * largest).all()
            if loss is LOGISTIC:
                assert ((taken.predictions > 0) & (taken.predictions < 1)).all()
            assert np.isfinite(taken.log_weights_after).all()
            sent = np.repeat(np.flatnonzero(labelled), len(every))
            if len(sent):
                kernels = np.tile(every, labelled.sum())
                rows = taken.steps(sent, kernels, np.ones(len(sent)))
                assert (np.linalg.norm(rows, axis=1) <= 3.001).all()
                theta = server.apply(theta, kernels, rows).astype(precision)
        assert np.isfinite(theta).all()
        learnt = np.isfinite(labels).sum()
        assert learner.sums([row])[0, :2].tolist() == [len(inputs), learnt]
