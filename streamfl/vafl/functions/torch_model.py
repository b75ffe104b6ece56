"""A PyTorch module as a party's function. Needs the extra ``streamfl[torch]``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import ConfigurationError
from streamfl.contract.seeding import philox_key

__all__ = ["NOT_INSTALLED", "TorchModel", "TorchPass"]

NOT_INSTALLED = "PyTorch is not installed: pip install 'streamfl[torch]'"


@dataclass(frozen=True, slots=True)
class TorchPass:
    """A forward pass, in tensors.

    inputs: (records, inputs).
    weights: all parameters, flat.
    results: (records, output size), with their autograd graph from the weights.
    """

    inputs: Any
    weights: Any
    results: Any

    @property
    def outputs(self) -> NDArray[Any]:
        """(records, output size)."""
        return np.asarray(self.results.detach().numpy())


class TorchModel:
    """A :class:`~streamfl.vafl.functions.networks.Differentiable` from a ``torch.nn.Module``, on the CPU.

    The module is in evaluation mode, so dropout does nothing. All its parameters are learnt, in the order of
    ``module.parameters()``.

    make: makes the module, which maps (records, inputs) to (records, embedding size), each row by itself.
        PyTorch's generator is seeded before each call.
    precision: "float32" or "float64", as ``federation.precision``.
    threads: PyTorch's threads, in the whole process.

    Raises ConfigurationError if PyTorch is not installed, or if the module has no parameters. Also if it has
    buffers, as batch normalisation has: only a module's parameters are remembered.
    """

    noise_units = 0

    def __init__(self, make: Callable[[], Any], precision: str = "float32", *, threads: int = 1) -> None:
        try:
            import torch
        except ModuleNotFoundError:
            raise ConfigurationError(NOT_INSTALLED) from None
        torch.set_num_threads(threads)
        self.dtype = np.dtype(precision).type
        self._torch = torch
        self._make = make
        self._module = self._made(0)
        if buffers := [name for name, _ in self._module.named_buffers()]:
            raise ConfigurationError(
                f"a module without buffers is expected: {', '.join(buffers)} would not be remembered"
            )
        self._shapes = [(name, parameter.shape) for name, parameter in self._module.named_parameters()]
        self.size = sum(shape.numel() for _, shape in self._shapes)
        if not self.size:
            raise ConfigurationError("a module with parameters is expected: there is nothing to learn")

    def initial(self, seed: int, *path: str | int) -> NDArray[Any]:
        """The module's first parameters, (size,), with PyTorch's generator seeded by (seed, path)."""
        module = self._made(int(philox_key(seed, "torch", *path)[0] >> 1))
        return np.concatenate([parameter.detach().numpy().ravel() for parameter in module.parameters()])

    def forward(
        self, parameters: NDArray[Any], inputs: NDArray[Any], noise: NDArray[Any] | None = None
    ) -> TorchPass:
        # Copies: both may be read-only, or change before the backward pass.
        rows, weights = self._tensor(inputs), self._tensor(parameters).requires_grad_()
        return TorchPass(rows, weights, self._results(weights, rows))

    def backward(self, parameters: NDArray[Any], done: TorchPass, cotangents: NDArray[Any]) -> NDArray[Any]:
        (gradient,) = self._torch.autograd.grad(
            done.results, done.weights, self._tensor(cotangents), retain_graph=True
        )
        return np.asarray(gradient.numpy())

    def backward_each(
        self, parameters: NDArray[Any], done: TorchPass, cotangents: NDArray[Any], norm: float
    ) -> NDArray[Any]:
        total = np.zeros(self.size)
        for row, cotangent in zip(done.inputs, self._tensor(cotangents), strict=True):
            # One row at a time: memory and time do not grow with the square of the records, and rows cannot
            # mix.
            results = self._results(done.weights, row[None])
            (gradient,) = self._torch.autograd.grad(results, done.weights, cotangent[None])
            own = gradient.numpy().astype(np.float64)
            length = float(np.linalg.norm(own))
            if math.isfinite(length):
                total += own * min(1.0, norm / max(length, np.finfo(np.float64).tiny))
        return total

    def _made(self, seed: int) -> Any:
        with self._torch.random.fork_rng(devices=[]):
            self._torch.manual_seed(seed)
            return self._make().to(self._torch_dtype).eval()

    @property
    def _torch_dtype(self) -> Any:
        return getattr(self._torch, np.dtype(self.dtype).name)

    def _tensor(self, array: NDArray[Any]) -> Any:
        return self._torch.tensor(array, dtype=self._torch_dtype)

    def _results(self, weights: Any, rows: Any) -> Any:
        parts = weights.split([shape.numel() for _, shape in self._shapes])
        named = {name: part.view(shape) for (name, shape), part in zip(self._shapes, parts, strict=True)}
        return self._torch.func.functional_call(self._module, named, (rows,))
