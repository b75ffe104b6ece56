"""Sampling in integers: an inverse distribution function, applied to bits from a secret stream.

The proofs of differential privacy hold for real numbers, and floating point has gaps. A Gumbel variable from
53 bits lies between -3.6 and 36.7: a candidate that is further behind is never chosen, which reveals how far
it was behind (Mironov 2012). Here weights, sums and thresholds are integers, and the total variation between
the sampled and the proved distribution is known."""

from __future__ import annotations

import functools
import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DEVIATIONS",
    "DRAW_BITS",
    "DRAW_BYTES",
    "IntegerDistribution",
    "decay",
    "discrete_gaussian",
    "gaussian_variation",
]

Integers = NDArray[np.int64]
# Bits of one draw, and of the thresholds that it is compared with.
DRAW_BITS = 128
DRAW_BYTES = DRAW_BITS // 8
# Bits of weights: the largest is 2^WEIGHT_BITS, and each is off by less than one before it is rounded to
# DRAW_BITS.
WEIGHT_BITS = 208
DIGIT_BITS = 8
# A number is more than 10 deviations from the mean with a probability of 1.5e-23.
DEVIATIONS = 10
LARGEST_DEVIATION = 2**15
# A table has at most 2^20 weights. The error of one in each ratio adds up to less than 2^38 in each of them.
TABLE_BITS, ERROR_BITS = 20, 38
# Total variation that a discrete Gaussian loses: 4e-23 for its tails, and 2^-150 for errors of weights.
GAUSSIAN_LOST = 2 * math.exp(-(DEVIATIONS**2) / 2) / DEVIATIONS + 2.0 ** (
    TABLE_BITS + ERROR_BITS - WEIGHT_BITS
)
DECIMAL = Context(prec=90, Emin=-999999, Emax=999999)


class IntegerDistribution:
    """A distribution over 0 .. candidates - 1, in proportion to whole weights.

    weights: (candidates,) of Python's integers, at least 0, one of them above 0.
    lost: total variation between these weights and the wanted ones.
    first: added to each draw.
    """

    __slots__ = ("_first", "_high", "_low", "_places", "variation")

    def __init__(self, weights: NDArray[Any], lost: float, first: int = 0) -> None:
        self._places = np.flatnonzero(weights != 0)
        if not len(self._places):
            raise ValueError("no candidate has a weight")
        ends = np.cumsum(weights[self._places])
        thresholds = [(int(end) << DRAW_BITS) // int(ends[-1]) for end in ends[:-1]]
        self._high = np.array([threshold >> 64 for threshold in thresholds], dtype=np.uint64)
        self._low = np.array([threshold & (2**64 - 1) for threshold in thresholds], dtype=np.uint64)
        self._first = first
        # Each threshold is rounded by less than 2^-128.
        self.variation = lost + len(weights) * 2.0**-DRAW_BITS
        """The total variation of one draw between the sampled and the wanted distribution."""

    def draw(self, bits: bytes) -> Integers:
        """One number for each 16 bytes of uniform bits: how many thresholds are not above them."""
        high, low = np.frombuffer(bits, ">u8").astype(np.uint64).reshape(-1, 2).T
        found = np.searchsorted(self._high, high, side="left")
        last = np.searchsorted(self._high, high, side="right")
        for draw in np.flatnonzero(found != last):
            found[draw] += int(np.searchsorted(self._low[found[draw] : last[draw]], low[draw], side="right"))
        return np.asarray(self._places[found] + self._first, dtype=np.int64)


@functools.lru_cache(maxsize=8)
def discrete_gaussian(variance: Fraction) -> IntegerDistribution:
    """Whole numbers x with P(x) in proportion to e^(-x^2 / (2 variance))   (Canonne, Kamath and Steinke
    2020).

    variance: sigma^2, the parameter; above 0. ValueError for a table that would be too large.
    """
    most = _furthest(variance)
    half = np.empty(most + 1, dtype=object)
    # w(x + 1) = w(x) r(x), r(x + 1) = r(x) r(0)^2
    weight, ratio, square = 1 << WEIGHT_BITS, _exp(1 / (2 * variance)), _exp(1 / variance)
    for number in range(most + 1):
        half[number] = weight
        weight, ratio = weight * ratio >> WEIGHT_BITS, ratio * square >> WEIGHT_BITS
    return IntegerDistribution(np.concatenate([half[:0:-1], half]), GAUSSIAN_LOST, first=-most)


def gaussian_variation(variance: Fraction) -> float:
    """The ``variation`` of :func:`discrete_gaussian`, without its table. ValueError likewise."""
    return GAUSSIAN_LOST + (2 * _furthest(variance) + 1) * 2.0**-DRAW_BITS


def _furthest(variance: Fraction) -> int:
    """The largest distance of a draw from 0."""
    if not 0 < variance <= LARGEST_DEVIATION**2:
        raise ValueError(
            f"a variance of {float(variance):.3g} steps: it has to be above 0, and {LARGEST_DEVIATION}^2 at "
            "most"
        )
    return math.ceil(DEVIATIONS * math.sqrt(variance)) + 1


def decay(gaps: NDArray[Any], rate: Fraction) -> NDArray[Any]:
    """2^WEIGHT_BITS e^(-rate gap) of each gap, a product over its digits."""
    weights = np.full(len(gaps), 1 << WEIGHT_BITS, dtype=object)
    digits = -(-int(max(gaps)).bit_length() // DIGIT_BITS)
    for place in range(digits):
        table = _digit_table(rate, place)
        weights = (
            weights * table[((gaps >> (place * DIGIT_BITS)) & (2**DIGIT_BITS - 1)).astype(np.int64)]
            >> WEIGHT_BITS
        )
    return weights


@functools.lru_cache(maxsize=128)
def _digit_table(rate: Fraction, place: int) -> NDArray[Any]:
    base = _exp(rate * 2 ** (place * DIGIT_BITS))
    table = np.empty(2**DIGIT_BITS, dtype=object)
    table[0] = 1 << WEIGHT_BITS
    for digit in range(1, len(table)):
        table[digit] = table[digit - 1] * base >> WEIGHT_BITS
    return table


def _exp(exponent: Fraction) -> int:
    """2^WEIGHT_BITS e^-exponent, by decimals of 90 digits: the same on every machine."""
    value = DECIMAL.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator))
    # Below this the result is 0 in WEIGHT_BITS.
    if value < -200:
        return 0
    return int(DECIMAL.multiply(DECIMAL.exp(value), Decimal(1 << WEIGHT_BITS)))
