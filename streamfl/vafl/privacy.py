"""What a party's embeddings tell about its features, bounded and counted.

Two things leave a party that depend on a record's features: its own embeddings, and through the parameters that were learnt from it
everything that is sent later, of other records too. Both are made private by the Gaussian mechanism (Dong, Roth and Su, "Gaussian
Differential Privacy", 2022): an embedding of norm at most C with noise N(0, c^2 I) is (2C/c)-GDP for replacing the record, a step
on a sum of gradients of norm at most S each with noise N(0, (sigma S)^2 I) is (2/sigma)-GDP, and k of these compose to the root of
the sum of their squares. m gradients of one record in one step move its sum by 2 m S against one noise, and cost what m^2 steps do.

Which step a gradient falls into, and whether it comes at all, depends on the record too, but only through what was sent of it:
replies are made of noisy embeddings. Given everything sent so far, steps are of the same entities with either record, their sums
differ by what was counted, and composition holds whatever is chosen because of earlier results (theorem 4 there).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from streamfl.seeding import rng_for
from streamfl.vafl.networks import Differentiable

__all__ = ["BoundedOutput", "Mechanism", "delta_of", "epsilon_of", "secret_noise"]

# Rounding to single precision may lengthen a vector, and a sum of them, by so much.
ROUNDING = 1e-5
# Shorter outputs have no direction worth the name, and gradients through a division by less overflow.
SHORTEST = 1e-12


class BoundedOutput:
    """A function whose outputs are brought to a norm: C h / |h| if ``normalise``, h min(1, C / |h|) otherwise.

    What is not finite becomes 0, of which nothing is learnt: it would tell of its record whatever the noise.
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
            # The direction of 0 is none at all, and no gradient goes through it.
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
        # Where the length was changed, what is along the direction has no effect.
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

    embedding_norm C, embedding_noise c: of each embedding. gradient_norm S, gradient_noise sigma (in units of S): of each step;
    both None if steps are taken without, and then nothing is guaranteed of a record but its own embeddings. budget: mu that no
    record may exceed. secret: what all noise is drawn from.
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
        """mu^2 of so many embeddings of a record sent and steps taken on it, which adds up. m gradients in one step: m^2 steps.

        >>> Mechanism(1.0, 4.0, 1.0, 4.0, None, "").cost(2, 2)
        1.0
        """
        square = embeddings * (2 * self.embedding_norm / self.embedding_noise) ** 2
        if self.gradient_noise is not None:
            square += steps * (2 / self.gradient_noise) ** 2
        return square

    def allows(self, spent: float) -> bool:
        """Whether a record may come to this mu^2. Never more than rounding above the budget."""
        return self.budget is None or spent <= (self.budget * (1 + 1e-12)) ** 2


def secret_noise(count: int, secret: str, *content: str | int | float | bytes) -> NDArray[np.float64]:
    """Standard normals, (count,), that without the secret cannot be told from chance (SHAKE-256).

    content: all that the values which the noise goes onto depend on. A step that is done again then gives the same noise for the
    same values, and never the same for others: their difference would be without any.
    """
    stream = hashlib.shake_256(msgspec.msgpack.encode((secret, content))).digest(8 * count)
    words = np.frombuffer(stream, "<u8") >> np.uint64(12)
    return np.asarray(ndtri((words.astype(np.float64) + 0.5) * 2.0**-52), dtype=np.float64)


def delta_of(mu: float, epsilon: float) -> float:
    """delta of a mu-GDP mechanism at ``epsilon``: Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)   (corollary 1).

    >>> round(delta_of(1.0, 1.0), 6)
    0.126937
    """
    if mu <= 0:
        return 0.0
    first = float(ndtr(mu / 2 - epsilon / mu))
    second = math.exp(min(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)), 0.0))
    return max(0.0, first - second)


def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon of a mu-GDP mechanism at ``delta``, 0 < delta < 1."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    most = 1.0
    while delta_of(mu, most) > delta:
        most *= 2
    return float(brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, most, xtol=1e-12))
