"""Bounds and counts what a party's embeddings reveal about its features.

Two things that leave a party depend on a record's features. One is the record's own embeddings. The other is
the parameters learnt from the record, which shape every later embedding, of other records too. The Gaussian
mechanism makes both private (Dong, Roth and Su, "Gaussian Differential Privacy", 2022):

- an embedding of norm at most C with noise N(0, c^2 I) is (2C/c)-GDP for replacing the record;
- a step on a sum of gradients of norm at most S each, with noise N(0, (sigma S)^2 I), is (2/sigma)-GDP;
- m gradients of one record in one step move its sum by 2 m S against one noise, and cost as much as m^2
  steps;
- k releases compose to the root of the sum of their squared mu.

Which step a gradient falls into, and whether it comes at all, depends on the record too, but only through its
noisy embeddings: the coordinator computes replies from these. Given everything sent so far, the steps use the
same entities with either record, and their sums differ by what was counted. So composition holds (theorem 4
there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import rng_for
from streamfl.privacy.accountant import cost_of
from streamfl.privacy.keyed_noise import ROUNDING
from streamfl.vafl.functions.networks import Differentiable

__all__ = ["BoundedOutput", "Mechanism"]

# Shorter outputs have no meaningful direction, and a gradient divided by a smaller length overflows.
SHORTEST = 1e-12


class BoundedOutput:
    """A function with bounded outputs: C h / |h| if ``normalise``, h min(1, C / |h|) otherwise.

    An output that is not finite becomes 0 and passes no gradient: otherwise no noise could hide its record.

    inner: the function.
    norm: C.
    normalise: whether shorter outputs are lengthened too.
    """

    def __init__(self, inner: Differentiable, norm: float, normalise: bool) -> None:
        self._inner = inner
        self._norm = norm
        self._normalise = normalise
        self.size = inner.size
        self.dtype = inner.dtype
        self.noise_units = inner.noise_units

    def initial(self, seed: int, *path: str | int) -> NDArray[Any]:
        parameters = self._inner.initial(seed, *path)
        if self._normalise and not parameters.any():
            # 0 has no direction, and no gradient goes through it.
            parameters += rng_for(seed, "direction", *path).normal(0.0, 0.01, self.size).astype(self.dtype)
        return parameters

    def forward(
        self, parameters: NDArray[Any], inputs: NDArray[Any], noise: NDArray[Any] | None = None
    ) -> _BoundedPass:
        with np.errstate(over="ignore", invalid="ignore"):
            inner = self._inner.forward(parameters, inputs, noise)
            raw = inner.outputs.astype(np.float64)
            lengths = np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), SHORTEST)
        finite = np.isfinite(lengths)
        raw, lengths = np.where(finite, raw, 0.0), np.where(finite, lengths, 1.0)
        scale = self._norm / lengths
        if not self._normalise:
            scale = np.minimum(scale, 1.0)
        scale = np.where(finite, scale * (1 - ROUNDING), 0.0)
        return _BoundedPass(inner, (raw * scale).astype(self.dtype), raw / lengths, scale)

    def backward(
        self, parameters: NDArray[Any], done: _BoundedPass, cotangents: NDArray[Any]
    ) -> NDArray[Any]:
        return self._inner.backward(parameters, done.inner, self._inside(done, cotangents))

    def backward_each(
        self, parameters: NDArray[Any], done: _BoundedPass, cotangents: NDArray[Any], norm: float
    ) -> NDArray[Any]:
        return self._inner.backward_each(parameters, done.inner, self._inside(done, cotangents), norm)

    def _inside(self, done: _BoundedPass, cotangents: NDArray[Any]) -> NDArray[Any]:
        # Where the output was rescaled, a move along its direction has no effect.
        along = (done.directions * cotangents).sum(axis=1, keepdims=True) * done.directions
        changed = done.scale < 1 - 2 * ROUNDING if not self._normalise else np.ones_like(done.scale, bool)
        return np.asarray(done.scale * (cotangents - np.where(changed, along, 0.0)), dtype=cotangents.dtype)


@dataclass(frozen=True, slots=True)
class _BoundedPass:
    inner: Any
    outputs: NDArray[Any]
    directions: NDArray[np.float64]
    scale: NDArray[np.float64]


@dataclass(frozen=True)
class Mechanism:
    """A party's noise, and the privacy cost of its releases.

    Without noise on the steps the guarantee covers only a record's own embeddings.

    embedding_norm: C, bound of each embedding.
    embedding_noise: c, standard deviation of the noise on each embedding.
    gradient_norm: S, bound of each gradient in a step; None: steps have no noise.
    gradient_noise: sigma, standard deviation of the noise on a step's sum in units of S; None: steps have no
    noise.
    budget: mu that no record may exceed; None: no limit.
    secret: all noise is drawn from it.
    """

    embedding_norm: float
    embedding_noise: float
    gradient_norm: float | None
    gradient_noise: float | None
    budget: float | None
    secret: str

    @property
    def guarantees(self) -> bool:
        """Whether mu also covers what training leaks into later embeddings."""
        return self.gradient_noise is not None

    def cost(self, embeddings: int, steps: int) -> float:
        """mu^2 of releases of a record.

        embeddings: the number of its embeddings sent.
        steps: the number of steps taken on it; m of its gradients in one step count as m^2.

        >>> Mechanism(1.0, 4.0, 1.0, 4.0, None, "").cost(2, 2)
        1.0
        """
        square = embeddings * cost_of(2 * self.embedding_norm, self.embedding_noise)
        if self.gradient_noise is not None:
            square += steps * cost_of(2, self.gradient_noise)
        return square
