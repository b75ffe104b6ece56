"""Linear learners of vertically split data, that kernels are compared with: small NumPy versions of their
papers' algorithms.

Zhang et al., "Feature-Distributed SVRG for High-Dimensional Linear Classification", 2018 (FD-SVRG); Gu et
al., "Privacy-Preserving Asynchronous Federated Learning Algorithms for Multi-Party Vertically Collaborative
Learning", 2020 (AFSVRG-VP).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.commands import Floats
from streamfl.fdskl.learning.losses import MarginLoss

BATCH = 32


def svrg(
    inputs: Floats,
    labels: Floats,
    loss: MarginLoss,
    parts: Sequence[slice],
    *,
    epochs: int = 20,
    regularisation: float = 1e-4,
    staleness: int = 0,
    seed: int = 0,
) -> Floats:
    """Weights of a linear model with a bias, (columns + 1,), by stochastic gradients whose variance a full
    one takes off.

    w_l <- w_l - gamma ((L'(w'x_i) - L'(v'x_i)) x_i,l + grad_l J(v)), v the weights at the beginning of the
    epoch.

    FD-SVRG sums the parties' inner products before every step: staleness 0. With AFSVRG-VP every party steps
    on its own, with weights of the others that are up to ``staleness`` steps old. A step is of a mini-batch
    of 32.

    parts: of the columns, one slice a party; the bias belongs to the last.
    regularisation: lambda of lambda |w|^2 / 2.
    """
    random = np.random.default_rng(seed)
    rows = np.hstack([inputs, np.ones((len(inputs), 1))])
    parts = [*parts[:-1], slice(parts[-1].start, rows.shape[1])]
    weights = np.zeros(rows.shape[1])
    curvature = float(np.max(loss.curvature(np.zeros(1), np.ones(1))))
    # A batch's smoothness lies between the mean row's and the longest row's.
    longest = float(np.quantile(np.square(rows).sum(axis=1), 0.9))
    step = 0.5 / (curvature * longest + regularisation)
    steps = max(1, len(rows) // BATCH)
    for _ in range(epochs):
        snapshot = weights.copy()
        at_snapshot = rows @ snapshot
        full = rows.T @ loss.gradient(at_snapshot, labels) / len(rows)
        past = [weights.copy()]
        for _ in range(steps):
            batch = random.integers(0, len(rows), BATCH)
            for own, part in enumerate(parts):
                if staleness and random.integers(len(parts)) != own:
                    # Parties are not in step: on the average one of them moves at a time.
                    continue
                seen = past[-1 - int(random.integers(0, min(staleness, len(past) - 1) + 1))].copy()
                seen[part] = weights[part]
                change = loss.gradient(rows[batch] @ seen, labels[batch]) - loss.gradient(
                    at_snapshot[batch], labels[batch]
                )
                direction = rows[batch, part].T @ change / BATCH + full[part] + regularisation * seen[part]
                weights[part] -= step * direction
            past.append(weights.copy())
            del past[: -staleness - 1]
    return weights
