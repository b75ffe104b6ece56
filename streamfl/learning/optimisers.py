"""First-order optimisers of an array of parameters, each with the state that has to be stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.encoding.changelog_checks import check_within

__all__ = [
    "LARGEST_GRADIENT",
    "AdaGrad",
    "Adam",
    "Optimiser",
    "OptimiserName",
    "Rows",
    "StochasticGradient",
    "finite_step",
    "optimiser_named",
]

OptimiserName = Literal["sgd", "sgd-decay", "adagrad", "adam"]
Rows = slice | NDArray[np.intp]
ALL = slice(None)
# Sums of squares of such gradients stay finite in double precision.
LARGEST_GRADIENT = 1e100
# Limit of sums of squares of such gradients, however many.
LARGEST_REMEMBERED = 1e220


class Optimiser(Protocol):
    """How parameters move along a gradient.

    learning_rate: eta; it may be changed between two steps.
    """

    learning_rate: float

    @property
    def arrays(self) -> Mapping[str, NDArray[np.float64]]:
        """The optimiser's state by name, each array of the parameters' shape. Restored in place."""

    def check(self, name: str, numbers: NDArray[np.float64]) -> None:
        """BadRecord if ``numbers`` cannot be the state's array ``name``."""

    def step(self, parameters: NDArray[Any], gradient: NDArray[Any], number: int, rows: Rows = ALL) -> None:
        """Move ``parameters`` in place, of any shape, at ``rows``: indices of their first axis, each at most
        once.

        gradient: of these rows.
        number: of this step, from 1.
        """


class _Remembers:
    """squares: names of its arrays that are sums or means of squares."""

    squares: tuple[str, ...] = ()

    def check(self, name: str, numbers: NDArray[np.float64]) -> None:
        check_within(numbers, 0.0 if name in self.squares else -LARGEST_REMEMBERED, LARGEST_REMEMBERED, name)


class StochasticGradient(_Remembers):
    """theta <- theta - eta g, or with ``decay`` theta <- theta - (eta / k) g at step k (VAFL, theorem 3)."""

    arrays: Mapping[str, NDArray[np.float64]] = {}

    def __init__(self, learning_rate: float, decay: bool = False) -> None:
        self.learning_rate = learning_rate
        self._decay = decay

    def step(self, parameters: NDArray[Any], gradient: NDArray[Any], number: int, rows: Rows = ALL) -> None:
        rate = self.learning_rate / number if self._decay else self.learning_rate
        parameters[rows] -= (rate * gradient).astype(parameters.dtype, copy=False)


class AdaGrad(_Remembers):
    """s <- s + g^2;  theta <- theta - eta g / (1e-8 + sqrt(s))   (Duchi, Hazan and Singer 2011, diagonal
    form, figure 1).

    shape: of the parameters.
    """

    squares = ("squares",)

    def __init__(self, learning_rate: float, shape: int | tuple[int, ...]) -> None:
        self.learning_rate = learning_rate
        self._squares = np.zeros(shape)
        self.arrays = {"squares": self._squares}

    def step(self, parameters: NDArray[Any], gradient: NDArray[Any], number: int, rows: Rows = ALL) -> None:
        self._squares[rows] += np.square(gradient, dtype=np.float64)
        # Without the 1e-8, a coordinate whose gradients were all 0 would be 0 / 0.
        moved = self.learning_rate * gradient / (1e-8 + np.sqrt(self._squares[rows]))
        parameters[rows] -= moved.astype(parameters.dtype, copy=False)


class Adam(_Remembers):
    """Kingma and Ba 2015, algorithm 1, with its own constants .9, .999 and 1e-8. shape: of the parameters."""

    squares = ("square",)

    def __init__(self, learning_rate: float, shape: int | tuple[int, ...]) -> None:
        self.learning_rate = learning_rate
        self._mean, self._square = np.zeros(shape), np.zeros(shape)
        self.arrays = {"mean": self._mean, "square": self._square}

    def step(self, parameters: NDArray[Any], gradient: NDArray[Any], number: int, rows: Rows = ALL) -> None:
        self._mean[rows] += 0.1 * (gradient - self._mean[rows])
        self._square[rows] += 0.001 * (np.square(gradient, dtype=np.float64) - self._square[rows])
        mean = self._mean[rows] / (1 - 0.9**number)
        root = np.sqrt(self._square[rows] / (1 - 0.999**number))
        parameters[rows] -= (self.learning_rate * mean / (root + 1e-8)).astype(parameters.dtype, copy=False)


def finite_step(optimiser: Optimiser, parameters: NDArray[Any], gradient: NDArray[Any], number: int) -> bool:
    """Take a step in place, and undo it if a parameter would become infinite. Returns whether it was taken.

    No step is taken if the gradient is not finite, or so large that the optimiser's state would not be
    finite.
    """
    if not float(np.abs(gradient).max(initial=0.0)) <= LARGEST_GRADIENT:
        return False
    before = parameters.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        optimiser.step(parameters, gradient, number)
    if math.isfinite(float(np.abs(parameters).sum(dtype=np.float64))):
        return True
    parameters[:] = before
    return False


def optimiser_named(name: OptimiserName, learning_rate: float, shape: int | tuple[int, ...]) -> Optimiser:
    """The optimiser that the configuration calls ``name``, for parameters of this shape."""
    if name == "adagrad":
        return AdaGrad(learning_rate, shape)
    if name == "adam":
        return Adam(learning_rate, shape)
    return StochasticGradient(learning_rate, decay=name == "sgd-decay")
