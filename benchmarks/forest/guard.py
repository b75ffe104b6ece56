"""What keeps one client of a federated forest from deciding for the others: which items the server takes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.forest.rules import Rules

__all__ = ["Guard"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# A client's residuals are forgotten by this factor a pass. Nobody is judged before so many of its items were.
MEMORY, ENOUGH = 0.95, 64.0


class Guard:
    """The server's memory of each client: how far its labels lie from the forest's values, and the weight of
    its late items."""

    def __init__(self, clients: int, rules: Rules) -> None:
        self.rules, self.refused = rules, 0
        self.sums, self.counts = np.zeros(clients), np.zeros(clients)
        self.late, self.residuals = np.zeros((clients, 0)), np.empty(0)

    def believes(self, client: Ints, residual: Floats) -> NDArray[np.bool_]:
        """Which items are of clients whose mean residual is no more than ``rules.doubt`` times the median
        client's.

        client (N,) of the items; residual (N,): |label - value of the cell before|, NaN where the cell had no
        value.
        """
        judged, k = np.isfinite(residual), len(self.sums)
        said = np.bincount(client[judged], minlength=k)
        self.sums *= np.where(said > 0, MEMORY, 1)
        self.counts *= np.where(said > 0, MEMORY, 1)
        self.sums += np.bincount(client[judged], residual[judged], k)
        self.counts += said
        mean = np.where(self.counts >= ENOUGH, self.sums / np.maximum(self.counts, 1), np.nan)
        if np.isfinite(mean).sum() < 3:
            return np.ones(len(client), np.bool_)
        return np.asarray(~(mean > self.rules.doubt * np.nanmedian(mean))[client])

    def within(
        self, client: Ints, version: Ints, weight: Floats, late: NDArray[np.bool_], held: Floats, most: Floats
    ) -> NDArray[np.bool_]:  # fmt: skip
        """Which items keep a client within its samples: each of them lies in one cell of a tree.

        held (K, V): the weight of the client's items in open blocks of a version. most (K,): what it may be.
        A late item, which is not stored, counts for as long as the version lives.
        """
        k, v = held.shape
        self.late = np.hstack([self.late, np.zeros((k, v - self.late.shape[1]))])
        taken = np.ones(len(client), np.bool_)
        for some, before in ((~late, held), (late, self.late)):
            number = np.flatnonzero(some)
            group = client[number] * v + version[number]
            order = np.argsort(group, kind="stable")
            number, group = number[order], group[order]
            running = np.cumsum(weight[number])
            _, starts, count = np.unique(group, return_index=True, return_counts=True)
            running -= np.repeat(running[starts] - weight[number[starts]], count)
            taken[number] = before.ravel()[group] + running - weight[number] < most[client[number]]
        np.add.at(self.late, (client[late & taken], version[late & taken]), weight[late & taken])
        return taken

    def near(self, residuals: Floats) -> NDArray[np.bool_]:
        """Which items' residuals are at most 4 medians of the latest 512 a tree: a rule that was tried, and
        is off."""
        self.residuals = np.concatenate([self.residuals, residuals[np.isfinite(residuals)]])[
            -512 * self.rules.trees :
        ]
        if len(self.residuals) < 64:
            return np.ones(len(residuals), np.bool_)
        return np.asarray(~(residuals > 4 * np.median(self.residuals)))
