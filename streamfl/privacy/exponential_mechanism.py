"""The exponential mechanism, sampled in integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streamfl.privacy.integer_distribution import DRAW_BITS, IntegerDistribution, decay

__all__ = ["exponential_mechanism"]

Integers = NDArray[np.int64]


def exponential_mechanism(scores: Integers, rate: Fraction) -> IntegerDistribution:
    """The exponential mechanism over whole scores: P(i) in proportion to e^(rate scores_i)   (McSherry and
    Talwar 2007).

    It is report-noisy-max with independent Gumbel noise of scale 1 / rate on each score. Let a score move by
    at most D between neighbours. Then the logarithm of the ratio of P(i) lies in an interval of length 2 rate
    D, the same for all i. The candidate's own weight contributes between -rate D and rate D; the logarithm of
    the sums' ratio shifts all candidates by the same number.

    scores: (candidates,).
    rate: above 0.
    """
    gaps = np.max(scores).astype(object) - scores.astype(object)
    # A candidate that is further behind has a weight below 1 in 2^DRAW_BITS.
    most = math.ceil(Fraction(DRAW_BITS) * Fraction(7, 10) / rate)
    near = np.flatnonzero(gaps <= most)
    weights = np.zeros(len(scores), dtype=object)
    weights[near] = decay(gaps[near], rate)
    # Each weight is off by less than 2^-DRAW_BITS of the largest, whether it was left out or rounded.
    return IntegerDistribution(weights, len(scores) * 2.0**-DRAW_BITS)
