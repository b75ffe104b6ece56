"""What the federated forest goes by: its rules with their defaults, and numbers that everybody draws
alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rules", "Table", "uniform"]


@dataclass(frozen=True)
class Rules:
    """Defaults were chosen by ``python -m benchmarks.forest rules``; docs/forest.md gives the figures of the
    alternatives."""

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
    importance: float = 0.5  # share of a block's candidates whose feature is drawn by importance
    cap: float = 0.25  # of the importance, that one feature may hold
    order: str = (
        "trees"  # of an upload's items: tree by tree, or "samples": the newest sample's in all trees first
    )
    tight: bool = True  # thresholds avoid the part of a cell where the parent's items showed nothing
    reach: float = 8.0  # deviations from the mean of labels, that a label's 8 bits cover
    prior: float = 0.0  # samples with the mean label, that each cell counts besides; for two classes 1
    news: float = (
        1.25  # a cell's value is published when it is worth so many times the samples of the last time
    )
    doubt: float = 4.0  # times the median client's mean residual, above which a client's items are refused
    claim: float = (
        2.0  # weight of a client's items in a version's open blocks, at most so many times its labels
    )
    trust: bool = False  # drop items whose residual is over 4 medians
    table_labels: int = 10  # labels a client, from one version of ranges and importances to the next
    nodes: int = 8192  # of a tree, at most


def uniform(*parts: Any) -> NDArray[np.float64]:
    """Numbers in [0, 1) that everybody computes alike from the same integers (splitmix64), in the shape that
    these broadcast to."""
    state: Any = np.uint64(0x9E3779B97F4A7C15)
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
        self.of = {
            name: np.full((1024, *shape), fill, dtype) for name, (dtype, shape, fill) in columns.items()
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.of[name]

    def add(self, count: int) -> int:
        first, self.size = self.size, self.size + count
        for name, (shape, fill) in self._fill.items():
            held = self.of[name]
            if self.size > len(held):
                self.of[name] = np.concatenate(
                    [held, np.full((max(len(held), count), *shape), fill, held.dtype)]
                )
        return first
