"""What a party's embeddings tell about its features, bounded and counted.

Two things leave a party that depend on a record's features. One are its own embeddings. The other are the parameters that were
learnt from the record, which shape every later embedding, of other records too. Both are made private by the Gaussian mechanism
(Dong, Roth and Su, "Gaussian Differential Privacy", 2022):

- an embedding of norm at most C with noise N(0, c^2 I) is (2C/c)-GDP for replacing the record;
- a step on a sum of gradients of norm at most S each, with noise N(0, (sigma S)^2 I), is (2/sigma)-GDP;
- m gradients of one record in one step move its sum by 2 m S against one noise, and cost what m^2 steps do;
- k of these compose to the root of the sum of their squares.

Which step a gradient falls into, and whether it comes at all, depends on the record too. It does so only through what was sent of
it, because replies are made of noisy embeddings. Given everything sent so far, the steps are of the same entities with either
record, and their sums differ by what was counted. So composition holds (theorem 4 there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.privacy.accountant import cost_of
from streamfl.privacy.keyed_noise import ROUNDING
from streamfl.seeding import rng_for
from streamfl.vafl.networks import Differentiable

__all__ = ["BoundedOutput", "Mechanism"]

# Shorter outputs have no meaningful direction, and a gradient divided by a smaller length overflows.
SHORTEST = 1e-12


class BoundedOutput:
    """A function whose outputs are brought to a norm: C h / |h| if ``normalise``, h min(1, C / |h|) otherwise.

    An output that is not finite becomes 0, and no gradient goes through it: it would tell of its record whatever the noise.

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

    def forward(self, parameters: NDArray[Any], inputs: NDArray[Any], noise: NDArray[Any] | None = None) -> _BoundedPass:
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

    def backward(self, parameters: NDArray[Any], done: _BoundedPass, cotangents: NDArray[Any]) -> NDArray[Any]:
        return self._inner.backward(parameters, done.inner, self._inside(done, cotangents))

    def backward_each(self, parameters: NDArray[Any], done: _BoundedPass, cotangents: NDArray[Any], norm: float) -> NDArray[Any]:
        return self._inner.backward_each(parameters, done.inner, self._inside(done, cotangents), norm)

    def _inside(self, done: _BoundedPass, cotangents: NDArray[Any]) -> NDArray[Any]:
        # Where the length was changed, a move along the direction has no effect.
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
    """The noise of a party and what it costs.

    Without noise on the steps nothing is guaranteed of a record but its own embeddings.

    embedding_norm: C, bound of each embedding.
    embedding_noise: c, standard deviation of the noise on each embedding.
    gradient_norm: S, bound of each gradient in a step; None: steps are taken without noise.
    gradient_noise: sigma, standard deviation of the noise on a step's sum in units of S; None as well.
    budget: mu that no record may exceed, None for none.
    secret: what all noise is drawn from.
    """

    embedding_norm: float
    embedding_noise: float
    gradient_norm: float | None
    gradient_noise: float | None
    budget: float | None
    secret: str

    @property
    def guarantees(self) -> bool:
        """Whether mu covers what training leaks into later embeddings too."""
        return self.gradient_noise is not None

    def cost(self, embeddings: int, steps: int) -> float:
        """mu^2 of a record.

        embeddings: how many of it were sent.
        steps: how many were taken on it; m of its gradients in one step count as m^2.

        >>> Mechanism(1.0, 4.0, 1.0, 4.0, None, "").cost(2, 2)
        1.0
        """
        square = embeddings * cost_of(2 * self.embedding_norm, self.embedding_noise)
        if self.gradient_noise is not None:
            square += steps * cost_of(2, self.gradient_noise)
        return square
