"""The federated forest: clients keep their samples, a server grows trees from 7-byte items. A reference to measure; it is no role.

Read ``docs/forest.md`` first: it gives every rule with its reason. ``Forest`` is the server and its clients in one object, so that
a round is array work; what a client does reads only what that client may know by then. Time is counted in rounds; lags are arrays.

A tree is made of BLOCKS. A block is a cell of its tree and 32 candidate splits (feature, threshold) drawn in that cell. A client
sends each kept sample once a block, as an ITEM: one bit a candidate (is the feature above the threshold) and the label in 8 bits.
The server splits the cell, and its parts, up to three levels deep, from the same items. A part that cannot be split any more inside
the block becomes the cell of a block of its own, and then its samples are sent again with 32 bits about new candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Forest", "Rules", "uniform"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BITS = np.arange(32, dtype=np.uint32)
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Rules:
    """Defaults were chosen by ``python -m benchmarks.forest rules``; docs/forest.md gives the figures of the alternatives."""

    trees: int = 16
    candidates: int = 32  # of a block; their bits are half of an item's bytes
    levels: int = 3  # of a block
    few_levels: int = 2  # of a block whose cell holds few samples
    few: float = 64.0
    least: int = 10  # items in a cell before it may split
    share: float = 0.75  # of the items that are expected in a cell, before it may split
    most: int = 200  # items expected in a new block; of a larger cell a part is sent, drawn by hash
    stored: int = 2048  # items of an open block at the server
    kept: int = 256  # samples that a client keeps
    item_bytes: int = 570  # of items in a client's upload
    growth: float = 3.0  # of the number of labels, from one renewal of a tree to the next
    grown: float = 0.7  # of its tree's leaves, that a shadow must have before it takes over
    renewed: float = 1.5  # a tree is renewed only while so many times the kept samples hold all labels
    importance: float = 0.5  # share of candidates drawn by importance; negative: by the number of inputs
    cap: float = 0.25  # of the importance, that one feature may hold
    order: str = "trees"
    tight: bool = True  # thresholds avoid the part of a cell where the parent's items showed nothing
    ranges: str = "deviations"  # where thresholds are drawn: "deviations" or "extremes"
    reach: float = 8.0  # deviations from the mean of labels, that a label's 8 bits cover
    prior: float = 0.0  # samples with the mean label, that each cell counts besides; for two classes 1
    trust: bool = False  # drop items whose residual is over 4 medians
    table_labels: int = 10  # labels a client, from one version of ranges and importances to the next
    nodes: int = 8192  # of a tree, at most


def uniform(*parts: Any) -> Floats:
    """Numbers in [0, 1) that everybody computes alike from the same integers (splitmix64), in the shape that these broadcast to."""
    state = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for part in parts:
            state = (np.asarray(part).astype(np.uint64) ^ state) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return np.asarray((state >> np.uint64(11)).astype(np.float64) / 2.0**53)


class Table:
    """Columns that grow together; ``add`` returns the first new row."""

    def __init__(self, **columns: tuple[Any, tuple[int, ...], Any]) -> None:
        self.size, self._fill = 0, {name: (shape, fill) for name, (_, shape, fill) in columns.items()}
        self.of = {name: np.full((1024, *shape), fill, dtype) for name, (dtype, shape, fill) in columns.items()}

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.of[name]

    def add(self, count: int) -> int:
        first, self.size = self.size, self.size + count
        for name, (shape, fill) in self._fill.items():
            held = self.of[name]
            if self.size > len(held):
                self.of[name] = np.concatenate([held, np.full((max(len(held), count), *shape), fill, held.dtype)])
        return first


class Forest:
    """One forest over the streams of K clients. Call ``predict(t, ...)``, then ``learn(t, ...)``, round by round.

    inputs: (K, T, F) float32; what a client knows of a sample before its label.
    labels: (K, T), as the clients say them; a liar's are false.
    up, down: rounds that an upload takes, and rounds by which the known forest is old: (K, T) each.
    kept_inputs: the inputs as clients keep them, where they keep codes; left out: ``inputs``.
    """

    def __init__(
        self, inputs: NDArray[Any], labels: Floats, rules: Rules, seed: int, up: Ints, down: Ints,
        kept_inputs: NDArray[Any] | None = None,
    ) -> None:  # fmt: skip
        self.rules, self.seed, self.labels, self.up, self.down = rules, seed, labels, up, down
        self.inputs = inputs.astype(np.float32, copy=False)  # the caller fills in the rounds as they come
        self.kept_inputs = self.inputs if kept_inputs is None else kept_inputs.astype(np.float32)
        (k, f), rows = (len(labels), inputs.shape[2]), 2 * rules.trees
        whole, real = np.int64, np.float64
        # A cell of a tree. `split`, `left`: the passes in which it was split and became a block; clients hear of it later.
        self.cells = Table(
            block=(whole, (), 0), level=(whole, (), 0), child=(whole, (), -1), feature=(whole, (), 0), bit=(whole, (), 0),
            path=(np.uint32, (), 0),
            threshold=(np.float32, (), 0), split=(whole, (), NEVER), left=(whole, (), NEVER), items=(whole, (), 0),
            weight=(real, (), 0), total=(real, (), 0), base=(real, (), 0), base_total=(real, (), 0), fresh=(np.bool_, (), False),
        )  # fmt: skip
        # `changed`: the last pass in which a part of the block became a block of its own. `low`, `high`: the cell, where it is cut.
        self.blocks = Table(
            cell=(whole, (), 0), version=(whole, (), 0), chance=(real, (), 1), feature=(whole, (32,), 0), stored=(whole, (), 0),
            threshold=(np.float32, (32,), 0), low=(np.float32, (f,), -np.inf), high=(np.float32, (f,), np.inf),
            changed=(whole, (), -9), expected=(real, (), 0),
            levels=(whole, (), 0),
        )  # fmt: skip
        # A version of a tree; a tree has a current one, and at times a shadow that replaces it.
        self.versions = Table(
            cell=(whole, (), 0), block=(whole, (), 0), born=(whole, (), 0), leaves=(whole, (), 1), splits=(whole, (), 0),
            ended=(np.bool_, (), False),
        )  # fmt: skip
        self.held = np.full(rows, -1)  # versions: current ones, then shadows
        self.events: list[tuple[int, int, int]] = []  # (pass, row, version): it began; row -1 - b: shadow b takes over
        self.due = [4 * k * rules.growth ** (b / rules.trees) for b in range(rules.trees)]
        # What clients know, and their kept samples: number, block in each version, whether the block's item was sent or left out.
        self.known = np.full((rows, k), -1)
        self.until, self.heard = np.full(k, -2), np.zeros(k, np.int64)
        self.ring, self.ring_count = np.full((k, min(rules.kept, labels.shape[1])), -1), np.zeros(k, np.int64)
        self.block = np.zeros((rows, *self.ring.shape), np.int64)
        self.sent = np.ones(self.block.shape, np.bool_)
        # The server: items on their way and stored (cell, mask, label, weight), clients' moments, gains of features.
        self.flying: dict[int, list[tuple[NDArray[Any], ...]]] = {}
        self.stored = [np.empty(0, whole), np.empty(0, np.uint32), np.empty(0), np.empty(0)]
        self.moments, self.gains = np.zeros((3, k, f + 1)), np.zeros(f)  # counts, sums, sums of squares; the label is last
        self.shift: Floats = np.zeros(f + 1)
        self.label_count, self.table_due, self.mean = 0, float(k), 0.0
        self.low, self.high, self.important = np.zeros(f), np.ones(f), np.zeros(f)
        self.label_low, self.label_high = -np.inf, np.inf
        self.values: dict[int, Floats] = {}
        self.residuals = np.zeros((rules.trees, 0))
        self.count = dict.fromkeys(("items", "late", "distrusted", "splits", "blocks", "tables"), 0)
        self.bytes_up, self.bytes_down = np.zeros(labels.shape), 0

    # --- clients -----------------------------------------------------------------------------------------------------------------

    def predict(self, t: int, clients: Ints) -> Floats:
        """The mean of the trees that each client knows, for its sample t; NaN where it knows none."""
        self._note_inputs(clients, t)
        if not self.versions.size and len(clients):
            # Clients say what their inputs are like with the first sample, so trees stand when the first labels come.
            self._tables()
            for tree in range(self.rules.trees):
                self._plant(t - 1, tree, 0.0)
            self.values[t - 1] = np.full(self.cells.size, np.nan)
        self._hear(t, clients)
        known, until = self.known[: self.rules.trees, clients], self.until[clients]
        tree, place = np.nonzero(known >= 0)
        cell = self.versions["cell"][known[tree, place]]
        going = np.arange(len(cell))
        while len(going):
            going = going[self.cells["split"][cell[going]] <= until[place[going]]]
            at, of = cell[going], clients[place[going]]
            cell[going] = self.cells["child"][at] + (self.inputs[of, t, self.cells["feature"][at]] > self.cells["threshold"][at])
        value = np.full(known.shape, np.nan)
        for when in np.unique(until[place]).tolist():
            some = until[place] == when
            value[tree[some], place[some]] = self.values[when][cell[some]]
        return np.where(np.isfinite(value).any(0), np.nansum(value, 0) / np.maximum(np.isfinite(value).sum(0), 1), np.nan)

    def learn(self, t: int, clients: Ints, samples: Ints, spare: Ints | None = None) -> None:
        """Round t: labels of these clients' samples come (a client may be there twice). They send items; the server makes a pass.

        spare: bytes for the items of each of the K clients; left out: the rules'.
        """
        left = np.arange(len(clients))
        while len(left):
            _, first = np.unique(clients[left], return_index=True)
            now, left = left[first], np.delete(left, first)
            slots = self.ring_count[clients[now]] % self.ring.shape[1]
            self.ring[clients[now], slots] = samples[now]
            self.ring_count[clients[now]] += 1
            rows, place = np.nonzero(self.known[:, clients[now]] >= 0)
            self._enter(rows, clients[now][place], slots[place])
        self._note_labels(clients, samples)
        speaking = np.unique(clients)
        self._upload(t, speaking, np.full(len(self.labels), self.rules.item_bytes) if spare is None else spare)
        self._pass(t)

    def _hear(self, t: int, clients: Ints) -> None:
        """Clients read the forest as it was `down` rounds ago: versions that began or ended, and parts that became blocks."""
        before = self.until[clients]
        self.until[clients] = until = np.maximum(t - 1 - self.down[clients, t], before)
        for number in range(int(self.heard[clients].min(initial=len(self.events))), len(self.events)):
            when, row, version = self.events[number]
            hearing = clients[(self.heard[clients] <= number) & (until >= when)]
            self.heard[hearing] = number + 1
            if row < 0:
                row, shadow = -1 - row, self.rules.trees - 1 - row
                for of_all in (self.known, self.block, self.sent):
                    of_all[row, hearing] = of_all[shadow, hearing]
                self.known[shadow, hearing] = -1
                continue
            self.known[row, hearing] = version
            place, slots = np.nonzero(self.ring[hearing] >= 0)
            self._enter(np.full(len(slots), row), hearing[place], slots)
        changed = self.blocks["changed"][self.block[:, clients]] > before[None, :, None]
        changed &= (self.known[:, clients] >= 0)[:, :, None] & (self.ring[clients] >= 0)[None]
        rows, place, slots = np.nonzero(changed)
        self._follow(rows, clients[place], slots)

    def _enter(self, rows: Ints, clients: Ints, slots: Ints) -> None:
        """Kept samples enter these versions at the root."""
        self.block[rows, clients, slots] = self.versions["block"][self.known[rows, clients]]
        self._draw(rows, clients, slots)
        self._follow(rows, clients, slots)

    def _draw(self, rows: Ints, clients: Ints, slots: Ints) -> None:
        """A sample that has come into a block is to be sent once; in a cell that holds many, only with the block's chance."""
        block = self.block[rows, clients, slots]
        chosen = uniform(self.seed, 1, clients, self.ring[clients, slots], block) < self.blocks["chance"][block]
        self.sent[rows, clients, slots] = ~chosen

    def _follow(self, rows: Ints, clients: Ints, slots: Ints) -> None:
        """Samples go down the structure that their client knows. One that comes into another block is to be sent again."""
        before, until, sample = self.block[rows, clients, slots], self.until[clients], self.ring[clients, slots]
        block, cell, going = before.copy(), self.blocks["cell"][before], np.arange(len(rows))
        while len(going):
            at = cell[going]
            own = self.cells["left"][at] <= until[going]
            block[going[own]] = self.cells["block"][at[own]]
            down = self.cells["split"][at] <= until[going]
            going, at = going[down], at[down]
            inputs = self.kept_inputs[clients[going], sample[going], self.cells["feature"][at]]
            cell[going] = self.cells["child"][at] + (inputs > self.cells["threshold"][at])
        moved = np.flatnonzero(block != before)
        rows, clients, slots = rows[moved], clients[moved], slots[moved]
        self.block[rows, clients, slots] = block[moved]
        self._draw(rows, clients, slots)

    def _upload(self, t: int, clients: Ints, spare: Ints) -> None:
        """Items for as many bytes as there are: current trees from a random one on, then shadows; the newest samples first."""
        trees, size = self.rules.trees, self.ring.shape[1]
        waiting = ~self.sent[:, clients] & (self.known[:, clients] >= 0)[:, :, None] & (self.ring[clients] >= 0)[None]
        rows, place, slots = np.nonzero(waiting)
        first = (uniform(self.seed, 2, clients, t) * trees).astype(np.int64)[place]
        turn = (rows % trees - first) % trees + rows // trees * trees
        age = (self.ring_count[clients][place] - 1 - slots) % size
        by = turn * size + age if self.rules.order == "trees" else (rows // trees * size + age) * trees + turn % trees
        order = np.argsort(place * 2 * trees * size + by)
        rows, place, slots = rows[order], place[order], slots[order]
        # A header of 8 bytes; 2 bytes (version of a tree, count) and then 7 an item (block, mask, label). Before there is a range
        # of labels, a label takes 4 bytes.
        _, starts = np.unique(place * 2 * trees + rows, return_index=True)
        first_labels = np.isinf(self.label_low)
        each = (6 if first_labels else 3) + self.rules.candidates // 8
        cost = np.full(len(rows), each)
        cost[starts] += 2
        cost = np.cumsum(cost)
        before = np.concatenate([[0], cost])[np.searchsorted(place, place)]
        taken = cost - before + 8 <= spare[clients][place]
        self.bytes_up[clients, t] = np.bincount(place[taken], minlength=len(clients)) * float(each)
        self.bytes_up[clients, t] += 8 + 2 * np.bincount(place[starts][taken[starts]], minlength=len(clients))
        rows, of, slots = rows[taken], clients[place[taken]], slots[taken]
        self.sent[rows, of, slots] = True
        block, sample = self.block[rows, of, slots], self.ring[of, slots]
        above = self.kept_inputs[of[:, None], sample[:, None], self.blocks["feature"][block]] > self.blocks["threshold"][block]
        above[:, self.rules.candidates :] = False
        masks = np.packbits(above, axis=1, bitorder="little").view(np.uint32).ravel()
        # The label in 8 bits, rounded up or down by chance, so that sums are right in the mean; one draw a sample.
        label, width = self.labels[of, sample], self.label_high - self.label_low
        if not first_labels:
            code = np.clip((label - self.label_low) / width, 0, 1) * 255
            label = np.floor(code + uniform(self.seed, 3, of, sample)) / 255 * width + self.label_low
        arrival = t + self.up[of, t]
        for when in np.unique(arrival).tolist():
            some = arrival == when
            self.flying.setdefault(when, []).append((block[some], masks[some], label[some]))
        self.count["items"] += len(block)

    # --- the server --------------------------------------------------------------------------------------------------------------

    def _note_inputs(self, clients: Ints, t: int) -> None:
        """Clients publish counts, sums and sums of squares of their inputs, and below of their labels."""
        now = self.inputs[clients, t].astype(float)
        if not self.versions.size and len(clients):
            self.shift[:-1] = now.mean(0)
        for power, held in enumerate(self.moments):
            held[clients, :-1] += (now - self.shift[:-1]) ** power

    def _note_labels(self, clients: Ints, samples: Ints) -> None:
        if not len(clients):
            return
        now = self.labels[clients, samples]
        if not self.label_count:
            self.shift[-1] = np.median(now)
        for power, held in enumerate(self.moments):
            np.add.at(held[:, -1], clients, (now - self.shift[-1]) ** power)
        self.label_count += len(clients)
        self.mean = float(self.moments[1, :, -1].sum() / self.label_count + self.shift[-1])

    def _tables(self) -> None:
        """A new version of ranges and importances. A client's moments count within fences that the other clients set."""
        there = self.moments[0, :, 0] > 0
        n, sums, squares = self.moments[:, there]
        n = np.maximum(n, 1e-9)
        mean = sums / n
        deviation = np.sqrt(np.maximum(squares / n - mean**2, 0))
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
            self.label_low, self.label_high = grand[-1] - self.rules.reach * spread[-1], grand[-1] + self.rules.reach * spread[-1] + 1e-9
        if self.gains.any():
            self.important = np.minimum(self.gains / self.gains.sum(), self.rules.cap)
            self.important /= self.important.sum()
        self.table_due = min(2.0 * self.label_count, self.label_count + self.rules.table_labels * len(self.labels))
        self.count["tables"] += 1

    def _open(self, cells: Ints, versions: Ints, low: NDArray[Any], high: NDArray[Any]) -> Ints:
        """New blocks for these cells, and their candidates, which everybody draws alike from the seed and the tables."""
        count, f, rules = len(cells), len(self.low), self.rules
        block = np.arange(count) + self.blocks.add(count)
        base = self.cells["base"][cells]
        self.blocks["cell"][block], self.blocks["version"][block] = cells, versions
        self.blocks["chance"][block] = chance = np.minimum(1, rules.most / np.maximum(base, 1))
        self.blocks["expected"][block] = base * chance
        self.blocks["levels"][block] = np.where(base < rules.few, rules.few_levels, rules.levels)
        self.blocks["low"][block], self.blocks["high"][block] = low, high
        low, high = np.maximum(low, self.low), np.minimum(high, self.high)
        share = rules.importance if rules.importance >= 0 else min(0.25 + max(np.log2(f) - 4, 0) / 16, 0.5)
        lots = uniform(self.seed, 4, block[:, None, None], np.arange(32)[None, :, None], np.arange(12)[None, None])
        feature = ((uniform(self.seed, 5, block) * f).astype(np.int64)[:, None] + np.arange(32)) % f
        if self.important.any():
            by_importance = np.minimum(np.searchsorted(np.cumsum(self.important), lots[..., 1]), f - 1)
            feature = np.where(lots[..., 0] < share, by_importance, feature)
        line = np.arange(count)[:, None]
        for again in range(8):
            empty = high[line, feature] - low[line, feature] <= 1e-12
            feature = np.where(empty, (lots[..., 4 + again] * f).astype(np.int64), feature)
        width = np.maximum(high[line, feature] - low[line, feature], 0)
        self.blocks["feature"][block], self.blocks["threshold"][block] = feature, low[line, feature] + width * lots[..., 2]
        self.cells["block"][cells], self.cells["level"][cells] = block, 0
        self.count["blocks"] += count
        return block

    def _plant(self, t: int, row: int, base: float) -> None:
        """A new version of a tree: one cell, one block."""
        version, cell = self.versions.add(1), self.cells.add(1)
        self.cells["base"][cell], self.cells["base_total"][cell] = base, base * self.mean
        shape = (1, len(self.low))
        (block,) = self._open(np.array([cell]), np.array([version]), np.full(shape, -np.inf), np.full(shape, np.inf))
        for name, value in (("cell", cell), ("block", block), ("born", self.label_count)):
            self.versions[name][version] = value
        self.held[row] = version
        self.events.append((t, row, version))

    def _pass(self, t: int) -> None:
        """One decision pass: take the items that have come, split what is ripe, renew trees, publish."""
        if self.label_count >= self.table_due:
            self._tables()
        self.versions["splits"][:] = 0
        come = self.flying.pop(t, [])
        if come:
            self._take(*(np.concatenate(parts) for parts in zip(*come, strict=True)))
            self._grow(t)
        self._renew(t)
        weight, base = (self.cells[name][: self.cells.size] for name in ("weight", "base"))
        total = np.where(weight >= base, self.cells["total"][: self.cells.size], self.cells["base_total"][: self.cells.size])
        largest = np.maximum(weight, base)
        prior = self.rules.prior + (largest == 0)
        self.values[t] = (total + prior * self.mean) / (largest + prior)
        for old in [when for when in self.values if when < min(t, self.until.min(initial=t))]:
            del self.values[old]

    def _take(self, block: Ints, masks: NDArray[np.uint32], label: Floats) -> None:
        """Items go down their block by the bits of its splits. What belongs to a part that has left the block is dropped."""
        cell = self.blocks["cell"][block]
        for _ in range(max(self.rules.levels, self.rules.few_levels)):
            child = self.cells["child"][cell]
            inside = (child >= 0) & (self.cells["block"][cell] == block)
            bit = (masks >> self.cells["bit"][cell].astype(np.uint32)) & 1
            cell = np.where(inside, child + bit, cell)
        label = np.clip(label, self.label_low, self.label_high)
        alive = ~self.versions["ended"][self.blocks["version"][block]] & (self.cells["child"][cell] < 0)
        good = alive & (self.cells["block"][cell] == block)
        # The part is a block by now, whose samples are to come again: until then the item counts in the part's base.
        late = alive & ~good
        for name, what in (("base", 1 / self.blocks["chance"][block[late]]), ("base_total", label[late] / self.blocks["chance"][block[late]])):
            self.cells[name][: self.cells.size] += np.bincount(cell[late], what, self.cells.size)
        self.count["late"] += int((~good).sum())
        if self.rules.trust:
            weight, base = self.cells["weight"][cell], self.cells["base"][cell]
            known = np.maximum(weight, base)
            total = np.where(weight >= base, self.cells["total"][cell], self.cells["base_total"][cell])
            residual = np.abs(label - total / np.maximum(known, 1e-9))
            judged = good & (known >= 1)
            self.residuals = np.concatenate([np.ravel(self.residuals), residual[judged]])[-512 * self.rules.trees :]
            if len(self.residuals) >= 64:
                false = judged & (residual > 4 * np.median(self.residuals))
                self.count["distrusted"] += int(false.sum())
                good &= ~false
        block, masks, label, cell = block[good], masks[good], label[good], cell[good]
        weight, size = 1 / self.blocks["chance"][block], self.cells.size
        for name, what in (("items", None), ("weight", weight), ("total", weight * label)):
            added = np.bincount(cell, what, size)
            self.cells[name][:size] += added.astype(self.cells[name].dtype)
        self.cells["fresh"][cell] = True
        self.blocks["stored"][: self.blocks.size] += np.bincount(block, minlength=self.blocks.size)
        self.stored = [np.concatenate(pair) for pair in zip(self.stored, (cell, masks, label, weight), strict=True)]

    def _grow(self, t: int) -> None:
        """Split ripe cells, then their parts, as long as any is ripe."""
        cells, rules = self.cells, self.rules
        touched, gone = set(), 0
        while True:
            size = cells.size
            fresh, items = cells["fresh"][:size], cells["items"][:size]
            block = cells["block"][:size]
            expected = np.where(cells["level"][:size] == 0, self.blocks["expected"][block], 0)
            room = 2 * self.versions["leaves"][self.blocks["version"][block]] < rules.nodes
            ripe = fresh & (items >= np.maximum(rules.least, rules.share * expected)) & room
            fresh[:] = False
            if not ripe.any():
                break
            chosen = np.flatnonzero(ripe[self.stored[0]])
            chosen = chosen[np.argsort(self.stored[0][chosen], kind="stable")]
            of, masks, label, weight = (held[chosen] for held in self.stored)
            cell, starts, count = np.unique(of, return_index=True, return_counts=True)
            sides = (masks[:, None] >> BITS & 1).astype(np.float64)
            above = np.add.reduceat(sides, starts)
            n, s = (np.add.reduceat(what, starts)[:, None] for what in (weight, weight * label))
            right, right_sum = (np.add.reduceat(sides * what[:, None], starts) for what in (weight, weight * label))
            parted = (above > 0) & (above < count[:, None])
            with np.errstate(divide="ignore", invalid="ignore"):
                gain = right_sum**2 / right + (s - right_sum) ** 2 / (n - right) - s**2 / n
            gain[~parted] = -1
            best = gain.argmax(1)
            most = gain[np.arange(len(cell)), best]
            mixed = np.maximum.reduceat(label, starts) > np.minimum.reduceat(label, starts)
            split = np.flatnonzero(mixed & (most > 1e-12))
            leaving = [cell[mixed & ~parted.any(1)], cell[self.blocks["stored"][cells["block"][cell]] > rules.stored]]
            if len(split):
                touched.update(cells["block"][cell[split]].tolist())
                leaving.append(self._split(t, cell[split], best[split], most[split]))
                where = np.searchsorted(cell[split], of)
                moved = (where < len(split)) & (cell[split][np.minimum(where, len(split) - 1)] == of)
                bit = masks[moved] >> best[split][where[moved]].astype(np.uint32) & 1
                to = cells["child"][of[moved]] + bit
                self.stored[0][chosen[moved]] = to
                for name, what in (("items", None), ("weight", weight[moved]), ("total", (weight * label)[moved])):
                    cells[name][: cells.size] += np.bincount(to, what, cells.size).astype(cells[name].dtype)
                cells["fresh"][to] = True
            out = np.unique(np.concatenate(leaving))
            out = out[cells["child"][out] < 0]
            if len(out):
                gone += len(out)
                self._leave(t, out)
        # A record of a block: 16 bytes of key and header, 7 splits, 8 values; the sides of 32 candidates in each cell that left.
        self.bytes_down += 31 * len(touched) + 8 * gone

    def _split(self, t: int, cell: Ints, bit: Ints, gain: Floats) -> Ints:
        """Two parts for each of these cells; returns the parts that become blocks, since they are on the last level."""
        cells = self.cells
        block, first = cells["block"][cell], cells.add(2 * len(cell))
        child = first + 2 * np.arange(len(cell))
        feature = self.blocks["feature"][block, bit]
        for name, value in (("child", child), ("bit", bit), ("feature", feature), ("split", t)):
            cells[name][cell] = value
        cells["threshold"][cell] = self.blocks["threshold"][block, bit]
        for part in (child, child + 1):
            cells["block"][part], cells["level"][part] = block, cells["level"][cell] + 1
            cells["path"][part] = cells["path"][cell] | np.uint32(1) << bit.astype(np.uint32)
        np.add.at(self.gains, feature, gain)
        version = self.blocks["version"][block]
        for name in ("leaves", "splits"):
            np.add.at(self.versions[name], version, 1)
        self.count["splits"] += len(cell)
        parts = np.concatenate([child, child + 1])
        return parts[cells["level"][parts] == self.blocks["levels"][cells["block"][parts]]]

    def _leave(self, t: int, out: Ints) -> None:
        """Cells become blocks of their own. What was counted in them is their base until as much is counted anew."""
        cells, leaves = self.cells, np.zeros(self.cells.size, np.bool_)
        leaves[out] = True
        inside = leaves[self.stored[0]]
        of, masks = self.stored[0][inside], self.stored[1][inside]
        self.stored = [held[~inside] for held in self.stored]
        order = np.argsort(of, kind="stable")
        of, starts = np.unique(of[order], return_index=True)
        every, some = np.bitwise_and.reduceat(masks[order], starts), np.bitwise_or.reduceat(masks[order], starts)
        if not self.rules.tight:
            every, some = every & cells["path"][of], some | ~cells["path"][of]
        old = cells["block"][of]
        low, high = self.blocks["low"][old], self.blocks["high"][old]
        feature, threshold = self.blocks["feature"][old], self.blocks["threshold"][old]
        line = np.broadcast_to(np.arange(len(of))[:, None], feature.shape)
        # A candidate with all items on one side cuts the cell: its parent's splits, and with `tight` all others too.
        above, below = (every[:, None] >> BITS & 1) == 1, ((some[:, None] >> BITS & 1) == 0) & (BITS < self.rules.candidates)
        np.maximum.at(low, (line[above], feature[above]), threshold[above])
        np.minimum.at(high, (line[below], feature[below]), threshold[below])
        more = cells["weight"][of] >= cells["base"][of]
        cells["base"][of] = np.where(more, cells["weight"][of], cells["base"][of])
        cells["base_total"][of] = np.where(more, cells["total"][of], cells["base_total"][of])
        for name in ("items", "weight", "total", "path"):
            cells[name][of] = 0
        cells["left"][of], self.blocks["changed"][old], cells["fresh"][of] = t, t, False
        self._open(of, self.blocks["version"][old], low, high)

    def _renew(self, t: int) -> None:
        """A tree's early splits were made on little: at times a shadow grows beside it from all kept samples, and replaces it."""
        rules, trees, k = self.rules, self.rules.trees, len(self.labels)
        kept = int(np.minimum(self.ring_count, self.ring.shape[1]).sum())
        for tree in range(trees):
            shadow = self.held[trees + tree]
            if shadow < 0:
                if self.held[tree] >= 0 and self.due[tree] <= self.label_count <= rules.renewed * kept:
                    self._plant(t, trees + tree, float(kept))
                continue
            age = self.label_count - self.versions["born"][shadow]
            still = self.versions["splits"][shadow] <= 0.02 * self.versions["leaves"][shadow]
            large = self.versions["leaves"][shadow] >= rules.grown * self.versions["leaves"][self.held[tree]]
            if large and ((age > 5 * k and still) or age >= 60 * k):
                self.versions["ended"][self.held[tree]] = True
                self.held[tree], self.held[trees + tree] = shadow, -1
                self.events.append((t, -1 - tree, int(shadow)))
                self.due[tree] = self.label_count * rules.growth
