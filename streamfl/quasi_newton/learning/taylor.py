"""The logistic loss to second order around 0, for labels -1 and +1: its gradients are sums over rows, linear
in the outputs.

Yang et al., "A Quasi-Newton Method Based Vertical Federated Learning Framework for Logistic Regression",
2019, equations 2 to 6. Three slips of the paper are corrected: the sign of y in (1), the place of y / 2 in
(4), and the missing 1/4 in (6).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "gradient",
    "loss",
    "loss_bounds",
    "loss_from_products",
    "residuals",
]

Floats = NDArray[np.float64]


def residuals(outputs: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """D = u - 2 y, four times the paper's d. Without a multiplication by 1/4, whole numbers stay whole.

    outputs: u, the parties' inner products together, (rows,).
    labels: -1 and +1, with the outputs' fixed-point exponent.
    """
    return np.asarray(outputs - 2 * labels)


def loss(outputs: NDArray[Any], labels: NDArray[Any]) -> float:
    """mean of log 2 - y u / 2 + u^2 / 8   (2).

    >>> round(loss(np.array([2.0, -2.0]), np.array([1.0, -1.0])), 6)
    0.193147
    """
    return float(math.log(2.0) + np.mean(np.square(outputs) / 8 - labels * outputs / 2))


def gradient(sums: Floats, rows: int) -> Floats:
    """mean of (u / 4 - y / 2) x = X'D / (4 rows)   (4): (columns,).

    With h for D it is the Hessian times a step, v = mean of h x / 4   (6, with the 1/4 of the Hessian).

    sums: X'D of one party's columns and the residuals D, or X'h with h = s'x, summed over the parties.
    """
    return sums / (4 * rows)


def loss_bounds(largest: float) -> tuple[float, float]:
    """The smallest possible loss (2), at u = 2 y, and the largest with |u| <= largest.

    >>> [round(bound, 6) for bound in loss_bounds(2.0)]
    [0.193147, 2.193147]
    """
    return math.log(2.0) - 0.5, math.log(2.0) + largest / 2 + largest**2 / 8


def loss_from_products(total: float) -> float:
    """log 2 - 1/2 + (sum_p w_p'g_p - mean(y D) / 2) / 2: the loss (2) exactly, without squares of outputs.

    With several hosts the squares of (3) lack the products of two hosts' outputs.

    total: sum over the parties of w_p'g_p, the gradients without regularisation, less half of the mean of y
    D. The coordinator learns only this total, not its two terms.
    """
    return math.log(2.0) - 0.5 + total / 2
