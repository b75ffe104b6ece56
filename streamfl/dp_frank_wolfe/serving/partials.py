"""A party's part of a prediction, a_e[P_k]'x_k, with noise where the entity's budget covers it.

x_k was released and is public, and features lie within 1. So the part moves by 2 |x_k|_1 at most if the row
is replaced. Without noise, the part shows the feature itself where one column has a weight. Parts of a few
models solve for the other features."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.iterate import SUM_BITS, quantise
from streamfl.dp_frank_wolfe.party.window import FEATURE_BITS, FEATURE_ONE, outputs
from streamfl.privacy.integer_noise import IntegerNoise

__all__ = ["PartialPlan", "largest_partial", "partial_variation"]

# Share that rounding of weights and of noise may add.
SLACK = 0.01


@dataclass(frozen=True)
class PartialPlan:
    """How parts are computed with one model.

    weights: x_k as whole numbers, (columns,).
    bits: after the point of a part.
    noise: None where there is none, or nothing to hide.
    """

    weights: NDArray[np.int64]
    bits: int
    noise: IntegerNoise | None

    @classmethod
    def of(cls, own: NDArray[np.float64], cost: float) -> PartialPlan:
        """own: x_k, (columns,). cost: of a part, infinite for no noise."""
        weights = quantise(own, SUM_BITS - FEATURE_BITS)
        whole = weights.numbers.astype(np.int64)
        length = 2 * FEATURE_ONE * int(np.sum(np.abs(whole)))
        noise = None if math.isinf(cost) or not length else IntegerNoise.of_length(float(length), 1, cost)
        return cls(whole, FEATURE_BITS + weights.bits, noise)

    def exact(self, columns: NDArray[np.int16]) -> int:
        """The part without noise. columns: of the entity, (columns,)."""
        return int(outputs(columns[np.newaxis], self.weights)[0])

    @property
    def deviation(self) -> float:
        """Of the noise, in label bounds."""
        return 0.0 if self.noise is None else math.ldexp(self.noise.deviation, -self.bits)

    def told(self, exact: int, bits: bytes) -> float:
        """The part as it is sent, in label bounds. bits: 16 uniform bytes, for the noise."""
        if self.noise is not None:
            exact = int(self.noise.add(np.array([exact]), bits)[0]) * self.noise.unit
        return math.ldexp(float(exact), -self.bits)


def largest_partial(radius: float, cost: float) -> float:
    """Bound on any part. radius: r_k. cost: as in :meth:`PartialPlan.of`."""
    noise = _usual_noise(cost)
    most = 0.0 if noise is None else noise.largest * noise.unit / 2.0**SUM_BITS
    return radius * (1 + 2 * most) * (1 + SLACK)


def partial_variation(cost: float) -> float:
    """Total variation between the noise of one part and the discrete Gaussian."""
    noise = _usual_noise(cost)
    return 0.0 if noise is None else noise.variation


def _usual_noise(cost: float) -> IntegerNoise | None:
    """Noise for weights of a typical length: for any weights, their whole numbers have about this length."""
    if not cost > 0:
        raise ValueError(f"cost = {cost}: nothing can be released for it")
    return None if math.isinf(cost) else IntegerNoise.of_length(2.0**SUM_BITS, 1, cost)
