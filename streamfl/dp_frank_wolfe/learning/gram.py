"""The server's Gram matrix for the estimators that choose once, and how much of it is noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.selection import SelectionPlan
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE

__all__ = ["LEAST_EIGENVALUE", "doubt", "gram_of"]

Floats = NDArray[np.float64]
# For a Gram matrix whose columns lie within 1.
LEAST_EIGENVALUE = 0.01


def gram_of(own: Mapping[str, Floats], products: Mapping[str, Floats]) -> Floats:
    """A'A / n of the chosen columns of all parties, in their order.

    For a pair of columns of two parties, both parties have released a product. The mean counts.

    own: products of each party's columns among themselves, (N_k, N_k).
    products: with all others' columns, (N_k, others).
    """
    counts = [len(one) for one in own.values()]
    starts = np.cumsum([0, *counts])
    gram = np.zeros((starts[-1], starts[-1]))
    for number, (party, one) in enumerate(own.items()):
        mine = np.arange(starts[number], starts[number + 1])
        others = np.setdiff1d(np.arange(starts[-1]), mine)
        gram[np.ix_(mine, mine)] = one
        gram[np.ix_(mine, others)] += products[party] / 2
        gram[np.ix_(others, mine)] += products[party].T / 2
    return gram


def doubt(plans: Mapping[str, SelectionPlan], rows: int) -> float:
    """How large eigenvalues of the Gram matrix are that noise alone makes: half of what a symmetric matrix of
    such noise has.

    It follows from public plans. The two noisy products of a pair are averaged. The other party's rows carry
    noise as well."""
    noises = [plan.noises for plan in plans.values() if plan.rate is not None]
    if not noises:
        return 0.0
    told = max(noise["rows"].deviation / FEATURE_ONE for noise in noises) / math.sqrt(rows)
    products = max(plan.product_deviation(rows) for plan in plans.values())
    return (
        math.hypot(told, products)
        / math.sqrt(2)
        * math.sqrt(sum(plan.columns for plan in plans.values()))
        / 2
    )
