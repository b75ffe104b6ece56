"""The tables that the server of a federated forest publishes: ranges of features and labels, and
importances."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.forest.messages import MOMENTS
from benchmarks.forest.rules import Rules, uniform

__all__ = ["INPUTS", "LABEL", "Tables", "shares"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
INPUTS, LABEL = slice(None, -1), slice(-1, None)  # columns of the moments


def shares(gains: Floats, cap: float) -> Floats:
    """Shares of the gains, none above ``cap``. What is above it goes to the others in proportion, or evenly
    if they have none."""
    cap = max(cap, 1 / len(gains))
    found = gains / gains.sum()
    for _ in gains:
        excess = np.maximum(found - cap, 0).sum()
        if excess < 1e-12:
            break
        found = np.minimum(found, cap)
        room = found < cap
        to = np.where(room, found, 0) if found[room].any() else room.astype(float)
        found += excess * to / to.sum()
    return np.asarray(found)


def _published(numbers: Any) -> Floats:
    """As everybody reads them: tables are published as 32-bit floats, and used as 64-bit ones."""
    return np.asarray(np.asarray(numbers, np.float32), np.float64)


class Tables:
    """Moments of each client as it said them, and what the server makes of them. ``versions`` counts the
    tables so far.

    low, high, important (F,): where thresholds are drawn, and each feature's share of the gains of all splits
    so far. label_low, label_high: the range of a label's 8 bits; infinite before the first labels came.
    """

    def __init__(self, clients: int, features: int, rules: Rules, seed: int) -> None:
        self.rules, self.seed, self.versions = rules, seed, 0
        # Counts, sums and sums of squares a client, as it last published them; the label is last. `own`: as
        # the client has them. `coming`: by the round of arrival. `labels`: how many of each client's have
        # come, which the server counts itself.
        self.moments, self.own = np.zeros((2, 3, clients, features + 1))
        self.gains = np.zeros(features)
        self.labels, self.bytes_up = np.zeros(clients, np.int64), 0
        self.coming: dict[int, list[tuple[slice, Ints, Floats]]] = {}
        self.shift, self.label_count, self.due = np.zeros(features), 0, 0.0
        self.low, self.high, self.important = np.zeros(features), np.ones(features), np.zeros(features)
        self.label_low, self.label_high = -np.inf, np.inf
        self.ranges: list[tuple[float, float, float]] = [
            (-np.inf, -np.inf, np.inf)
        ]  # the pass that made it, low, high

    def note(self, what: slice, clients: Ints, now: Floats, when: Ints) -> None:
        """Clients add to moments of their INPUTS or of their LABEL; these come to the server in the round
        ``when``."""
        for round_number in np.unique(when).tolist():
            some = when == round_number
            self.coming.setdefault(round_number, []).append((what, clients[some], now[some]))

    def take(self, t: int) -> None:
        """What comes in this round. A client publishes its moments when their count is a power of two or
        passes one."""
        for what, clients, now in self.coming.pop(t, []):
            if what == INPUTS and not self.own[0, :, 0].any():
                self.shift = np.median(now, axis=0)
            before = self.own[0, :, what][:, 0].copy()
            for power, held in enumerate(self.own):
                np.add.at(held[:, what], clients, (now - (self.shift if what == INPUTS else 0)) ** power)
            new = np.frexp(self.own[0, :, what][:, 0])[1] > np.frexp(before)[1]
            self.moments[:, new, what] = self.own[:, new, what]
            self.bytes_up += int(new.sum()) * (MOMENTS + 8 * now.shape[1])
            if what == LABEL:
                self.label_count += len(clients)
                np.add.at(self.labels, clients, 1)

    def enough(self, what: slice) -> bool:
        """Nothing is made of moments before half of the clients have sent some: the first to speak would set
        the fences."""
        return bool(2 * (self.moments[0, :, what][:, 0] > 0).sum() >= len(self.moments[0]))

    @property
    def mean(self) -> float:
        """Of the labels, within their range; NaN before there is one."""
        return (
            float(np.clip(self._fenced(LABEL)[0][0], self.label_low, self.label_high))
            if self.label_low > -np.inf
            else np.nan
        )

    def _fenced(self, what: slice) -> tuple[Floats, Floats]:
        """Mean and deviation over clients that have any. A client's moments count within fences that the
        other clients set."""
        n, sums, squares = self.moments[:, self.moments[0, :, what][:, 0] > 0, what]
        mean = sums / n
        deviation = np.sqrt(np.maximum(squares / n - mean**2, 0))
        # One client in twenty of each side, one at least, and for labels a quarter, set the fences but do not
        # move them.
        part, reach = (0.25, 1.5) if what == LABEL else (0.05, 1.0)
        cut = min(max(1, int(part * len(n))), (len(n) - 1) // 2)
        for numbers in (mean, deviation):
            ordered = np.sort(numbers, axis=0)
            low, high = ordered[cut], ordered[-1 - cut]
            np.clip(numbers, low - reach * (high - low), high + reach * (high - low), out=numbers)
        n = np.minimum(
            n, np.median(n, axis=0)
        )  # A client that says it has more labels than most counts as one of them.
        grand = (n * mean).sum(0) / n.sum(0)
        return grand, np.sqrt((n * (deviation**2 + (mean - grand) ** 2)).sum(0) / n.sum(0))

    def renew(self, t: int) -> None:
        """A new version of ranges and importances, made in this pass."""
        grand, spread = self._fenced(INPUTS)
        self.low, self.high = (
            _published(grand + self.shift - 3 * spread),
            _published(grand + self.shift + 3 * spread),
        )
        if self.enough(LABEL):
            grand, spread = self._fenced(LABEL)
            reach = self.rules.reach * spread[0]
            self.label_low = float(_published(grand[0] - reach))
            self.label_high = float(_published(grand[0] + reach + 1e-9))
            self.ranges.append((t, self.label_low, self.label_high))
        if self.gains.any():
            self.important = _published(shares(self.gains, self.rules.cap))
        self.due = min(
            2.0 * self.label_count, self.label_count + self.rules.table_labels * len(self.moments[0])
        )
        self.versions += 1

    def ranges_at(self, passes: Ints) -> tuple[Floats, Floats]:
        """The range of labels, low and high, that a client knows if it has read what the server said up to
        this pass."""
        when, low, high = np.array(self.ranges).T
        known = np.searchsorted(when, passes, side="right") - 1
        return low[known], high[known]

    def candidates(
        self, code: Ints, number: Ints, low: NDArray[np.float32], high: NDArray[np.float32]
    ) -> tuple[Ints, Floats]:
        """Features and thresholds (blocks, 32) of new blocks, which everybody draws alike from the seed, the
        code of
        the version, the block's number in it, and the tables.

        low, high (blocks, F): where each block's cell is cut. A feature is drawn by importance, or else they
        take turns from a random one on. It is drawn again, at most 8 times, while the cell has no width in
        it.
        """
        low, high = np.maximum(low, self.low), np.minimum(high, self.high)
        f = len(self.low)
        each = (
            code[:, None, None],
            number[:, None, None],
            np.arange(32)[None, :, None],
            np.arange(12)[None, None],
        )
        lots = uniform(self.seed, 4, *each)
        feature = ((uniform(self.seed, 5, code, number) * f).astype(np.int64)[:, None] + np.arange(32)) % f
        if self.important.any():
            by_importance = np.minimum(np.searchsorted(np.cumsum(self.important), lots[..., 1]), f - 1)
            feature = np.where(lots[..., 0] < self.rules.importance, by_importance, feature)
        line = np.arange(len(code))[:, None]
        for again in range(8):
            empty = high[line, feature] - low[line, feature] <= 1e-12
            feature = np.where(empty, (lots[..., 4 + again] * f).astype(np.int64), feature)
        width = np.maximum(high[line, feature] - low[line, feature], 0)
        return feature, low[line, feature] + width * lots[..., 2]
