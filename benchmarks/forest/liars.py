"""A client that makes up items: what the guard of the federated forest is measured against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.forest.reference import Forest

__all__ = ["Forger", "LateForger"]

Ints = NDArray[np.int64]


class Forger(Forest):
    """A forest whose last client sends made-up items for all its bytes, where each counts most: in blocks of
    the lowest chance.

    Answers are drawn at random and the label is the lowest that can be said. It knows the server's blocks
    without a lag. late: it writes of blocks whose cells were split long ago, so that its items count in the
    values of parts that have left."""

    late = False

    def _upload(self, t: int, clients: Ints, spare: Ints) -> None:
        liar = len(self.labels) - 1
        super()._upload(t, clients[clients != liar], spare)
        if liar not in clients or not self.versions.size or np.isinf(self.tables.label_low):
            return
        size = self.blocks.size
        living = ~self.versions["ended"][self.blocks["version"][:size]]
        open_cells = self.cells["child"][: self.cells.size] < 0
        is_open = np.bincount(self.cells["block"][: self.cells.size][open_cells], minlength=size)[:size] > 0
        choice = np.flatnonzero(living & (~is_open if self.late else is_open))
        if not len(choice):
            return
        generator = np.random.default_rng((self.seed, t))
        order = np.lexsort((generator.random(len(choice)), self.blocks["chance"][choice]))
        chosen = np.resize(choice[order], (int(spare[liar]) - 8 - 2 * len(self.held)) // 7)
        masks = generator.integers(0, 2**32, len(chosen), dtype=np.uint32)
        label: Any = np.full(len(chosen), self.tables.label_low)
        self.flying.setdefault(t + int(self.up[liar, t]), []).append(
            (chosen, masks, label, np.full(len(chosen), liar))
        )
        self.bytes_up[liar, t] = spare[liar]


class LateForger(Forger):
    """Its items are of blocks whose cells were split long ago."""

    late = True
