"""Gaussian noise that is drawn from a secret and from everything that it hides, and added on a grid.

Work that is done again, after a crash or an aborted transaction, is sent again. Fresh noise on the same value
would let a reader average the noise away; the same noise on another value would let a reader subtract it. So
noise is a function of a secret and of everything that the value depends on: the same value gets the same
noise, any other value independent noise.

The proofs of differential privacy hold for real numbers. A computer's numbers have gaps, and which numbers a
sum can reach reveals what was added up (Mironov, "On significance of the least significant bits for
differential privacy", 2012). So values and noise are rounded to one grid, on which the sum is exact.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

__all__ = ["ROUNDING", "noisy", "secret_noise"]

# The grid's step is at most this share of the noise, and of one number's share of the norm.
FINENESS = 2.0**-16
# A smaller step could not be represented.
LEAST_STEP = 2.0**-1000
ROUNDING = 2 * FINENESS
"""A bounded vector has to be shorter than its bound by this share, so that rounding cannot lift it above the
bound.

The grid moves a vector by at most half of ``FINENESS`` of its norm, and each side of a difference of sums by
as much. The rest of the share is for the rounding of single precision.
"""


def noisy(
    values: NDArray[Any], noise: float, norm: float, secret: str, *content: str | int | float | bytes
) -> NDArray[np.float64]:
    """The values with noise N(0, noise^2 I), both rounded to one grid: (n,) float64.

        g round(values / g) + g round(noise z / g)

    g is a power of two, and the sum is exact: below 2^53 steps, for noise of up to 100,000 times the norm. So
    the result is a Gaussian mechanism on values of the grid, rounded to the grid, and reveals no more than
    that mechanism. Which results can be reached does not depend on the values. Anything computed from the
    result, in single precision too, reveals no more either.

    values: (n,), of Euclidean norm at most ``norm``.
    noise: standard deviation of the noise on each number, above 0.
    norm: bound of the values' norm; the grid's step depends on it.
    secret: the key of the noise; a reader who knows it can subtract the noise.
    content: where the noise belongs. The noise depends on it, the values, ``noise`` and the step: if all are
        the same the noise is the same, and if any differs the noise is independent.
    """
    share = norm / math.sqrt(max(1, len(values)))
    step = 2.0 ** math.floor(math.log2(max(FINENESS * min(noise, share), LEAST_STEP)))
    # Adding 0 turns -0 into 0: the two are equal values, and have to get equal noise.
    rounded = np.rint(values.astype(np.float64) / step) + 0.0
    drawn = secret_noise(len(values), secret, noise, step, rounded.astype("<f8").tobytes(), *content)
    return np.asarray(step * (rounded + np.rint(drawn * (noise / step))), dtype=np.float64)


def secret_noise(count: int, secret: str, *content: str | int | float | bytes) -> NDArray[np.float64]:
    """Standard normals, (count,), that nobody without the secret can tell from random numbers (SHAKE-256).

    Each is the quantile of 128 bits, one of them for the sign. Every number within 13 standard deviations can
    be reached; a number is farther away with a probability of 2^-128. A quantile z is off by about 2^-50 z,
    and so the probability of a step g is off by 2^-50 z / g of itself.

    count: how many.
    secret: the key.
    content: all that the values under the noise depend on. Reusing noise for other values would let an
    observer subtract them."""
    stream = hashlib.shake_256(msgspec.msgpack.encode((secret, content))).digest(16 * count)
    high, low = np.frombuffer(stream, "<u8").reshape(count, 2).T
    # The quantile of the half below 0, where small probabilities are as exact as others.
    below = (high >> np.uint64(1)).astype(np.float64) * 2.0**-64 + (low.astype(np.float64) + 0.5) * 2.0**-128
    return np.asarray(ndtri(below) * np.where(high & np.uint64(1), -1.0, 1.0), dtype=np.float64)
