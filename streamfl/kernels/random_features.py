"""Random Fourier features: shift-invariant kernels as inner products of short vectors (Rahimi & Recht 2007)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamfl.kernels.dictionary import Kernel
from streamfl.seeding import cauchy, normal

__all__ = ["FeatureMap", "frequencies", "random_features"]

# Phases of this many rows stay in the processor's second-level cache between the product, the sine, the cosine and the
# sums (51 kernels of 100 float32 features: 0.65 MB an array). Larger blocks cost memory and gain nothing.
BLOCK_ROWS = 32


def frequencies(
    kernels: Sequence[Kernel],
    count: int,
    dimension: int,
    seed: int,
    dtype: DTypeLike = np.float32,
    shared_directions: bool = False,
) -> NDArray[Any]:
    """Draw the frequencies of every kernel from its spectral density.

    Kernel i reads stream (seed, "frequencies", i) of :mod:`streamfl.seeding` row by row; with ``shared_directions`` it
    reads the stream of the first kernel that has its family and smoothness, so that such kernels differ by the factor
    1 / bandwidth alone.
    A row omega of ``dimension`` entries, with sigma the bandwidth:

    - gaussian: ``dimension`` normals, divided by sigma;
    - laplacian: ``dimension`` Cauchy variables, divided by sigma;
    - matern: ``dimension`` normals, then 2 nu more whose mean square is s; the former divided by sigma sqrt(s)
      (Student's t with 2 nu degrees of freedom).

    They are computed in float64 and rounded to ``dtype`` once, at the end.

    Returns (kernels, count, dimension). Source: POF-MKL, section 2; Rahimi & Recht 2007, theorem 1.

    >>> frequencies([Kernel("gaussian", 0.5)], 100, 3, seed=7).shape
    (1, 100, 3)
    """
    result = np.empty((len(kernels), count, dimension), dtype=dtype)
    first_of_kind: dict[tuple[str, float | None], int] = {}
    for i, kernel in enumerate(kernels):
        first = first_of_kind.setdefault((kernel.family, kernel.smoothness), i)
        stream = first if shared_directions else i
        result[i] = _unit_frequencies(kernel, count, dimension, seed, stream) / kernel.bandwidth
    return result


def random_features(inputs: NDArray[Any], frequencies: NDArray[Any]) -> NDArray[Any]:
    """Map inputs to the random Fourier features of every kernel.

    z_i(x) = D**-0.5 [sin(Omega_i x); cos(Omega_i x)]   (POF-MKL, eq. 4)

    Parameters: inputs (samples, dimension); frequencies (kernels, D, dimension).
    Returns (samples, kernels, 2 D) of the frequencies' dtype, every (sample, kernel) row of unit norm.
    Raises ValueError where the dimensions differ.
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

    One object serves one thread: calls share its buffers.
    """

    def __init__(self, frequencies: NDArray[Any]) -> None:
        self.kernels, self.count, self.dimension = frequencies.shape
        self.frequencies = np.ascontiguousarray(frequencies)
        self.dtype = self.frequencies.dtype
        self._by_input = np.ascontiguousarray(self.frequencies.reshape(self.kernels * self.count, self.dimension).T)
        self._scale = self.dtype.type(self.count**-0.5)
        # One extra array instead of two: the cosines overwrite the phases they are taken of.
        self._phases = np.empty((BLOCK_ROWS, self.kernels * self.count), dtype=self.dtype)
        self._sines = np.empty_like(self._phases)

    def predict(self, inputs: NDArray[Any], parameters: NDArray[Any]) -> NDArray[Any]:
        """What each kernel alone predicts for each sample.

        f_i(x) = theta_i . z_i(x)   (POF-MKL, eq. 6)

        Parameters: inputs (samples, dimension); parameters (kernels, 2 D), sines first, one set for all samples.
        Returns (samples, kernels). Memory beyond it does not grow with the samples.
        Raises ValueError where the shapes do not fit.
        """
        if parameters.shape != (self.kernels, 2 * self.count):
            raise ValueError(f"parameters have shape {parameters.shape}, not {(self.kernels, 2 * self.count)}")
        inputs = self._checked(inputs)
        parameters = np.asarray(parameters, dtype=self.dtype)
        of_sines, of_cosines = parameters[:, : self.count], parameters[:, self.count :]
        result = np.empty((len(inputs), self.kernels), dtype=self.dtype)
        for start in range(0, len(inputs), BLOCK_ROWS):
            block = inputs[start : start + BLOCK_ROWS]
            phases, sines = self._phases[: len(block)], self._sines[: len(block)]
            np.matmul(block, self._by_input, out=phases)
            np.sin(phases, out=sines)
            cosines = np.cos(phases, out=phases)
            shape = (len(block), self.kernels, self.count)
            out = result[start : start + BLOCK_ROWS]
            np.einsum("bnd,nd->bn", sines.reshape(shape), of_sines, out=out)
            out += np.einsum("bnd,nd->bn", cosines.reshape(shape), of_cosines)
        result *= self._scale
        return result

    def rows(self, inputs: NDArray[Any], kernels: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """The features of one kernel for each input: row r is z_kernels[r](inputs[r])   (POF-MKL, eq. 4).

        Parameters: inputs (rows, dimension); kernels (rows,), numbers from 0. Returns (rows, 2 D), each of unit norm.
        Raises ValueError where the shapes do not fit, IndexError for a kernel that the dictionary does not have.
        """
        inputs = self._checked(inputs)
        if kernels.shape != (len(inputs),):
            raise ValueError(f"{len(inputs)} inputs need as many kernel numbers, not an array of shape {kernels.shape}")
        features = np.empty((len(inputs), 2 * self.count), dtype=self.dtype)
        for start in range(0, len(inputs), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            phases = np.matmul(self.frequencies[kernels[block]], inputs[block, :, None])[..., 0]
            np.sin(phases, out=features[block, : self.count])
            np.cos(phases, out=features[block, self.count :])
        features *= self._scale
        return features

    def _checked(self, inputs: NDArray[Any]) -> NDArray[Any]:
        inputs = np.ascontiguousarray(inputs, dtype=self.dtype)
        if inputs.ndim != 2 or inputs.shape[1] != self.dimension:
            raise ValueError(f"inputs have shape {inputs.shape}, not (samples, {self.dimension})")
        return inputs


def _unit_frequencies(kernel: Kernel, count: int, dimension: int, seed: int, stream: int) -> NDArray[np.float64]:
    path = ("frequencies", stream)
    if kernel.family == "laplacian":
        return cauchy(count * dimension, seed, *path).reshape(count, dimension)
    if kernel.smoothness is None:
        return normal(count * dimension, seed, *path).reshape(count, dimension)
    degrees = int(2 * kernel.smoothness)
    draws = normal(count * (dimension + degrees), seed, *path).reshape(count, dimension + degrees)
    mean_square = np.mean(draws[:, dimension:] ** 2, axis=1, keepdims=True)
    return np.asarray(draws[:, :dimension] / np.sqrt(mean_square), dtype=np.float64)
