"""A client that no server answers goes on by itself: by the equation, remembered, and dropped whole by the
next version."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.contract.role import BadRecord
from streamfl.kernels import SQUARE
from streamfl.pofmkl.learning.client_journal import ChangedClientParts
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.learner import Batch
from streamfl.pofmkl.learning.own_steps import OWN_STEPS, RATE, OwnSteps
from streamfl.pofmkl.learning.views import ViewedFeatures

SAMPLES = 30


def learner() -> DefaultLearner:
    features = ViewedFeatures(("standardised", "centred-lags"), (0.7, 2.8), 8, 2, seed=3, dtype=np.float64)
    return DefaultLearner(features=features, loss=SQUARE, seed=3, detector="none")


def stream() -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(7)
    inputs = draws.normal(size=(SAMPLES, 2))
    return inputs, np.sin(inputs[:, 0]) + inputs[:, 1]


def one(row: int, inputs: np.ndarray, label: float) -> Batch:
    return Batch(
        np.array([row]), np.array([0]), np.array([1]), inputs[None], np.array([label]), np.array([True])
    )


@pytest.mark.parametrize("late", [False, True], ids=["labels with samples", "late labels"])
def test_steps_are_those_of_the_equation(late: bool) -> None:
    """Protects what is learnt alone: the same as a federation of one whose server takes normalised least mean
    squares steps."""
    own, reference = learner(), learner()
    row, other = own.borrow(), reference.borrow()
    assert own.own_steps is not None
    own.own_steps.begin(row)
    theta = np.random.default_rng(1).normal(size=(own.kernels, own.row_length)) * 0.1
    copy = theta.copy()
    norms = np.zeros(own.kernels)
    for x, y in zip(*stream(), strict=True):
        if late:
            kept = own.predict(np.array([row]), x[None], theta)
            kept_there = reference.predict(np.array([other]), x[None], copy)
            found = own.learn(np.array([row]), kept.encoded(), np.array([y]), theta, norms)
            expected = reference.learn(np.array([other]), kept_there.encoded(), np.array([y]), copy, norms)
        else:
            found = own.predict_and_learn(one(row, x, y), theta, norms)
            expected = reference.predict_and_learn(one(other, x, y), copy, norms)
        np.testing.assert_allclose(found.predictions, expected.predictions, rtol=1e-9)
        # h = y_n z, so that z z' = h h' / |h|^2, whatever the sign of z.
        kernels = np.arange(own.kernels)
        for kernel, h in enumerate(
            expected.steps(np.zeros(own.kernels, np.intp), kernels, np.ones(own.kernels))
        ):
            if h.any():
                copy[kernel] += RATE * (h - h * (h @ copy[kernel]) / (h @ h))
    assert np.abs(copy - theta).max() > 0.1


def test_a_new_version_drops_all_of_it() -> None:
    """Protects against steps that count twice: the server has, or will have, the same samples in the client's
    updates."""
    theta = np.zeros((learner().kernels, learner().row_length))
    made, other = learner(), learner()
    row = made.borrow()
    assert other.borrow() == row
    for one_of_them in (made, other):
        one_of_them.own_steps.begin(row)
        for x, y in zip(*stream(), strict=True):
            one_of_them.predict_and_learn(one(row, x, y), theta, np.zeros(made.kernels))
    remembered = dict(made.parts(row))
    assert len(remembered[OWN_STEPS]) == made.own_steps.state_bytes
    assert made.own_steps.end(row)
    assert dict(made.parts(row)) == {OWN_STEPS: b""}
    asked = np.array([row]), np.array([[0.3, 0.2]]), theta
    assert made.predict(*asked).predictions != other.predict(*asked).predictions
    assert not made.own_steps.end(row)
    assert len(made.own_steps) == 0


def test_what_cannot_be_steps_is_refused() -> None:
    """Protects a worker from a changelog that somebody else wrote into."""
    made = learner()
    row = made.borrow()
    size = made.own_steps.state_bytes
    for content in (
        b"\0" * (size - 1),
        np.full(size // 8, np.nan).tobytes(),
        np.full(size // 8, 1e8).tobytes(),
    ):
        with pytest.raises(BadRecord):
            made.restore_part(row, OWN_STEPS, content)
    made.restore_part(row, OWN_STEPS, b"")
    assert len(made.own_steps) == 0


def test_steps_of_zero_are_not_remembered() -> None:
    """Protects who restores a client whose model fitted its labels: steps of 0 stayed in the changelog when a
    new version came, and the restored client went on with steps of its own."""
    features, changed = ViewedFeatures(("standardised",), (0.7,), 4, 2, seed=3), ChangedClientParts()
    own_steps, views = OwnSteps(features, changed), [np.array([[0.5, -0.5]])]
    own_steps.begin(0)
    parameters = np.zeros((features.kernels, 2 * features.count))
    for target, kept in ((0.0, False), (0.5, True)):
        own_steps.learn(np.array([0]), views, parameters, np.array([target]))
        assert [(key, bool(value)) for key, value in changed.collect(0)] == [(OWN_STEPS, kept)]
    assert own_steps.end(0)
    assert [*changed.collect(0)] == [(OWN_STEPS, b"")]
