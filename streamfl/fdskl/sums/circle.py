"""Phases as whole numbers on a circle, where a sum is exact in any order and a mask can be a one-time pad.

A cosine has the period 2 pi. So a phase is cut into turns, the whole turns are dropped, and the rest is a
whole number modulo 2^32 or 2^64. Addition of such numbers wraps around where the phase does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FRACTION_BITS", "from_circle", "number_type", "to_circle"]

FRACTION_BITS = {32: 32, 64: 53}
"""By width, the bits that a phase is rounded to. A float64 has 53 of them; the others of 64 are zeros until a
mask is added."""

# Numbers that are converted together, so that intermediate results stay in the processor's caches.
BLOCK = 16_384
# float64 numbers near 1.5 * 2^52 have steps of 1. So a number that is added is rounded, halves to even, and
# is in the last 51 bits.
ROUNDING, MOST_ROUNDED = 1.5 * 2.0**52, 2.0**51


def number_type(bits: int) -> np.dtype[Any]:
    """The type of numbers on the circle: uint32 or uint64; ValueError for another width."""
    if bits not in FRACTION_BITS:
        raise ValueError(f"{bits} bits: numbers on the circle have 32 or 64")
    return np.dtype(f"u{bits // 8}")


def to_circle(phases: NDArray[np.float64], bits: int) -> NDArray[Any]:
    """round(2^f fraction(phase / 2 pi)) 2^(bits - f) modulo 2^bits, f = 32 or 53: the phases' shape, uint32
    or uint64.

    A phase is moved by pi 2^-32 at most, so that sqrt(2) cos of a sum of q of them is off by at most sqrt(2)
    q pi 2^-32. It is also moved by 2^-52 of its size, as float64 numbers are.

    phases: radians; ValueError where one is not finite.
    bits: 32 or 64.
    """
    dtype = number_type(bits)
    phases = np.ascontiguousarray(phases, dtype=np.float64)
    numbers = np.empty(phases.shape, dtype)
    flat, result = phases.reshape(-1), numbers.reshape(-1)
    steps = np.empty(min(BLOCK, len(flat)))
    for start in range(0, len(flat), BLOCK):
        part = flat[start : start + BLOCK]
        with np.errstate(over="ignore"):
            step = np.multiply(part, 2.0**32 / (2 * math.pi), out=steps[: len(part)])
        if not (step.max() < MOST_ROUNDED and step.min() > -MOST_ROUNDED):
            _drop_turns(step)
        if bits == 32:
            step += ROUNDING
            result[start : start + BLOCK] = step.view(np.uint64)
        else:
            step *= 2.0**-32
            step -= np.floor(step)
            step *= 2.0**53
            # The last half step before a whole turn is rounded up to the turn, which is 0: the shift drops
            # it.
            result[start : start + BLOCK] = np.rint(step, out=step).astype(np.int64).view(
                np.uint64
            ) << np.uint64(11)
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


def _drop_turns(steps: NDArray[np.float64]) -> None:
    """Remove whole turns, in place, from phases in 2^-32 turns that are too large. ValueError if one is not
    finite."""
    if not np.isfinite(steps).all():
        raise ValueError("a phase is not finite")
    far = np.abs(steps) >= MOST_ROUNDED
    steps[far] = np.fmod(steps[far], 2.0**32)
