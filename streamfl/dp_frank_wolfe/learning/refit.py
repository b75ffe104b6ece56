"""The server's least squares within the l1 ball, from released products. It uses no row, so it costs no
budget."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.encoding.wire import encode_array

__all__ = ["Refit", "project", "refit", "refitted"]

Floats = NDArray[np.float64]
ITERATIONS = 3000


def project(values: Floats, radius: float) -> Floats:
    """The nearest point of the l1 ball (Duchi et al. 2008)."""
    absolute = np.abs(values)
    if float(absolute.sum()) <= radius:
        return values.copy()
    falling = np.sort(absolute)[::-1]
    excess = (np.cumsum(falling) - radius) / np.arange(1, len(values) + 1)
    # With a radius far below the values' rounding no value is above. Then only the largest counts.
    above = np.flatnonzero(falling > excess)
    threshold = excess[above[-1] if len(above) else 0]
    return np.asarray(np.sign(values) * np.maximum(absolute - threshold, 0.0), dtype=np.float64)


def refit(gram: Floats, correlations: Floats, radius: float, least: float) -> Floats:
    """argmin x'Gx / 2 - b'x within |x|_1 <= radius, by accelerated projected gradients (Beck and Teboulle
    2009).

    gram: (columns, columns), symmetric, noisy. Its eigenvalues are lifted to ``least``, because noise may
    have made them negative.
    correlations: b, (columns,).
    """
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    lifted = (vectors * np.maximum(values, least)) @ vectors.T
    step = 1.0 / max(float(values[-1]), least)
    x, ahead, momentum = np.zeros(len(correlations)), np.zeros(len(correlations)), 1.0
    for _ in range(ITERATIONS):
        before = x
        x = project(ahead - step * (lifted @ ahead - correlations), radius)
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = x + (momentum - 1) / following * (x - before)
        momentum = following
        if float(np.abs(x - before).max()) < 1e-14:
            break
    return x


class Refit(msgspec.Struct, array_like=True):
    """The parameters of :func:`refit` as bytes; gram and correlations 64-bit floats."""

    gram: bytes
    correlations: bytes
    radius: float
    least: float


def refitted(content: bytes) -> bytes:
    """:func:`refit` of an encoded :class:`Refit`, for a process beside the loop."""
    given = msgspec.msgpack.decode(content, type=Refit)
    correlations = np.frombuffer(given.correlations, "<f8").astype(np.float64)
    gram = np.frombuffer(given.gram, "<f8").astype(np.float64).reshape(len(correlations), len(correlations))
    return encode_array(refit(gram, correlations, given.radius, given.least))
