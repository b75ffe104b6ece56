"""Dense networks in NumPy: a party's function of its features, and the coordinator's of the embeddings.

u_0 = x;  u_l = sigma(u_(l-1) W_l + b_l) for the hidden layers;  h = u_(L-1) W_L + b_L    (VAFL, section 4)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import rng_for

__all__ = ["Activation", "DenseNetwork", "Differentiable", "Pass"]

Activation = Literal["relu", "tanh"]


class Pass(Protocol):
    """The result of a forward pass. ``outputs``: (records, output size)."""

    @property
    def outputs(self) -> NDArray[Any]: ...


class Differentiable(Protocol):
    """A function of inputs and parameters that can be learnt: the built-in networks, or a user's own model.

    It has no state of its own. Its parameters are one flat array.

    size: how many parameters there are.
    dtype: of the parameters.
    """

    @property
    def size(self) -> int: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def noise_units(self) -> int:
        """How many numbers of noise a forward pass takes per record; 0: none."""

    def initial(self, seed: int, *path: str | int) -> NDArray[Any]:
        """The first parameters, (size,), drawn from the stream (seed, path)."""

    def forward(
        self, parameters: NDArray[Any], inputs: NDArray[Any], noise: NDArray[Any] | None = None
    ) -> Any:
        """The forward pass over the inputs.

        inputs: (records, input size).
        noise: for a function that perturbs its hidden layers: uniform in [-1, 1], (records, noise_units).
        """

    def backward(self, parameters: NDArray[Any], done: Any, cotangents: NDArray[Any]) -> NDArray[Any]:
        """J' g summed over the records, (size,).

        parameters: those of the pass.
        done: the pass.
        cotangents: g, (records, output size).
        """

    def backward_each(
        self, parameters: NDArray[Any], done: Any, cotangents: NDArray[Any], norm: float
    ) -> NDArray[Any]:
        """The same sum, with each record's J' g clipped to the Euclidean ``norm`` before it is added.

        The sum is in double precision. In single precision, the rounding error of a long sum may be larger
        than one record's part."""


@dataclass(frozen=True, slots=True)
class DensePass:
    """``layers``: u_0 .. u_(L-1), the input of each layer, each (records, its size)."""

    layers: tuple[NDArray[Any], ...]
    outputs: NDArray[Any]


class DenseNetwork:
    """Dense layers with one activation between them. Without hidden layers it is a linear map.

    Its parameters are, in order: W_1 (sizes[0], sizes[1]) row by row, b_1, W_2, …

    sizes: of the inputs, the hidden layers and the outputs.
    activation: of the hidden layers.
    bias: whether layers have a bias.
    dtype: of the parameters.
    perturbation: c_l, the standard deviation of uniform noise inside the activations of hidden layers (VAFL,
        section 5). The noise is an argument of ``forward``.

    >>> network = DenseNetwork([2, 1], "relu", dtype=np.float64)
    >>> network.forward(np.array([1.0, 10.0, 0.5]), np.array([[2.0, 3.0]])).outputs
    array([[32.5]])
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: Activation = "relu",
        *,
        bias: bool = True,
        dtype: Any = np.float32,
        perturbation: float = 0.0,
    ) -> None:
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"sizes {list(sizes)}: at least an input and an output size from 1 are expected")
        self.sizes = tuple(sizes)
        self.activation = activation
        self.bias = bias
        self.dtype = dtype
        self.perturbation = perturbation
        self._slices: list[tuple[slice, slice]] = []
        end = 0
        for below, above in zip(self.sizes, self.sizes[1:], strict=False):
            weights = slice(end, end + below * above)
            end = weights.stop + (above if bias else 0)
            self._slices.append((weights, slice(weights.stop, end)))
        self.size = end

    @property
    def first_biases(self) -> slice:
        """The place of the first layer's biases among the parameters."""
        return self._slices[0][1]

    @property
    def noise_units(self) -> int:
        return sum(self.sizes[1:-1]) if self.perturbation else 0

    def initial(self, seed: int, *path: str | int) -> NDArray[Any]:
        """Weights uniform in +-sqrt(6 / (below + above)) (Glorot and Bengio 2010), biases 0; all 0 without
        hidden layers.

        A linear map needs no broken symmetry, and with parameters 0 its output is 0 until it has learnt.
        """
        parameters = np.zeros(self.size, self.dtype)
        if len(self.sizes) > 2:
            generator = rng_for(seed, "network", *path)
            for (weights, _), below, above in zip(self._slices, self.sizes, self.sizes[1:], strict=False):
                bound = math.sqrt(6.0 / (below + above))
                parameters[weights] = generator.uniform(-bound, bound, below * above)
        return parameters

    def forward(
        self, parameters: NDArray[Any], inputs: NDArray[Any], noise: NDArray[Any] | None = None
    ) -> DensePass:
        """The forward pass over the inputs.

        inputs: (records, sizes[0]).
        noise: (records, noise_units), uniform in [-1, 1]; it is scaled here by sqrt(3) c_l.
        """
        layers = [inputs]
        taken = 0
        for index, (weights, biases) in enumerate(self._slices):
            below, above = self.sizes[index : index + 2]
            values = layers[-1] @ parameters[weights].reshape(below, above)
            if self.bias:
                values += parameters[biases]
            if index == len(self._slices) - 1:
                return DensePass(tuple(layers), values)
            if noise is not None:
                values += (math.sqrt(3.0) * self.perturbation) * noise[:, taken : taken + above].astype(
                    values.dtype
                )
            taken += above
            layers.append(np.maximum(values, 0) if self.activation == "relu" else np.tanh(values))
        raise AssertionError("a network has a layer")

    def backward(self, parameters: NDArray[Any], done: DensePass, cotangents: NDArray[Any]) -> NDArray[Any]:
        gradient = np.empty(self.size, cotangents.dtype)
        for (weights, biases), below, deltas in self._deltas(parameters, done, cotangents):
            gradient[weights] = (below.T @ deltas).ravel()
            if self.bias:
                gradient[biases] = deltas.sum(axis=0)
        return gradient

    def backward_each(
        self, parameters: NDArray[Any], done: DensePass, cotangents: NDArray[Any], norm: float
    ) -> NDArray[Any]:
        # A record's gradient of W_l is the outer product u_(l-1) delta_l': its norm is the product of their
        # norms.
        layers = list(self._deltas(parameters, done, cotangents))
        squares = np.zeros(len(cotangents))
        for _, below, deltas in layers:
            inner = np.einsum("ij,ij->i", below, below, dtype=np.float64) + (1.0 if self.bias else 0.0)
            squares += np.einsum("ij,ij->i", deltas, deltas, dtype=np.float64) * inner
        finite = np.isfinite(squares)[:, np.newaxis]
        if not finite.all():
            # Infinity times 0 is NaN, and one record's NaN would spoil the whole sum.
            layers = [
                (place, np.where(finite, below, 0), np.where(finite, deltas, 0))
                for place, below, deltas in layers
            ]
            squares = np.where(finite[:, 0], squares, 0.0)
        shrink = np.minimum(1.0, norm / np.sqrt(np.maximum(squares, np.finfo(np.float64).tiny)))[
            :, np.newaxis
        ]
        gradient = np.empty(self.size)
        for (weights, biases), below, deltas in layers:
            clipped = deltas * shrink
            gradient[weights] = (below.T.astype(np.float64) @ clipped).ravel()
            if self.bias:
                gradient[biases] = clipped.sum(axis=0)
        return gradient

    def backward_inputs(
        self, parameters: NDArray[Any], done: DensePass, cotangents: NDArray[Any]
    ) -> NDArray[Any]:
        """d (sum of g . h) / d inputs, (records, sizes[0])."""
        deltas = cotangents
        for index in range(len(self._slices) - 1, -1, -1):
            deltas = self._through(parameters, index, done, deltas)
        return deltas

    def _deltas(self, parameters: NDArray[Any], done: DensePass, cotangents: NDArray[Any]) -> Any:
        """For each layer, last first: its slices, its inputs, and the derivatives by its values before the
        activation."""
        deltas = cotangents
        for index in range(len(self._slices) - 1, -1, -1):
            yield self._slices[index], done.layers[index], deltas
            if index:
                deltas = self._through(parameters, index, done, deltas)

    def _through(
        self, parameters: NDArray[Any], index: int, done: DensePass, deltas: NDArray[Any]
    ) -> NDArray[Any]:
        """From the derivatives by a layer's values to those by the values below it, before their
        activation."""
        below, above = self.sizes[index : index + 2]
        down: NDArray[Any] = deltas @ parameters[self._slices[index][0]].reshape(below, above).T
        if index:
            reached = done.layers[index]
            down *= (reached > 0) if self.activation == "relu" else 1 - reached * reached
        return down
