"""Random Fourier features: shift-invariant kernels as inner products of short vectors (Rahimi & Recht
2007)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamfl.contract.role import ConfigurationError
from streamfl.contract.seeding import cauchy, normal
from streamfl.kernels.dictionary import Kernel

__all__ = ["FeatureMap", "frequencies", "random_features"]

# Phases of this many rows stay in the processor's caches between the product, the sine and the sums (51
# kernels of 100 float32 frequencies: 0.65 MB). Larger blocks cost memory and gain nothing.
BLOCK_ROWS = 32
# For fewer rows, computing amplitudes and phases of new parameters takes longer than the cosines that they
# save.
FEW_ROWS = 16
# Multiplied by the largest accepted input it is still finite in single precision.
LARGEST_FREQUENCY = 1e18


def frequencies(
    kernels: Sequence[Kernel],
    count: int,
    dimension: int,
    seed: int,
    dtype: DTypeLike = np.float32,
    shared_directions: bool = False,
) -> NDArray[Any]:
    """Draw the frequencies of every kernel from its spectral density.

    Kernel i reads stream (seed, "frequencies", i) of :mod:`streamfl.contract.seeding` row by row; with
    ``shared_directions`` it reads the stream of the first kernel that has its family and smoothness, so that
    such kernels differ by the factor
    1 / bandwidth alone.
    A row omega of ``dimension`` entries, with sigma the bandwidth:

    - gaussian: ``dimension`` normals, divided by sigma;
    - laplacian: ``dimension`` Cauchy variables, divided by sigma;
    - matern: ``dimension`` normals, then 2 nu more whose mean square is s; the former divided by sigma
      sqrt(s)
      (Student's t with 2 nu degrees of freedom).

    They are computed in float64 and rounded to ``dtype`` once, at the end.

    ConfigurationError if a bandwidth is so small that phases could exceed single precision.

    Returns (kernels, count, dimension). Source: POF-MKL, section 2; Rahimi & Recht 2007, theorem 1.

    >>> frequencies([Kernel("gaussian", 0.5)], 100, 3, seed=7).shape
    (1, 100, 3)
    """
    result = np.empty((len(kernels), count, dimension), dtype=dtype)
    first_of_kind = _first_of_kind(kernels)
    for i, kernel in enumerate(kernels):
        stream = first_of_kind[i] if shared_directions else i
        with np.errstate(over="ignore"):
            drawn = _unit_frequencies(kernel, count, dimension, seed, stream) / kernel.bandwidth
        if not np.abs(drawn).max(initial=0.0) <= LARGEST_FREQUENCY:
            raise ConfigurationError(
                f"kernels.bandwidths: {kernel.bandwidth:g} is too small, its frequencies exceed "
                f"{LARGEST_FREQUENCY:g}; bandwidths are in units of the inputs after samples.input_norm"
            )
        result[i] = drawn
    return result


def random_features(inputs: NDArray[Any], frequencies: NDArray[Any]) -> NDArray[Any]:
    """Map inputs to the random Fourier features of every kernel.

    z_i(x) = D**-0.5 [sin(Omega_i x); cos(Omega_i x)]   (POF-MKL, eq. 4)

    Parameters: inputs (samples, dimension); frequencies (kernels, D, dimension).
    Returns (samples, kernels, 2 D) of the frequencies' dtype, every (sample, kernel) row of unit norm.
    Raises ValueError if the dimensions differ.
    """
    kernels, count, dimension = frequencies.shape
    phases = np.asarray(inputs, dtype=frequencies.dtype) @ frequencies.reshape(kernels * count, dimension).T
    phases = phases.reshape(-1, kernels, count)
    features = np.empty((len(phases), kernels, 2 * count), dtype=frequencies.dtype)
    np.sin(phases, out=features[..., :count])
    np.cos(phases, out=features[..., count:])
    features *= count**-0.5
    return features


class FeatureMap:
    """The features of one dictionary, applied to many samples without ever holding them all.

    Parameters: frequencies (kernels, D, dimension), float32 or float64; everything is computed in that dtype.
    ``shared_by``: the dictionary, where they were drawn with ``shared_directions``. Phases are then computed
    for the first kernel of a family and smoothness and multiplied for the others; predictions are the same
    but for rounding.
    Raises ValueError if the frequencies of ``shared_by`` do not differ by 1 / bandwidth alone.

    One object serves one thread: calls share its buffers.
    """

    def __init__(self, frequencies: NDArray[Any], shared_by: Sequence[Kernel] | None = None) -> None:
        self.kernels, self.count, self.dimension = frequencies.shape
        self.frequencies = np.ascontiguousarray(frequencies)
        self.dtype = self.frequencies.dtype
        self._shared = None if shared_by is None else _Shared(self.frequencies, shared_by)
        self._scale = self.dtype.type(self.count**-0.5)
        self._phases = np.empty((BLOCK_ROWS, self.kernels * self.count), dtype=self.dtype)
        # A one follows each input, and the parameters' phases follow the frequencies, so that the product
        # adds them at no cost.
        self._block = np.ones((BLOCK_ROWS, self.dimension + 1), dtype=self.dtype)
        self._by_input = np.empty((self.dimension + 1, self.kernels * self.count), dtype=self.dtype)
        self._by_input[:-1] = self.frequencies.reshape(self.kernels * self.count, self.dimension).T
        self._amplitudes = np.empty((self.kernels, self.count), dtype=self.dtype)
        self._prepared_for = b""

    def predict(self, inputs: NDArray[Any], parameters: NDArray[Any]) -> NDArray[Any]:
        """What each kernel alone predicts for each sample.

        f_i(x) = theta_i . z_i(x)   (POF-MKL, eq. 6), computed as sum_j r_ij sin(omega_ij . x + phi_ij) where
        r and phi are the amplitude and the phase of a sin + b cos: one sine for a sine and a cosine.

        Parameters: inputs (samples, dimension); parameters (kernels, 2 D), sines first, one set for all
        samples.
        Returns (samples, kernels). Memory beyond it does not grow with the samples.
        Raises ValueError if the shapes do not fit.
        """
        if parameters.shape != (self.kernels, 2 * self.count):
            raise ValueError(
                f"parameters have shape {parameters.shape}, not {(self.kernels, 2 * self.count)}"
            )
        inputs = self._checked(inputs)
        parameters = np.asarray(parameters, dtype=self.dtype)
        if len(inputs) < FEW_ROWS:
            return np.asarray(np.einsum("bnd,nd->bn", random_features(inputs, self.frequencies), parameters))
        self._prepare(parameters)
        result = np.empty((len(inputs), self.kernels), dtype=self.dtype)
        for start in range(0, len(inputs), BLOCK_ROWS):
            rows = inputs[start : start + BLOCK_ROWS]
            phases = self._phases[: len(rows)]
            by_kernel = phases.reshape(len(rows), self.kernels, self.count)
            if self._shared is None:
                block = self._block[: len(rows)]
                block[:, :-1] = rows
                np.matmul(block, self._by_input, out=phases)
            else:
                self._shared.phases(rows, out=by_kernel)
                phases += self._by_input[-1]
            np.sin(phases, out=phases)
            np.einsum("bnd,nd->bn", by_kernel, self._amplitudes, out=result[start : start + BLOCK_ROWS])
        return result

    def phases(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Omega_i x of every kernel for a few samples: inputs (samples, dimension) to (samples, kernels
        D)."""
        return np.asarray(inputs @ self._by_input[:-1])

    def rows(self, inputs: NDArray[Any], kernels: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """The features of one kernel for each input: row r is z_kernels[r](inputs[r])   (POF-MKL, eq. 4).

        Parameters: inputs (rows, dimension); kernels (rows,), numbers from 0. Returns (rows, 2 D), each of
        unit norm. Raises ValueError if the shapes do not fit, IndexError for a kernel that the dictionary
        does not have.
        """
        inputs = self._checked(inputs)
        if kernels.shape != (len(inputs),):
            raise ValueError(
                f"{len(inputs)} inputs need as many kernel numbers, not an array of shape {kernels.shape}"
            )
        features = np.empty((len(inputs), 2 * self.count), dtype=self.dtype)
        for start in range(0, len(inputs), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            if self._shared is None:
                phases = np.matmul(self.frequencies[kernels[block]], inputs[block, :, None])[..., 0]
            else:
                phases = self._shared.rows(inputs[block], kernels[block])
            np.sin(phases, out=features[block, : self.count])
            np.cos(phases, out=features[block, self.count :])
        features *= self._scale
        return features

    def _prepare(self, parameters: NDArray[Any]) -> None:
        # Compared by contents, because the owner of the array changes it in place.
        contents = parameters.tobytes()
        if contents == self._prepared_for:
            return
        of_sines, of_cosines = parameters[:, : self.count], parameters[:, self.count :]
        # r may be negative, so that phi is within a quarter turn of zero, where rounding is smaller.
        sign = np.where(of_sines < 0, -1.0, 1.0)
        self._amplitudes[:] = sign * np.hypot(of_sines, of_cosines, dtype=np.float64) * self.count**-0.5
        self._by_input[-1] = np.arctan2(sign * of_cosines, sign * of_sines).ravel()
        self._prepared_for = contents

    def _checked(self, inputs: NDArray[Any]) -> NDArray[Any]:
        inputs = np.ascontiguousarray(inputs, dtype=self.dtype)
        if inputs.ndim != 2 or inputs.shape[1] != self.dimension:
            raise ValueError(f"inputs have shape {inputs.shape}, not (samples, {self.dimension})")
        return inputs


class _Shared:
    """Frequencies (kernels, D, dimension), held as those of each family's and smoothness' first kernel and a
    factor per kernel."""

    def __init__(self, frequencies: NDArray[Any], kernels: Sequence[Kernel]) -> None:
        first_of_kind = _first_of_kind(kernels)
        firsts, self.kind_of = np.unique(first_of_kind, return_inverse=True)
        bandwidths = np.array([kernel.bandwidth for kernel in kernels])
        self.factors = (bandwidths[first_of_kind] / bandwidths)[:, None].astype(frequencies.dtype)
        computed = self.factors[..., None] * frequencies[first_of_kind]
        if not np.allclose(computed, frequencies, rtol=8 * np.finfo(frequencies.dtype).eps, atol=0):
            raise ValueError("the frequencies were not drawn for these kernels with shared directions")
        _, self.count, dimension = frequencies.shape
        self.by_input = np.ascontiguousarray(frequencies[firsts].reshape(-1, dimension).T)

    def phases(self, inputs: NDArray[Any], out: NDArray[Any]) -> None:
        """The phases Omega_i x of every kernel i into out (samples, kernels, D)."""
        # "clip", because with "raise" NumPy goes through a buffer.
        np.take(self._of_kinds(inputs), self.kind_of, axis=1, out=out, mode="clip")
        out *= self.factors

    def rows(self, inputs: NDArray[Any], kernels: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Omega_kernels[r] inputs[r], (rows, D)."""
        of_kind = self._of_kinds(inputs)[np.arange(len(inputs)), self.kind_of[kernels]]
        return np.asarray(of_kind * self.factors[kernels])

    def _of_kinds(self, inputs: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(inputs @ self.by_input).reshape(len(inputs), -1, self.count)


def _first_of_kind(kernels: Sequence[Kernel]) -> list[int]:
    first: dict[tuple[str, float | None], int] = {}
    return [first.setdefault((kernel.family, kernel.smoothness), i) for i, kernel in enumerate(kernels)]


def _unit_frequencies(
    kernel: Kernel, count: int, dimension: int, seed: int, stream: int
) -> NDArray[np.float64]:
    path = ("frequencies", stream)
    if kernel.family == "laplacian":
        return cauchy(count * dimension, seed, *path).reshape(count, dimension)
    if kernel.smoothness is None:
        return normal(count * dimension, seed, *path).reshape(count, dimension)
    degrees = int(2 * kernel.smoothness)
    draws = normal(count * (dimension + degrees), seed, *path).reshape(count, dimension + degrees)
    mean_square = np.mean(draws[:, dimension:] ** 2, axis=1, keepdims=True)
    return np.asarray(draws[:, :dimension] / np.sqrt(mean_square), dtype=np.float64)
