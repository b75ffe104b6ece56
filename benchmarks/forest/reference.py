"""The federated forest: clients keep their samples, a server grows trees from 7-byte items. A study; it is no
role.

``docs/forest.md`` gives every rule with its reason. ``Forest`` is the server and its clients in one object,
so that a round is array work. What a client does reads only what that client may know by then. Time is
counted in rounds; lags are arrays.

A BLOCK is a cell of a tree with 32 candidate splits (feature, threshold) drawn in it. A client sends each
kept sample once a block, as an ITEM: a bit a candidate (is the feature above the threshold), and the label in
8 bits. The server splits the cell and its parts, two or three levels deep, from the same items. Parts on the
last level become blocks, and their samples are sent again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.forest import messages as wire
from benchmarks.forest.clients import Clients
from benchmarks.forest.tables import INPUTS, LABEL

__all__ = ["Forest"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BITS = np.arange(32, dtype=np.uint32)


class Forest(Clients):
    """One forest over the streams of K clients. Call ``predict(t, ...)``, then ``learn(t, ...)``, round by
    round.

    inputs: (K, T, F) float32; what a client knows of a sample before its label.
    labels: (K, T), as the clients say them; a liar's are false.
    up, down: rounds that an upload takes, and rounds by which the known forest is old: (K, T) each.
    kept_inputs: the inputs as clients keep them, where they keep codes; left out: ``inputs``.
    """

    def predict(self, t: int, clients: Ints) -> Floats:
        """The mean of the trees that each client knows, for its sample t; NaN where it knows none."""
        self.tables.note(INPUTS, clients, self.inputs[clients, t].astype(float), t + self.up[clients, t])
        self.tables.take(t)
        if not self.versions.size and self.tables.enough(INPUTS):
            self.tables.renew(
                t - 1
            )  # Clients say what their first inputs are like; trees stand when the first labels come.
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
            cell[going] = self.cells["child"][at] + (
                self.inputs[of, t, self.cells["feature"][at]] > self.cells["threshold"][at]
            )
        value = np.full(known.shape, np.nan)
        for when in np.unique(until[place]).tolist():
            some = until[place] == when
            value[tree[some], place[some]] = self.values[when][cell[some]]
        return np.where(
            np.isfinite(value).any(0), np.nansum(value, 0) / np.maximum(np.isfinite(value).sum(0), 1), np.nan
        )

    def learn(self, t: int, clients: Ints, samples: Ints, spare: Ints | None = None) -> None:
        """Labels come (a client may be there twice), clients send items for `spare` bytes each (K,), the
        server makes a pass."""
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
        self._upload(
            t,
            np.unique(clients),
            np.full(len(self.labels), self.rules.item_bytes) if spare is None else spare,
        )
        self._pass(t)

    def _open(self, cells: Ints, versions: Ints, low: NDArray[Any], high: NDArray[Any]) -> Ints:
        """New blocks for these cells."""
        rules, block = self.rules, np.arange(len(cells)) + self.blocks.add(len(cells))
        base = np.minimum(np.rint(self.cells["base"][cells]), 65535)  # as the block's message has it
        self.blocks["cell"][block], self.blocks["version"][block] = cells, versions
        for version in np.unique(versions):
            of = block[versions == version]
            self.blocks["number"][of] = self.versions["blocks"][version] + np.arange(len(of))
            self.versions["blocks"][version] += len(of)
        code, number = self.versions["code"][versions], self.blocks["number"][block]
        self.blocks["chance"][block] = chance = np.minimum(1, rules.most / np.maximum(base, 1))
        self.blocks["expected"][block] = base * chance
        self.blocks["levels"][block] = np.where(base < rules.few, rules.few_levels, rules.levels)
        self.blocks["low"][block], self.blocks["high"][block] = low, high
        self.blocks["feature"][block], self.blocks["threshold"][block] = self.tables.candidates(
            code, number, low, high
        )
        self.cells["block"][cells], self.cells["level"][cells] = block, 0
        self.count["blocks"] += len(cells)
        return block

    def _plant(self, t: int, row: int, base: float) -> None:
        """A new version of a tree: one cell, one block."""
        version, cell, tree = self.versions.add(1), self.cells.add(1), row % self.rules.trees
        self.versions["code"][version] = tree + self.rules.trees * self.lives[tree]
        self.lives[tree] += 1
        self.cells["base"][cell], self.cells["base_total"][cell] = (
            base,
            base * self.tables.mean if base else 0,
        )
        uncut = np.full((1, self.inputs.shape[2]), np.inf)
        (block,) = self._open(np.array([cell]), np.array([version]), -uncut, uncut)
        for name, value in (("cell", cell), ("block", block), ("born", self.tables.label_count)):
            self.versions[name][version] = value
        self.held[row] = version
        self.bytes_down["tables"] += wire.versions_size(self.rules.trees)
        self.events.append((t, row, version))

    def _pass(self, t: int) -> None:
        """One decision pass: take the items that have come, split what is ripe, renew trees, publish."""
        self.tables.take(t)
        if (
            self.tables.label_count >= self.tables.due
            and self.tables.enough(LABEL)
            and self.tables.enough(INPUTS)
        ):
            self.tables.renew(t)
            self.bytes_down["tables"] += wire.tables_size(self.inputs.shape[2])
        self.versions["splits"][:] = 0
        come = self.flying.pop(t, [])
        if come and np.isinf(self.tables.label_low):
            self.flying.setdefault(t + 1, []).extend(
                come
            )  # Items wait for the range to which their labels are cut.
        elif come:
            self._take(*(np.concatenate(parts) for parts in zip(*come, strict=True)))
            self._grow(t)
        self._renew(t)
        self._publish(t)
        for old in [when for when in self.values if when < min(t, self.until.min(initial=t))]:
            del self.values[old]

    def _publish(self, t: int) -> None:
        """Values of leaves, as 16-bit codes in the range of labels."""
        cells, tables = self.cells, self.tables
        largest, total = self._worth(np.arange(cells.size))
        prior, (said, told) = (
            self.rules.prior + (largest == 0),
            (cells[n][: cells.size] for n in ("said", "told")),
        )
        value = (total + prior * tables.mean) / (largest + prior)
        width = tables.label_high - tables.label_low
        with np.errstate(invalid="ignore"):
            value = (
                np.rint(np.clip((value - tables.label_low) / width, 0, 1) * 65535) / 65535 * width
                + tables.label_low
            )
        version = self.blocks["version"][cells["block"][: cells.size]]
        leaves = (cells["child"][: cells.size] < 0) & ~self.versions["ended"][version]
        news = leaves & (largest >= self.rules.news * said) & (value != told) & np.isfinite(value)
        said[news], told[news] = largest[news], value[news]
        self.values[t] = told.copy()
        written = wire.VALUE * int(news.sum()) + wire.VALUE_RUN * len(np.unique(version[news])) + wire.KEY + 3
        self.bytes_down["values"] += written + 2 * int(leaves.sum()) / wire.SNAPSHOTS

    def _worth(self, cell: Ints) -> tuple[Floats, Floats]:
        """What is known of these cells, weight and sum of labels: as counted, or their base until as much is
        counted."""
        weight, base = self.cells["weight"][cell], self.cells["base"][cell]
        own = weight >= base
        return np.maximum(weight, base), np.where(
            own, self.cells["total"][cell], self.cells["base_total"][cell]
        )

    def _take(self, block: Ints, masks: NDArray[np.uint32], label: Floats, client: Ints) -> None:
        """Items go down their block by the bits of its splits. What belongs to a part that has left the block
        comes late."""
        cell = self.blocks["cell"][block]
        for _ in range(max(self.rules.levels, self.rules.few_levels)):
            child = self.cells["child"][cell]
            inside = (child >= 0) & (self.cells["block"][cell] == block)
            bit = (masks >> self.cells["bit"][cell].astype(np.uint32)) & 1
            cell = np.where(inside, child + bit, cell)
        label = np.clip(label, self.tables.label_low, self.tables.label_high)
        version = self.blocks["version"][block]
        alive = ~self.versions["ended"][version]
        late = alive & ((self.cells["child"][cell] >= 0) | (self.cells["block"][cell] != block))
        weight = 1 / self.blocks["chance"][block]
        known, total = self._worth(cell)
        residual = np.abs(label - np.where(known >= 1, total / np.maximum(known, 1), np.nan))
        taken = alive & self.guard.believes(client, residual)
        if self.rules.trust:
            taken &= self.guard.near(residual)
        k, v = len(self.labels), self.versions.size
        of = self.blocks["version"][self.cells["block"][self.stored[0]]]
        held: Floats = np.bincount(self.stored[4] * v + of, self.stored[3], k * v).astype(float).reshape(k, v)
        most: Floats = self.rules.claim * self.tables.labels.astype(float)
        taken[taken] = self.guard.within(
            client[taken], version[taken], weight[taken], late[taken], held, most
        )
        self.count["late"] += int((late | ~alive).sum())
        self.count["refused"] += int((alive & ~taken).sum())
        # The part is a block by now, whose samples are to come again: until then the item counts in the
        # part's base.
        late, good = late & taken, taken & ~late
        self._add("base", cell[late], weight[late])
        self._add("base_total", cell[late], (weight * label)[late])
        block, cell, label, weight = block[good], cell[good], label[good], weight[good]
        self._count(cell, label, weight)
        self.blocks["stored"][: self.blocks.size] += np.bincount(block, minlength=self.blocks.size)
        come = (cell, masks[good], label, weight, client[good])
        self.stored = [np.concatenate(pair) for pair in zip(self.stored, come, strict=True)]
        self.most_stored = max(self.most_stored, len(self.stored[0]))

    def _add(self, name: str, cell: Ints, what: Floats) -> None:
        self.cells[name][: self.cells.size] += np.bincount(cell, what, self.cells.size).astype(
            self.cells[name].dtype
        )

    def _count(self, cell: Ints, label: Floats, weight: Floats) -> None:
        for name, what in (("items", np.ones(len(cell))), ("weight", weight), ("total", weight * label)):
            self._add(name, cell, what)
        self.cells["fresh"][cell] = True

    def _grow(self, t: int) -> None:
        """Split ripe cells, then their parts, as long as any is ripe."""
        cells, rules = self.cells, self.rules
        touched = set[int]()
        while True:
            fresh, items, block, level = (
                cells[name][: cells.size] for name in ("fresh", "items", "block", "level")
            )
            expected = np.where(level == 0, self.blocks["expected"][block], 0)
            room = 2 * self.versions["leaves"][self.blocks["version"][block]] < rules.nodes
            ripe = fresh & (items >= np.maximum(rules.least, rules.share * expected)) & room
            fresh[:] = False
            if not ripe.any():
                break
            chosen = np.flatnonzero(ripe[self.stored[0]])
            chosen = chosen[np.argsort(self.stored[0][chosen], kind="stable")]
            of, masks, label, weight = (held[chosen] for held in self.stored[:4])
            cell, starts, count = np.unique(of, return_index=True, return_counts=True)
            sides = (masks[:, None] >> BITS & 1).astype(np.float64)
            above = np.add.reduceat(sides, starts)
            n, s = (np.add.reduceat(what, starts)[:, None] for what in (weight, weight * label))
            right, right_sum = (
                np.add.reduceat(sides * what[:, None], starts) for what in (weight, weight * label)
            )
            parted = (above > 0) & (above < count[:, None])
            with np.errstate(divide="ignore", invalid="ignore"):
                gain = right_sum**2 / right + (s - right_sum) ** 2 / (n - right) - s**2 / n
            gain[~parted] = -1
            best = gain.argmax(1)
            most = gain[np.arange(len(cell)), best]
            mixed = np.maximum.reduceat(label, starts) > np.minimum.reduceat(label, starts)
            split = np.flatnonzero(mixed & (most > 1e-12))
            leaving = [
                cell[mixed & ~parted.any(1)],
                cell[self.blocks["stored"][cells["block"][cell]] > rules.stored],
            ]
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
                touched.update(cells["block"][out].tolist())
                self._leave(t, out)
        written = self.blocks["parted"][list(touched)]
        self.bytes_down["blocks"] += wire.BLOCK * len(written) + wire.PART * int(written.sum())

    def _split(self, t: int, cell: Ints, bit: Ints, gain: Floats) -> Ints:
        """Two parts for each of these cells; returns the parts that become blocks, since they are on the last
        level."""
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
        """Cells become blocks of their own. What was counted in them is their base until as much is counted
        anew."""
        cells, leaves = self.cells, np.zeros(self.cells.size, np.bool_)
        leaves[out] = True
        inside = leaves[self.stored[0]]
        of, masks = self.stored[0][inside], self.stored[1][inside]
        self.stored = [held[~inside] for held in self.stored]
        order = np.argsort(of, kind="stable")
        of, starts = np.unique(of[order], return_index=True)
        every = np.bitwise_and.reduceat(masks[order], starts)
        some = np.bitwise_or.reduceat(masks[order], starts)
        if not self.rules.tight:
            every, some = every & cells["path"][of], some | ~cells["path"][of]
        old = cells["block"][of]
        low, high = self.blocks["low"][old], self.blocks["high"][old]
        feature, threshold = self.blocks["feature"][old], self.blocks["threshold"][old]
        line = np.broadcast_to(np.arange(len(of))[:, None], feature.shape)
        # A candidate with all items on one side cuts the cell: its parent's splits, and with `tight` all
        # others too.
        above = (every[:, None] >> BITS & 1) == 1
        below = ((some[:, None] >> BITS & 1) == 0) & (self.rules.candidates > BITS)
        np.maximum.at(low, (line[above], feature[above]), threshold[above])
        np.minimum.at(high, (line[below], feature[below]), threshold[below])
        cells["base"][of], cells["base_total"][of] = self._worth(of)
        for name in ("items", "weight", "total", "path"):
            cells[name][of] = 0
        np.add.at(self.blocks["parted"], old, 1)
        cells["left"][of], self.blocks["changed"][old], cells["fresh"][of] = t, t, False
        self._open(of, self.blocks["version"][old], low, high)

    def _renew(self, t: int) -> None:
        """A tree's early splits were made on little: at times a shadow grows beside it from all kept samples,
        and replaces it."""
        rules, trees, k = self.rules, self.rules.trees, len(self.labels)
        kept = int(np.minimum(self.tables.labels, self.ring.shape[1]).sum())
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
