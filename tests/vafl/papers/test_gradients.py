"""VAFL against calculations of its own: finite differences, and gradient descent on the table that nobody
has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax

from streamfl.vafl.config import VaflSettings
from streamfl.vafl.functions.heads import LOGISTIC, SQUARE, NetworkHead, OutputLoss, SumHead, softmax_loss
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.privacy import BoundedOutput
from streamfl.vafl.tools.federation import VerticalFederation

GENERATOR = np.random.default_rng(4)


def numerical(function: Any, at: NDArray[Any]) -> NDArray[np.float64]:
    """Central differences of a scalar function of one array."""
    gradient = np.zeros(at.shape)
    for index in np.ndindex(at.shape):
        step = np.zeros(at.shape)
        step[index] = 1e-6
        gradient[index] = (function(at + step) - function(at - step)) / 2e-6
    return gradient


FUNCTIONS = {
    "linear": DenseNetwork([3, 2], dtype=np.float64),
    "linear without constant": DenseNetwork([3, 2], bias=False, dtype=np.float64),
    "relu": DenseNetwork([3, 5, 4, 2], "relu", dtype=np.float64),
    "tanh, perturbed": DenseNetwork([3, 5, 2], "tanh", dtype=np.float64, perturbation=0.3),
    "normalised": BoundedOutput(DenseNetwork([3, 5, 2], "tanh", dtype=np.float64), 1.5, normalise=True),
    "shortened": BoundedOutput(DenseNetwork([3, 5, 2], "tanh", dtype=np.float64), 0.7, normalise=False),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_party_learns_by_is_the_gradient(name: str) -> None:
    """Protects learning itself: J' g is the derivative of g . h by every parameter, and so are its parts
    clipped one by one."""
    function = FUNCTIONS[name]
    parameters = GENERATOR.normal(0, 0.7, function.size)
    inputs, cotangents = GENERATOR.normal(size=(6, 3)), GENERATOR.normal(size=(6, 2))
    noise = GENERATOR.uniform(-1, 1, (6, function.noise_units)) if function.noise_units else None

    def along(at: NDArray[Any], rows: slice = slice(None)) -> float:
        drawn = None if noise is None else noise[rows]
        return float((function.forward(at, inputs[rows], drawn).outputs * cotangents[rows]).sum())

    done = function.forward(parameters, inputs, noise)
    np.testing.assert_allclose(
        function.backward(parameters, done, cotangents), numerical(along, parameters), atol=1e-6
    )
    each = [numerical(lambda at, row=row: along(at, slice(row, row + 1)), parameters) for row in range(6)]
    norm = float(np.median([np.linalg.norm(one) for one in each]))
    clipped = sum(one * min(1.0, norm / np.linalg.norm(one)) for one in each)
    np.testing.assert_allclose(function.backward_each(parameters, done, cotangents, norm), clipped, atol=1e-5)


def test_embeddings_have_the_norm_that_privacy_counts_on() -> None:
    """Protects the privacy claim: no embedding is longer than C, in single precision too, and a normalised
    one is not shorter."""
    inputs = (
        GENERATOR.normal(size=(1000, 3)).astype(np.float32)
        * np.logspace(-6, 6, 1000, dtype=np.float32)[:, np.newaxis]
    )
    for normalise in (True, False):
        function = BoundedOutput(DenseNetwork([3, 4], dtype=np.float32), 2.0, normalise)
        parameters = GENERATOR.normal(size=function.size).astype(np.float32)
        norms = np.linalg.norm(function.forward(parameters, inputs).outputs.astype(np.float64), axis=1)
        assert norms.max() <= 2.0
        assert not normalise or norms.min() >= 2.0 * (1 - 1e-4)


HEADS = {
    "sum": SumHead(np.float64),
    "network": NetworkHead(DenseNetwork([6, 4, 2], "tanh", dtype=np.float64)),
}


@pytest.mark.parametrize("loss", [SQUARE, LOGISTIC, softmax_loss(2)], ids=lambda loss: loss.name)
@pytest.mark.parametrize("head", HEADS)
def test_what_the_coordinator_sends_is_the_gradient(head: str, loss: OutputLoss) -> None:
    """Protects parties from being led astray: what comes down is d l / d h, and what moves theta_0 is d l / d
    theta_0."""
    function = HEADS[head]
    if loss.outputs == 1:
        function = (
            SumHead(np.float64)
            if head == "sum"
            else NetworkHead(DenseNetwork([3, 4, 1], "tanh", dtype=np.float64))
        )
    parameters = GENERATOR.normal(size=function.size)
    embeddings = GENERATOR.normal(size=(5, 3, loss.outputs))
    labels = GENERATOR.integers(0, 2, 5).astype(float)

    def value(parameters: NDArray[Any], embeddings: NDArray[Any]) -> float:
        outputs = function.forward(parameters, embeddings)[0]
        if loss.name == "square":
            return float(((outputs[:, 0] - labels) ** 2).sum())
        if loss.name == "logistic":
            return float(
                -(labels * np.log(expit(outputs[:, 0])) + (1 - labels) * np.log(expit(-outputs[:, 0]))).sum()
            )
        return float(-np.log(softmax(outputs, axis=1)[np.arange(5), labels.astype(int)]).sum())

    outputs, done = function.forward(parameters, embeddings)
    assert float(loss.values(outputs, labels).sum()) == pytest.approx(value(parameters, embeddings))
    gradient, down = function.backward(parameters, done, loss.gradient(outputs, labels))
    np.testing.assert_allclose(down, numerical(lambda at: value(parameters, at), embeddings), atol=1e-6)
    np.testing.assert_allclose(gradient, numerical(lambda at: value(at, embeddings), parameters), atol=1e-6)


def settings(parties: int, loss: str, size: int, **learning: Any) -> VaflSettings:
    return VaflSettings(
        federation={  # type: ignore[arg-type]
            "name": "paper",
            "seed": 3,
            "parties": [f"p{number}" for number in range(parties)],
            "embedding_size": size,
            "precision": "float64",
        },
        role={"kind": "simulation"},  # type: ignore[arg-type]
        embedding={"standardise": False},  # type: ignore[arg-type]
        learning={"loss": loss, "classes": size if loss == "softmax" else None, **learning},  # type: ignore[arg-type]
        alignment={"quorum": parties, "keep": True},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("loss", ["square", "logistic", "softmax"])
def test_synchronous_learning_is_gradient_descent_on_the_joined_table(loss: str) -> None:
    """Protects the equations, the order of everything and the wire: with t = M and linear embeddings that are
    added up, every iterate is that of mini-batch gradient descent by whoever had the whole table.
    """
    entities, features, batch, epochs, classes = 120, (2, 3, 4), 8, 3, 3
    size = classes if loss == "softmax" else 1
    inputs = [GENERATOR.normal(size=(entities, count)) for count in features]
    joined = np.hstack([np.hstack([own, np.ones((entities, 1))]) for own in inputs])
    labels = GENERATOR.integers(0, 2 if loss == "logistic" else classes, entities).astype(float)
    chosen = settings(
        3,
        loss,
        size,
        optimiser="sgd",
        learning_rate=0.1,
        batch_size=batch,
        in_flight=batch,
        wait_for=3,
        regularisation=0.01,
    )
    federation = VerticalFederation(chosen, inputs, labels)
    federation.write_labels(range(entities))
    orders = [GENERATOR.permutation(entities) for _ in range(epochs)]
    theta = np.zeros((joined.shape[1], size))
    for order in orders:
        federation.replay([order] * 3)
        federation.run()
        for begin in range(0, entities, batch):
            rows = order[begin : begin + batch]
            outputs = joined[rows] @ theta
            if loss == "square":
                errors = 2 * (outputs - labels[rows, np.newaxis])
            elif loss == "logistic":
                errors = expit(outputs) - labels[rows, np.newaxis]
            else:
                errors = softmax(outputs, axis=1) - np.eye(classes)[labels[rows].astype(int)]
            theta = theta - 0.1 * (joined[rows].T @ errors / batch + 0.01 * theta)
        found = [party.role.parameters(0).reshape(-1, size) for party in federation.parties]
        np.testing.assert_allclose(np.vstack(found), theta, atol=1e-6)
    assert all(party.role._tasks[0].life.steps == epochs * entities // batch for party in federation.parties)  # type: ignore[union-attr]
    federation.close()
