"""The tables that the server of a federated forest publishes: ranges of features and labels, and importances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.forest.rules import Rules, uniform

__all__ = ["Tables"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Tables:
    """Moments of each client as it said them, and what the server makes of them. ``versions`` counts the tables so far.

    low, high, important (F,): where thresholds are drawn, and each feature's share of the gains of all splits so far.
    label_low, label_high: the range of a label's 8 bits; infinite before the first labels came.
    """

    def __init__(self, clients: int, features: int, rules: Rules, seed: int) -> None:
        self.rules, self.seed, self.versions = rules, seed, 0
        # Counts, sums and sums of squares a client; the label is last.
        self.moments, self.gains = np.zeros((3, clients, features + 1)), np.zeros(features)
        self.residuals = np.empty(0)
        self.shift: Floats = np.zeros(features + 1)
        self.label_count, self.due, self.mean = 0, float(clients), 0.0
        self.low, self.high, self.important = np.zeros(features), np.ones(features), np.zeros(features)
        self.label_low, self.label_high = -np.inf, np.inf

    def note_inputs(self, clients: Ints, now: Floats) -> None:
        """Clients publish counts, sums and sums of squares of their inputs, and below of their labels."""
        if not self.versions and len(clients):
            self.shift[:-1] = now.mean(0)
        for power, held in enumerate(self.moments):
            held[clients, :-1] += (now - self.shift[:-1]) ** power

    def note_labels(self, clients: Ints, now: Floats) -> None:
        if not len(clients):
            return
        if not self.label_count:
            self.shift[-1] = np.median(now)
        for power, held in enumerate(self.moments):
            np.add.at(held[:, -1], clients, (now - self.shift[-1]) ** power)
        self.label_count += len(clients)
        mean = self.moments[1, :, -1].sum() / self.label_count + self.shift[-1]
        self.mean = float(np.clip(mean, self.label_low, self.label_high))

    def renew(self) -> None:
        """A new version of ranges and importances. A client's moments count within fences that the other clients set."""
        there = self.moments[0, :, 0] > 0
        n, sums, squares = self.moments[:, there]
        n = np.maximum(n, 1e-9)
        mean = sums / n
        deviation = np.sqrt(np.maximum(squares / n - mean**2, 0))
        # One client in twenty of each side, one at least, and for labels a quarter, set the fences but do not move them.
        for numbers in (mean, deviation):
            for columns, part, reach in ((slice(None, -1), 0.05, 1.0), (slice(-1, None), 0.25, 1.5)):
                ordered, cut = np.sort(numbers[:, columns], axis=0), min(max(1, int(part * len(n))), (len(n) - 1) // 2)
                low, high = ordered[cut], ordered[-1 - cut]
                numbers[:, columns] = np.clip(numbers[:, columns], low - reach * (high - low), high + reach * (high - low))
        grand = (n * mean).sum(0) / n.sum(0)
        spread = np.sqrt((n * (deviation**2 + (mean - grand) ** 2)).sum(0) / n.sum(0))
        grand += self.shift
        self.low, self.high = (grand - 3 * spread)[:-1], (grand + 3 * spread)[:-1]
        if self.label_count:
            reach = self.rules.reach * spread[-1]
            self.label_low, self.label_high = grand[-1] - reach, grand[-1] + reach + 1e-9
        if self.gains.any():
            self.important = np.minimum(self.gains / self.gains.sum(), self.rules.cap)
            self.important /= self.important.sum()
        self.due = min(2.0 * self.label_count, self.label_count + self.rules.table_labels * len(self.moments[0]))
        self.versions += 1

    def false(self, residuals: Floats) -> NDArray[np.bool_]:
        """Which of these items are not to be trusted: their residual is over 4 medians of the latest 512 a tree."""
        self.residuals = np.concatenate([self.residuals, residuals])[-512 * self.rules.trees :]
        if len(self.residuals) < 64:
            return np.zeros(len(residuals), np.bool_)
        return np.asarray(residuals > 4 * np.median(self.residuals))

    def candidates(self, block: Ints, low: NDArray[np.float32], high: NDArray[np.float32]) -> tuple[Ints, Floats]:
        """Features and thresholds (blocks, 32) of new blocks, which everybody draws alike from the seed, the block and the tables.

        low, high (blocks, F): where each block's cell is cut. A feature is drawn by importance, or else they take turns from a
        random one on. It is drawn again, at most 8 times, while the cell has no width in it.
        """
        low, high = np.maximum(low, self.low), np.minimum(high, self.high)
        f = len(self.low)
        lots = uniform(self.seed, 4, block[:, None, None], np.arange(32)[None, :, None], np.arange(12)[None, None])
        feature = ((uniform(self.seed, 5, block) * f).astype(np.int64)[:, None] + np.arange(32)) % f
        if self.important.any():
            by_importance = np.minimum(np.searchsorted(np.cumsum(self.important), lots[..., 1]), f - 1)
            feature = np.where(lots[..., 0] < self.rules.importance, by_importance, feature)
        line = np.arange(len(block))[:, None]
        for again in range(8):
            empty = high[line, feature] - low[line, feature] <= 1e-12
            feature = np.where(empty, (lots[..., 4 + again] * f).astype(np.int64), feature)
        width = np.maximum(high[line, feature] - low[line, feature], 0)
        return feature, low[line, feature] + width * lots[..., 2]
