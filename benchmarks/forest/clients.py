"""The clients of the federated forest: they read it, predict by it, keep samples and send items.
``reference`` has the server."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.forest import messages as wire
from benchmarks.forest.guard import Guard
from benchmarks.forest.rules import Rules, Table, uniform
from benchmarks.forest.tables import Tables

__all__ = ["NEVER", "Clients"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max


class Clients:
    """All state of a forest, of clients and of the server, and what clients do. What a client does reads only
    what it may know."""

    def __init__(
        self, inputs: NDArray[Any], labels: Floats, rules: Rules, seed: int, up: Ints, down: Ints,
        kept_inputs: NDArray[Any] | None = None,
    ) -> None:  # fmt: skip
        self.rules, self.seed, self.labels, self.up, self.down = rules, seed, labels, up, down
        self.inputs = inputs.astype(np.float32, copy=False)  # the caller fills in the rounds as they come
        self.kept_inputs = self.inputs if kept_inputs is None else kept_inputs.astype(np.float32)
        (k, f), rows = (len(labels), inputs.shape[2]), 2 * rules.trees
        whole, real = np.int64, np.float64
        # A cell of a tree. `split`, `left`: the passes in which it was split and became a block; clients hear
        # of it later.
        self.cells = Table(
            block=(whole, (), 0), level=(whole, (), 0), child=(whole, (), -1), feature=(whole, (), 0),
            bit=(whole, (), 0),
            path=(np.uint32, (), 0), threshold=(np.float32, (), 0), split=(whole, (), NEVER),
            left=(whole, (), NEVER),
            items=(whole, (), 0), weight=(real, (), 0), total=(real, (), 0), base=(real, (), 0),
            base_total=(real, (), 0),
            fresh=(np.bool_, (), False), said=(real, (), 0), told=(real, (), np.nan),
        )  # fmt: skip
        # `changed`: the last pass in which a part of the block became a block of its own. `low`, `high`: the
        # cell, where it is cut.
        self.blocks = Table(
            cell=(whole, (), 0), version=(whole, (), 0), chance=(real, (), 1), feature=(whole, (32,), 0),
            stored=(whole, (), 0),
            threshold=(np.float32, (32,), 0), low=(np.float32, (f,), -np.inf),
            high=(np.float32, (f,), np.inf),
            changed=(whole, (), -9), expected=(real, (), 0), levels=(whole, (), 0), number=(whole, (), 0),
            parted=(whole, (), 0),
        )  # fmt: skip
        # A version of a tree; a tree has a current one, and at times a shadow that replaces it.
        numbers: dict[str, Any] = dict.fromkeys(
            ("cell", "block", "born", "splits", "code", "blocks"), (whole, (), 0)
        )
        self.versions = Table(**numbers, leaves=(whole, (), 1), ended=(np.bool_, (), False))
        self.held, self.lives = (
            np.full(rows, -1),
            np.zeros(rules.trees, np.int64),
        )  # versions: current ones, then shadows
        self.events: list[
            tuple[int, int, int]
        ] = []  # (pass, row, version): it began; row -1 - b: shadow b takes over
        self.due = [4 * k * rules.growth ** (b / rules.trees) for b in range(rules.trees)]
        # What clients know, and their kept samples: number, block in each version, whether the block's item
        # was sent or left out.
        self.known = np.full((rows, k), -1)
        self.until, self.heard = np.full(k, -2), np.zeros(k, np.int64)
        self.ring, self.ring_count = np.full((k, min(rules.kept, labels.shape[1])), -1), np.zeros(k, np.int64)
        self.block, self.sent = (
            np.zeros((rows, *self.ring.shape), np.int64),
            np.ones((rows, *self.ring.shape), np.bool_),
        )
        # The server: items on their way (block, mask, label, client) and stored (cell, mask, label, weight,
        # client); its tables.
        self.flying: dict[int, list[tuple[NDArray[Any], ...]]] = {}
        self.stored: list[NDArray[Any]] = [
            np.empty(0, kind) for kind in (whole, np.uint32, real, real, whole)
        ]
        self.values: dict[int, Floats] = {}
        self.tables, self.guard = Tables(k, f, rules, seed), Guard(k, rules)
        self.count = dict.fromkeys(("items", "late", "refused", "splits", "blocks"), 0)
        self.bytes_up, self.runs, self.most_stored = np.zeros(labels.shape), 0, 0
        self.bytes_down = dict.fromkeys(("blocks", "values", "tables"), 0.0)

    def _hear(self, t: int, clients: Ints) -> None:
        """Clients read the forest as it was `down` rounds ago: versions that began or ended, and parts that
        became blocks."""
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
        """A sample that has come into a block is to be sent once; in a cell that holds many, only with the
        block's chance."""
        block = self.block[rows, clients, slots]
        number, code = self.blocks["number"][block], self.versions["code"][self.blocks["version"][block]]
        chosen = (
            uniform(self.seed, 1, clients, self.ring[clients, slots], code, number)
            < self.blocks["chance"][block]
        )
        self.sent[rows, clients, slots] = ~chosen

    def _follow(self, rows: Ints, clients: Ints, slots: Ints) -> None:
        """Samples go down the structure that their client knows. One that comes into another block is to be
        sent again."""
        before = self.block[rows, clients, slots]
        until = self.until[clients]
        sample = self.ring[clients, slots]
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
        """Items for as many bytes as there are: current trees from a random one on, then shadows; the newest
        samples first."""
        trees, size = self.rules.trees, self.ring.shape[1]
        waiting = (
            ~self.sent[:, clients]
            & (self.known[:, clients] >= 0)[:, :, None]
            & (self.ring[clients] >= 0)[None]
        )
        rows, place, slots = np.nonzero(waiting)
        first = (uniform(self.seed, 2, clients, t) * trees).astype(np.int64)[place]
        turn = (rows % trees - first) % trees + rows // trees * trees
        age = (self.ring_count[clients][place] - 1 - slots) % size
        by = (
            turn * size + age
            if self.rules.order == "trees"
            else (rows // trees * size + age) * trees + turn % trees
        )
        rows, place, slots = (
            what[np.argsort(place * 2 * trees * size + by)] for what in (rows, place, slots)
        )
        _, starts = np.unique(place * 2 * trees + rows, return_index=True)
        low, high = self.tables.ranges_at(self.until[clients])
        cost = (each := np.where(np.isinf(low), wire.FIRST_ITEM, wire.ITEM) - 4 + self.rules.candidates // 8)[
            place
        ]
        cost[starts] += wire.RUN
        cost = np.cumsum(cost)
        before = np.concatenate([[0], cost])[np.searchsorted(place, place)]
        taken = cost - before + wire.ITEMS <= spare[clients][place]
        self.bytes_up[clients, t] = np.bincount(place[taken], minlength=len(clients)) * each
        self.bytes_up[clients, t] += wire.ITEMS + wire.RUN * np.bincount(
            place[starts][taken[starts]], minlength=len(clients)
        )
        self.runs += int(taken[starts].sum())
        rows, of, slots = rows[taken], clients[place[taken]], slots[taken]
        self.sent[rows, of, slots] = True
        block, sample = self.block[rows, of, slots], self.ring[of, slots]
        above = (
            self.kept_inputs[of[:, None], sample[:, None], self.blocks["feature"][block]]
            > self.blocks["threshold"][block]
        )
        above[:, self.rules.candidates :] = False
        masks = np.packbits(above, axis=1, bitorder="little").view(np.uint32).ravel()
        # The label in 8 bits, rounded up or down by chance, so that sums are right in the mean; one draw a
        # sample.
        label, low, high = self.labels[of, sample], low[place[taken]], high[place[taken]]
        with np.errstate(invalid="ignore"):
            code = np.floor(
                np.clip((label - low) / (high - low), 0, 1) * 255 + uniform(self.seed, 3, of, sample)
            )
            label = np.where(np.isinf(low), label, code / 255 * (high - low) + low)
        for lag in np.unique(self.up[of, t]).tolist():
            some = self.up[of, t] == lag
            self.flying.setdefault(t + lag, []).append((block[some], masks[some], label[some], of[some]))
        self.count["items"] += len(block)
