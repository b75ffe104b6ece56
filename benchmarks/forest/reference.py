"""The federated forest: clients keep their samples, a server grows trees from 7-byte items. A study; it is no role.

``docs/forest.md`` gives every rule with its reason. ``Forest`` is the server and its clients in one object, so that a round is
array work. What a client does reads only what that client may know by then. Time is counted in rounds; lags are arrays.

A BLOCK is a cell of a tree with 32 candidate splits (feature, threshold) drawn in it. A client sends each kept sample once a block,
as an ITEM: a bit a candidate (is the feature above the threshold), and the label in 8 bits. The server splits the cell and its
parts, two or three levels deep, from the same items. Parts on the last level become blocks, and their samples are sent again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.forest.rules import Rules, Table, uniform
from benchmarks.forest.tables import INPUTS, LABEL, Tables

__all__ = ["Forest"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BITS = np.arange(32, dtype=np.uint32)
NEVER = np.iinfo(np.int64).max


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
            path=(np.uint32, (), 0), threshold=(np.float32, (), 0), split=(whole, (), NEVER), left=(whole, (), NEVER),
            items=(whole, (), 0), weight=(real, (), 0), total=(real, (), 0), base=(real, (), 0), base_total=(real, (), 0),
            fresh=(np.bool_, (), False), said=(real, (), 0), told=(real, (), np.nan),
        )  # fmt: skip
        # `changed`: the last pass in which a part of the block became a block of its own. `low`, `high`: the cell, where it is cut.
        self.blocks = Table(
            cell=(whole, (), 0), version=(whole, (), 0), chance=(real, (), 1), feature=(whole, (32,), 0), stored=(whole, (), 0),
            threshold=(np.float32, (32,), 0), low=(np.float32, (f,), -np.inf), high=(np.float32, (f,), np.inf),
            changed=(whole, (), -9), expected=(real, (), 0), levels=(whole, (), 0),
        )  # fmt: skip
        # A version of a tree; a tree has a current one, and at times a shadow that replaces it.
        numbers: dict[str, Any] = dict.fromkeys(("cell", "block", "born", "splits"), (whole, (), 0))
        self.versions = Table(**numbers, leaves=(whole, (), 1), ended=(np.bool_, (), False))
        self.held = np.full(rows, -1)  # versions: current ones, then shadows
        self.events: list[tuple[int, int, int]] = []  # (pass, row, version): it began; row -1 - b: shadow b takes over
        self.due = [4 * k * rules.growth ** (b / rules.trees) for b in range(rules.trees)]
        # What clients know, and their kept samples: number, block in each version, whether the block's item was sent or left out.
        self.known = np.full((rows, k), -1)
        self.until, self.heard = np.full(k, -2), np.zeros(k, np.int64)
        self.ring, self.ring_count = np.full((k, min(rules.kept, labels.shape[1])), -1), np.zeros(k, np.int64)
        self.block, self.sent = np.zeros((rows, *self.ring.shape), np.int64), np.ones((rows, *self.ring.shape), np.bool_)
        # The server: items on their way and stored (cell, mask, label, weight), and the tables it publishes.
        self.flying: dict[int, list[tuple[NDArray[Any], ...]]] = {}
        self.stored: list[NDArray[Any]] = [np.empty(0, whole), np.empty(0, np.uint32), np.empty(0), np.empty(0)]
        self.values: dict[int, Floats] = {}
        self.tables, self.count = Tables(k, f, rules, seed), dict.fromkeys(("items", "late", "splits", "blocks"), 0)
        self.bytes_up, self.bytes_down, self.values_told = np.zeros(labels.shape), 0, 0

    def predict(self, t: int, clients: Ints) -> Floats:
        """The mean of the trees that each client knows, for its sample t; NaN where it knows none."""
        self.tables.note(INPUTS, clients, self.inputs[clients, t].astype(float), t + self.up[clients, t])
        self.tables.take(t)
        if not self.versions.size and self.tables.enough(INPUTS):
            self.tables.renew(t - 1)  # Clients say what their first inputs are like; trees stand when the first labels come.
            for number in range(self.rules.trees):
                self._plant(t - 1, number, 0.0)
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
        """Labels come (a client may be there twice), clients send items for `spare` bytes each (K,), the server makes a pass."""
        left = np.arange(len(clients))
        while len(left):
            _, first = np.unique(clients[left], return_index=True)
            now, left = left[first], np.delete(left, first)
            slots = self.ring_count[clients[now]] % self.ring.shape[1]
            self.ring[clients[now], slots] = samples[now]
            self.ring_count[clients[now]] += 1
            rows, place = np.nonzero(self.known[:, clients[now]] >= 0)
            self._enter(rows, clients[now][place], slots[place])
        self.tables.note(LABEL, clients, self.labels[clients, samples][:, None], t + self.up[clients, t])
        self._upload(t, np.unique(clients), np.full(len(self.labels), self.rules.item_bytes) if spare is None else spare)
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
        rows, place, slots = (what[np.argsort(place * 2 * trees * size + by)] for what in (rows, place, slots))
        # A header of 8 bytes; 2 a version (which, count), 7 an item (block, mask, label), 10 before labels have a range.
        _, starts = np.unique(place * 2 * trees + rows, return_index=True)
        low, high = self.tables.ranges_at(self.until[clients])
        cost = (each := np.where(np.isinf(low), 6, 3) + self.rules.candidates // 8)[place]
        cost[starts] += 2
        cost = np.cumsum(cost)
        before = np.concatenate([[0], cost])[np.searchsorted(place, place)]
        taken = cost - before + 8 <= spare[clients][place]
        self.bytes_up[clients, t] = np.bincount(place[taken], minlength=len(clients)) * each
        self.bytes_up[clients, t] += 8 + 2 * np.bincount(place[starts][taken[starts]], minlength=len(clients))
        rows, of, slots = rows[taken], clients[place[taken]], slots[taken]
        self.sent[rows, of, slots] = True
        block, sample = self.block[rows, of, slots], self.ring[of, slots]
        above = self.kept_inputs[of[:, None], sample[:, None], self.blocks["feature"][block]] > self.blocks["threshold"][block]
        above[:, self.rules.candidates :] = False
        masks = np.packbits(above, axis=1, bitorder="little").view(np.uint32).ravel()
        # The label in 8 bits, rounded up or down by chance, so that sums are right in the mean; one draw a sample.
        label, low, high = self.labels[of, sample], low[place[taken]], high[place[taken]]
        with np.errstate(invalid="ignore"):
            code = np.floor(np.clip((label - low) / (high - low), 0, 1) * 255 + uniform(self.seed, 3, of, sample))
            label = np.where(np.isinf(low), label, code / 255 * (high - low) + low)
        for lag in np.unique(self.up[of, t]).tolist():
            some = self.up[of, t] == lag
            self.flying.setdefault(t + lag, []).append((block[some], masks[some], label[some]))
        self.count["items"] += len(block)

    def _open(self, cells: Ints, versions: Ints, low: NDArray[Any], high: NDArray[Any]) -> Ints:
        """New blocks for these cells."""
        rules, block = self.rules, np.arange(len(cells)) + self.blocks.add(len(cells))
        base = self.cells["base"][cells]
        self.blocks["cell"][block], self.blocks["version"][block] = cells, versions
        self.blocks["chance"][block] = chance = np.minimum(1, rules.most / np.maximum(base, 1))
        self.blocks["expected"][block] = base * chance
        self.blocks["levels"][block] = np.where(base < rules.few, rules.few_levels, rules.levels)
        self.blocks["low"][block], self.blocks["high"][block] = low, high
        self.blocks["feature"][block], self.blocks["threshold"][block] = self.tables.candidates(block, low, high)
        self.cells["block"][cells], self.cells["level"][cells] = block, 0
        self.count["blocks"] += len(cells)
        return block

    def _plant(self, t: int, row: int, base: float) -> None:
        """A new version of a tree: one cell, one block."""
        version, cell = self.versions.add(1), self.cells.add(1)
        self.cells["base"][cell], self.cells["base_total"][cell] = base, base * self.tables.mean if base else 0
        uncut = np.full((1, self.inputs.shape[2]), np.inf)
        (block,) = self._open(np.array([cell]), np.array([version]), -uncut, uncut)
        for name, value in (("cell", cell), ("block", block), ("born", self.tables.label_count)):
            self.versions[name][version] = value
        self.held[row] = version
        self.events.append((t, row, version))

    def _pass(self, t: int) -> None:
        """One decision pass: take the items that have come, split what is ripe, renew trees, publish."""
        self.tables.take(t)
        if self.tables.label_count >= self.tables.due and self.tables.enough(LABEL) and self.tables.enough(INPUTS):
            self.tables.renew(t)
        self.versions["splits"][:] = 0
        come = self.flying.pop(t, [])
        if come and np.isinf(self.tables.label_low):
            self.flying.setdefault(t + 1, []).extend(come)  # Items wait for the range to which their labels are cut.
        elif come:
            self._take(*(np.concatenate(parts) for parts in zip(*come, strict=True)))
            self._grow(t)
        self._renew(t)
        largest, total = self._worth(np.arange(self.cells.size))
        prior, (said, told) = self.rules.prior + (largest == 0), (self.cells[n][: self.cells.size] for n in ("said", "told"))
        value = (total + prior * self.tables.mean) / (largest + prior)
        news = (largest >= self.rules.news * said) & (value != told) & np.isfinite(value)
        said[news], told[news] = largest[news], value[news]
        self.values[t], self.values_told = told.copy(), self.values_told + int(news.sum())
        for old in [when for when in self.values if when < min(t, self.until.min(initial=t))]:
            del self.values[old]

    def _worth(self, cell: Ints) -> tuple[Floats, Floats]:
        """What is known of these cells, weight and sum of labels: as counted, or their base until as much is counted."""
        weight, base = self.cells["weight"][cell], self.cells["base"][cell]
        own = weight >= base
        return np.maximum(weight, base), np.where(own, self.cells["total"][cell], self.cells["base_total"][cell])

    def _take(self, block: Ints, masks: NDArray[np.uint32], label: Floats) -> None:
        """Items go down their block by the bits of its splits. What belongs to a part that has left the block is dropped."""
        cell = self.blocks["cell"][block]
        for _ in range(max(self.rules.levels, self.rules.few_levels)):
            child = self.cells["child"][cell]
            inside = (child >= 0) & (self.cells["block"][cell] == block)
            bit = (masks >> self.cells["bit"][cell].astype(np.uint32)) & 1
            cell = np.where(inside, child + bit, cell)
        label = np.clip(label, self.tables.label_low, self.tables.label_high)
        alive = ~self.versions["ended"][self.blocks["version"][block]] & (self.cells["child"][cell] < 0)
        good = alive & (self.cells["block"][cell] == block)
        # The part is a block by now, whose samples are to come again: until then the item counts in the part's base.
        late = alive & ~good
        weight = 1 / self.blocks["chance"][block]
        self._add("base", cell[late], weight[late])
        self._add("base_total", cell[late], (weight * label)[late])
        self.count["late"] += int((~good).sum())
        if self.rules.trust:
            known, total = self._worth(cell)
            judged = np.flatnonzero(good & (known >= 1))
            good[judged] = ~self.tables.false(np.abs(label[judged] - total[judged] / known[judged]))
        block, masks, label, cell, weight = block[good], masks[good], label[good], cell[good], weight[good]
        self._count(cell, label, weight)
        self.blocks["stored"][: self.blocks.size] += np.bincount(block, minlength=self.blocks.size)
        self.stored = [np.concatenate(pair) for pair in zip(self.stored, (cell, masks, label, weight), strict=True)]

    def _add(self, name: str, cell: Ints, what: Floats) -> None:
        self.cells[name][: self.cells.size] += np.bincount(cell, what, self.cells.size).astype(self.cells[name].dtype)

    def _count(self, cell: Ints, label: Floats, weight: Floats) -> None:
        for name, what in (("items", np.ones(len(cell))), ("weight", weight), ("total", weight * label)):
            self._add(name, cell, what)
        self.cells["fresh"][cell] = True

    def _grow(self, t: int) -> None:
        """Split ripe cells, then their parts, as long as any is ripe."""
        cells, rules = self.cells, self.rules
        touched, gone = set[int](), 0
        while True:
            fresh, items, block, level = (cells[name][: cells.size] for name in ("fresh", "items", "block", "level"))
            expected = np.where(level == 0, self.blocks["expected"][block], 0)
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
                self._count(to, label[moved], weight[moved])
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
        np.add.at(self.tables.gains, feature, gain)
        version = self.blocks["version"][block]
        for name in ("leaves", "splits"):
            np.add.at(self.versions[name], version, 1)
        self.count["splits"] += len(cell)
        parts = np.concatenate([child, child + 1])
        return np.asarray(parts[cells["level"][parts] == self.blocks["levels"][cells["block"][parts]]])

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
        above, below = (every[:, None] >> BITS & 1) == 1, ((some[:, None] >> BITS & 1) == 0) & (self.rules.candidates > BITS)
        np.maximum.at(low, (line[above], feature[above]), threshold[above])
        np.minimum.at(high, (line[below], feature[below]), threshold[below])
        cells["base"][of], cells["base_total"][of] = self._worth(of)
        for name in ("items", "weight", "total", "path"):
            cells[name][of] = 0
        cells["left"][of], self.blocks["changed"][old], cells["fresh"][of] = t, t, False
        self._open(of, self.blocks["version"][old], low, high)

    def _renew(self, t: int) -> None:
        """A tree's early splits were made on little: at times a shadow grows beside it from all kept samples, and replaces it."""
        rules, trees, k = self.rules, self.rules.trees, len(self.labels)
        kept = int(np.minimum(self.tables.moments[0, :, -1], self.ring.shape[1]).sum())  # as far as the server knows
        for tree in range(trees):
            shadow = self.held[trees + tree]
            if shadow < 0:
                if self.held[tree] >= 0 and self.due[tree] <= self.tables.label_count <= rules.renewed * kept:
                    self._plant(t, trees + tree, float(kept))
                continue
            age = self.tables.label_count - self.versions["born"][shadow]
            still = self.versions["splits"][shadow] <= 0.02 * self.versions["leaves"][shadow]
            large = self.versions["leaves"][shadow] >= rules.grown * self.versions["leaves"][self.held[tree]]
            if large and ((age > 5 * k and still) or age >= 60 * k):
                self.versions["ended"][self.held[tree]] = True
                self.held[tree], self.held[trees + tree] = shadow, -1
                self.events.append((t, -1 - tree, int(shadow)))
                self.due[tree] = self.tables.label_count * rules.growth
