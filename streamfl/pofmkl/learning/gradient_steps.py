"""Server steps along the gradient of each target row's squared error (see server_steps)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import decode_restored
from streamfl.encoding.wire import decode_array, encode_array
from streamfl.learning import optimisers
from streamfl.learning.optimisers import Optimiser
from streamfl.pofmkl.learning.step_rows import LARGEST_TARGET_NORM, samples_of

__all__ = ["AdaGradStep", "StochasticGradientStep"]


class _GradientStep:
    """Applies target rows one by one: an optimiser follows the gradient g = z (z' theta) - h of each row's
    squared error.

    The optimiser may hold arrays of (2 D,) numbers per kernel. Each commit remembers those of the kernels
    that changed."""

    largest_norm: float | None = LARGEST_TARGET_NORM
    shortened = 0

    def __init__(self, optimiser: Optimiser) -> None:
        self._optimiser = optimiser
        self._changed: set[int] = set()

    def apply(
        self, parameters: NDArray[Any], kernels: NDArray[np.intp], rows: NDArray[Any]
    ) -> NDArray[np.float64]:
        theta = parameters.astype(np.float64)
        kernels, rows, units, targets = samples_of(kernels, rows)
        for turn in _turns(kernels):
            chosen = kernels[turn]
            # No rate here depends on the step's number.
            self._optimiser.step(theta, _gradients(theta[chosen], units[turn], targets[turn]), 1, chosen)
        if self._optimiser.arrays:
            self._changed.update(kernels.tolist())
        return theta

    def changed_state(self) -> Iterable[tuple[bytes, bytes | None]]:
        for kernel in sorted(self._changed):
            for name, array in self._optimiser.arrays.items():
                remembered = _Remembered(kernel, encode_array(array[kernel]))
                yield b"%s/%d" % (name.encode(), kernel), msgspec.msgpack.encode(remembered)
        self._changed = set()

    def restore(self, key: bytes, value: bytes) -> None:
        name = key.partition(b"/")[0].decode(errors="replace")
        array = self._optimiser.arrays.get(name)
        if array is None:
            raise BadRecord("malformed", f"step state {key!r}: {type(self).__name__} has none of this name")
        remembered = decode_restored(value, _Remembered, f"step state {key!r}")
        kernels, row_length = array.shape
        if not 0 <= remembered.kernel < kernels or key != b"%s/%d" % (name.encode(), remembered.kernel):
            raise BadRecord(
                "malformed",
                f"step state {key!r} is of kernel {remembered.kernel}, there are 0 to {kernels - 1}",
            )
        numbers = decode_array(remembered.numbers, np.float64, (row_length,), name)
        self._optimiser.check(name, numbers)
        array[remembered.kernel] = numbers


class StochasticGradientStep(_GradientStep):
    """A gradient step of the squared error for each target row: theta <- theta - rate (z (z' theta) - h).

    Since |z| = 1, this is normalised least mean squares (Widrow and Hoff 1960): stable for rates below 2.
    """

    def __init__(self, learning_rate: float) -> None:
        super().__init__(optimisers.StochasticGradient(learning_rate))


class AdaGradStep(_GradientStep):
    """The same gradients, with each coordinate divided by the root of its sum of squares so far; see the
    optimiser."""

    def __init__(self, kernels: int, row_length: int, learning_rate: float) -> None:
        super().__init__(optimisers.AdaGrad(learning_rate, (kernels, row_length)))


class _Remembered(msgspec.Struct, array_like=True):
    """One kernel's row of an array that an optimiser keeps."""

    kernel: int
    numbers: bytes


def _gradients(theta: NDArray[np.float64], units: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.float64]:
    residuals = np.einsum("ij,ij->i", units, theta) - targets
    gradients: NDArray[np.float64] = residuals[:, np.newaxis] * units
    return gradients


def _turns(kernels: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Row numbers in groups that hold each kernel at most once; a kernel's rows keep their order from group
    to group."""
    order = np.argsort(kernels, kind="stable")
    grouped = kernels[order]
    turn = np.arange(len(grouped)) - np.searchsorted(grouped, grouped)
    return np.split(order[np.argsort(turn, kind="stable")], np.cumsum(np.bincount(turn))[:-1])
