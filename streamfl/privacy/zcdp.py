"""The cost of releases in zero-concentrated differential privacy, and its epsilon and delta.

A mechanism is rho-zCDP if its Renyi divergence of every order alpha > 1 between neighbouring inputs is at
most rho alpha. rho is its cost. Costs add up, also if each release is chosen from the results before it (Bun
and Steinke 2016). Choices and numbers from the same rows are counted this way: a choice by the exponential
mechanism is far from a Gaussian, and its cost in zCDP is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from scipy.optimize import minimize_scalar

__all__ = [
    "cost_of_choice",
    "cost_of_gaussian",
    "delta_of_variation",
    "epsilon_of",
    "largest_cost",
    "range_of",
]

# Range of log(alpha - 1). Every alpha gives a valid bound: a search that misses the best one claims too
# little, never too much.
ORDERS = (-30.0, 40.0)
# Above this, sums would overflow, and nothing is promised anyway.
LARGEST_COST = 1e200
# The search for a cost ends below this.
LEAST_COST = 1e-200
# e to this power is still finite.
LARGEST_EXPONENT = 700.0
# Bits after the point of a choice's range, which is rounded down.
RANGE_BITS = 40


def cost_of_choice(epsilon: float | Fraction) -> float:
    """Cost of one choice by the exponential mechanism: epsilon^2 / 8.

    Cesar and Rogers 2021, "Bounding, Concentrating, and Truncating: Unifying Privacy Loss Composition for
    Data Analytics".

    epsilon: between neighbours, the logarithm of the ratio of the probabilities of a candidate lies in an
        interval of this length. That is twice the most that a score moves, divided by the scale of the
        scores: the total may move as well.

    >>> cost_of_choice(2.0)
    0.5
    """
    return float(epsilon) ** 2 / 8


def range_of(cost: float) -> Fraction:
    """The largest epsilon of a choice at this cost: sqrt(8 cost), rounded down to a fraction that is
    exact."""
    return Fraction(math.isqrt(int(Fraction(cost) * 8 * 4**RANGE_BITS)), 2**RANGE_BITS)


def cost_of_gaussian(sensitivity: float, noise: float) -> float:
    """Cost of Gaussian noise: sensitivity^2 / (2 noise^2).

    It holds for the discrete Gaussian too, if values are whole numbers (Canonne, Kamath and Steinke 2020).

    sensitivity: the largest Euclidean distance between the values of two neighbouring inputs.
    noise: the sigma of each number's noise.

    >>> cost_of_gaussian(2.0, 4.0)
    0.125
    """
    return (sensitivity / noise) ** 2 / 2


def epsilon_of(cost: float, delta: float) -> float:
    """The least epsilon that rho-zCDP implies at ``delta``   (Canonne, Kamath and Steinke 2020, from Renyi
    divergences).

        min over alpha > 1 of  alpha cost + log(1 - 1/alpha) - log(alpha delta) / (alpha - 1)

    cost: at least 0, may be infinite.
    delta: above 0, below 1.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: it is above 0 and below 1")
    if cost <= 0:
        return 0.0
    if cost > LARGEST_COST:
        return math.inf

    def bound(order: float) -> float:
        less = math.exp(order)
        alpha = 1 + less
        return alpha * cost + order - math.log1p(less) - (math.log1p(less) + math.log(delta)) / less

    return max(0.0, _least(bound))


@lru_cache(maxsize=256)
def largest_cost(epsilon: float, delta: float) -> float:
    """The largest cost whose epsilon at ``delta`` is not above ``epsilon``."""
    if math.isinf(epsilon):
        return math.inf
    low, high = 0.0, 1.0
    while epsilon_of(high, delta) <= epsilon:
        high *= 2
    while high - low > 1e-12 * high and high > LEAST_COST:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
    return low


def delta_of_variation(variation: float, epsilon: float) -> float:
    """The growth of delta if a mechanism is not sampled exactly: (1 + e^epsilon) variation.

    For events E: P'(E) <= P(E) + v <= e^epsilon Q(E) + delta + v <= e^epsilon (Q'(E) + v) + delta + v.

    variation: the total variation between the sampled and the proved distribution, summed over all releases.
    """
    # No probability is above 1, and e^800 would overflow.
    return min(1.0, (1 + math.exp(min(epsilon, LARGEST_EXPONENT))) * variation)


def _least(bound: Callable[[float], float]) -> float:
    found = minimize_scalar(bound, bounds=ORDERS, method="bounded", options={"xatol": 1e-9, "maxiter": 500})
    return float(found.fun)
