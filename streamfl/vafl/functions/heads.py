"""The coordinator's function of the embeddings, a sum or a network over all of them, and the losses of its
outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from streamfl.kernels import losses
from streamfl.kernels.losses import Loss
from streamfl.vafl.functions.networks import DenseNetwork

__all__ = ["LOGISTIC", "SQUARE", "Head", "NetworkHead", "OutputLoss", "SumHead", "softmax_loss"]

# First bias of a network's first hidden units.
FIRST_BIAS = 0.1


class Head(Protocol):
    """The function of theta_0 and all embeddings, for n entities and M parties.

    size: how many numbers theta_0 has.
    """

    @property
    def size(self) -> int: ...

    def initial(self, seed: int, *path: str | int) -> NDArray[Any]:
        """The first theta_0, (size,), drawn from the stream (seed, path)."""

    def forward(self, parameters: NDArray[Any], embeddings: NDArray[Any]) -> tuple[NDArray[Any], Any]:
        """From embeddings (n, M, embedding size): the outputs (n, outputs), and the values that
        :meth:`backward` needs."""

    def backward(
        self, parameters: NDArray[Any], done: Any, cotangents: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """From d l / d outputs, (n, outputs): d l / d theta_0 summed over the entities, and d l / d h, (n, M,
        embedding size)."""


class SumHead:
    """z_n = sum over m of h_nm, without parameters. Over linear embeddings it is linear, logistic or softmax
    regression."""

    size = 0

    def __init__(self, dtype: Any = np.float32) -> None:
        self._nothing = np.zeros(0, dtype)

    def initial(self, seed: int, *path: str | int) -> NDArray[Any]:
        return self._nothing.copy()

    def forward(self, parameters: NDArray[Any], embeddings: NDArray[Any]) -> tuple[NDArray[Any], Any]:
        return embeddings.sum(axis=1), embeddings.shape

    def backward(
        self, parameters: NDArray[Any], done: Any, cotangents: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._nothing, np.broadcast_to(cotangents[:, np.newaxis, :], done)


class NetworkHead:
    """A :class:`DenseNetwork` over the embeddings side by side, in the order of the parties."""

    def __init__(self, network: DenseNetwork) -> None:
        self._network = network
        self.size = network.size

    def initial(self, seed: int, *path: str | int) -> NDArray[Any]:
        """The network's first parameters, but never all 0, and with hidden units that pass a gradient where
        all embeddings are 0.

        Linear embeddings are 0 before the first step. There a relu without a bias has the slope 0, so no
        party would ever learn."""
        if len(self._network.sizes) > 2:
            parameters = self._network.initial(seed, "head", *path)
            parameters[self._network.first_biases] = FIRST_BIAS
            return parameters
        hidden = DenseNetwork([*self._network.sizes, 1], dtype=self._network.dtype)
        return hidden.initial(seed, "head", *path)[: self.size]

    def forward(self, parameters: NDArray[Any], embeddings: NDArray[Any]) -> tuple[NDArray[Any], Any]:
        done = self._network.forward(parameters, embeddings.reshape(len(embeddings), -1))
        return done.outputs, (done, embeddings.shape)

    def backward(
        self, parameters: NDArray[Any], done: Any, cotangents: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        passed, shape = done
        cotangents = cotangents.astype(self._network.dtype, copy=False)
        down = self._network.backward_inputs(parameters, passed, cotangents)
        return self._network.backward(parameters, passed, cotangents), down.reshape(shape)


@dataclass(frozen=True)
class OutputLoss:
    """A loss of the head's outputs.

    outputs: o, the number of outputs per entity.
    sensitivity: the largest Euclidean distance between the gradients of two labels; for the square loss, of
    labels from 0 to 1.
    gradient: from outputs (n, o) and labels (n,): d l / d outputs, (n, o).
    values: from outputs (n, o) and labels (n,): l, (n,).
    prediction: from outputs (n, o): the predictions; with the square loss in units of the label's range.
    """

    name: str
    outputs: int
    sensitivity: float
    gradient: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
    values: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
    prediction: Callable[[NDArray[Any]], NDArray[Any]]

    def accepts(self, label: float) -> bool:
        """Whether the label is valid for this loss."""
        return self.name == "square" or (label.is_integer() and 0 <= label < max(self.outputs, 2))


def _of_one_output(
    loss: Loss, sensitivity: float, prediction: Callable[[NDArray[Any]], NDArray[Any]]
) -> OutputLoss:
    return OutputLoss(
        loss.name,
        1,
        sensitivity,
        lambda outputs, labels: loss.gradient(outputs, labels[:, np.newaxis]),
        lambda outputs, labels: loss.value(outputs[:, 0], labels),
        lambda outputs: prediction(outputs[:, 0]),
    )


SQUARE = _of_one_output(losses.SQUARE, 2.0, np.asarray)
"""(z - y)^2, y in units of the label's range."""

LOGISTIC = _of_one_output(losses.LOGISTIC, 1.0, expit)
"""log(1 + exp(z)) - y z, y 0 or 1, in nats."""


def softmax_loss(classes: int) -> OutputLoss:
    """log(sum over c of exp(z_c)) - z_y, y one of 0 .. classes - 1, in nats."""

    def gradient(outputs: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
        probabilities = softmax(outputs, axis=1)
        probabilities[np.arange(len(labels)), labels.astype(np.intp)] -= 1
        return np.asarray(probabilities)

    def values(outputs: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
        chosen = outputs[np.arange(len(labels)), labels.astype(np.intp)]
        return np.asarray(np.logaddexp.reduce(outputs, axis=1) - chosen)

    return OutputLoss(
        "softmax",
        classes,
        math.sqrt(2),
        gradient,
        values,
        lambda outputs: np.asarray(softmax(outputs, axis=1)),
    )
