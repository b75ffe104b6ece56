"""Small federations that several tests share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from streamfl.quasi_newton.tools.direct import Party

Floats = NDArray[np.float64]


def problem(rows: int = 600, columns: int = 6, seed: int = 0) -> tuple[Floats, Floats]:
    """Correlated columns with mean 0 and deviation 1, and labels -1 and +1 that depend on them."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, columns)) @ (
        np.eye(columns) + 0.4 * random.normal(size=(columns, columns))
    )
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    scores = inputs @ random.normal(size=columns) - 0.7
    return inputs, np.where(random.random(rows) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)


def platt(outputs: Floats, ones: NDArray[np.bool_], others: Floats) -> Floats:
    """Probabilities of others by a sigmoid that was fitted with Platt's targets, by SciPy."""
    up, down = ones.sum(), (~ones).sum()
    targets = np.where(ones, (up + 1) / (up + 2), 1 / (down + 2))

    def cost(at: Floats) -> float:
        odds = at[0] + at[1] * outputs
        return float(np.sum(np.logaddexp(0, odds) - targets * odds))

    found = minimize(cost, [0.0, 1.0], method="BFGS", options={"gtol": 1e-9}).x
    return np.asarray(expit(found[0] + found[1] * others))


def split(inputs: Floats, *ends: int, secret: int | None = None) -> list[Party]:
    """Parties with the columns up to each end, the guest first; with ``secret`` each has first weights of its
    own."""
    edges = [0, *ends, inputs.shape[1]]
    random = np.random.default_rng(secret)
    parties = []
    for number in range(len(edges) - 1):
        own = inputs[:, edges[number] : edges[number + 1]]
        start = None if secret is None else random.uniform(-0.1, 0.1, own.shape[1] + (number == 0))
        parties.append(Party(own, start))
    return parties
