"""The cost of Gaussian mechanisms, and its epsilon and delta: Gaussian differential privacy.

A mechanism is mu-GDP if telling two neighbouring inputs apart from its output is at least as hard as telling
N(0, 1) from N(mu, 1). mu^2 is the cost, because the squares add up: mechanisms of mu_1 .. mu_k compose to
sqrt(mu_1^2 + .. + mu_k^2), also if each is chosen from the results before it (Dong, Roth and Su, "Gaussian
Differential Privacy", 2022, theorem 4).
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr, ndtr

__all__ = ["DELTA", "cost_of", "delta_of", "epsilon_of"]

# The delta of every epsilon that is exported as a metric.
DELTA = 1e-5


def cost_of(sensitivity: float, noise: float) -> float:
    """mu^2 of one Gaussian release: (sensitivity / noise)^2   (theorem 1).

    sensitivity: the largest Euclidean distance between the values of two neighbouring inputs.
    noise: standard deviation of the noise on each number, above 0.

    >>> cost_of(2.0, 4.0)
    0.25
    """
    return (sensitivity / noise) ** 2


def delta_of(mu: float, epsilon: float) -> float:
    """delta of a mu-GDP mechanism at ``epsilon``: Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
     (corollary 1).

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
    # Not at the top: most workers never ask, and it takes a tenth of their start.
    from scipy.optimize import brentq

    return float(brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, most, xtol=1e-12))
