"""Phases as whole numbers on a circle, where a sum is exact in any order and a mask can be a one-time pad.

A cosine has the period 2 pi. So a phase is cut into turns, the whole turns are dropped, and the rest is a whole number modulo 2^32
or 2^64. Addition of such numbers wraps around where the phase does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FRACTION_BITS", "from_circle", "number_type", "to_circle"]

FRACTION_BITS = {32: 32, 64: 53}
"""By width, the bits that a phase is rounded to. A float64 has 53 of them; the others of 64 are zeros until a mask is added."""

# Numbers of a pass: what is between the steps stays in the processor's caches.
BLOCK = 16_384


def number_type(bits: int) -> np.dtype[Any]:
    """The type of numbers on the circle: uint32 or uint64; ValueError for another width."""
    if bits not in FRACTION_BITS:
        raise ValueError(f"{bits} bits: numbers on the circle have 32 or 64")
    return np.dtype(f"u{bits // 8}")


def to_circle(phases: NDArray[np.float64], bits: int) -> NDArray[Any]:
    """round(2^f fraction(phase / 2 pi)) 2^(bits - f) modulo 2^bits, f = 32 or 53: the phases' shape, uint32 or uint64.

    A phase is moved by pi 2^-32 at most, so that sqrt(2) cos of a sum of q of them is off by at most sqrt(2) q pi 2^-32.

    phases: radians, of any size; ValueError where one is not finite.
    bits: 32 or 64.
    """
    dtype = number_type(bits)
    phases = np.ascontiguousarray(phases, dtype=np.float64)
    numbers = np.empty(phases.shape, dtype)
    flat, result = phases.reshape(-1), numbers.reshape(-1)
    scale, shift = 2.0 ** FRACTION_BITS[bits], dtype.type(bits - FRACTION_BITS[bits])
    for start in range(0, len(flat), BLOCK):
        turns = flat[start : start + BLOCK] * (0.5 / math.pi)
        if not np.isfinite(turns).all():
            raise ValueError("a phase is not finite")
        turns -= np.floor(turns)
        turns *= scale
        # The last half step before a whole turn is rounded up to one, which is 0: the cast drops it.
        whole = np.rint(turns, out=turns).astype(np.int64)
        result[start : start + BLOCK] = whole if bits == 32 else whole.view(np.uint64) << shift
    return numbers


def from_circle(numbers: NDArray[Any]) -> NDArray[np.float64]:
    """The phases of numbers on the circle, in radians from 0 to below 2 pi: the numbers' shape, float64.

    numbers: uint32 or uint64, in any byte order.
    """
    bits = 8 * numbers.dtype.itemsize
    number_type(bits)
    if bits == 64:
        numbers = numbers >> np.uint64(bits - FRACTION_BITS[bits])
    return np.asarray(numbers * (2 * math.pi * 2.0 ** -FRACTION_BITS[bits]), dtype=np.float64)
