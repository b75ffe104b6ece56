"""VAFL against calculations of its own: finite differences, and gradient descent on the table that nobody
has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax

from streamfl.vafl.functions.heads import LOGISTIC, SQUARE, NetworkHead, OutputLoss, SumHead, softmax_loss
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.privacy import BoundedOutput

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
