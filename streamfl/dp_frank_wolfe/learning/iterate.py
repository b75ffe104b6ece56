"""The server's part of a fit: the iterate in its balls, and predictions in the space of sketches. It uses
only releases: ``party/fit`` makes these, with their noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.blocks import Block

__all__ = ["SLACK", "SUM_BITS", "Iterate", "Quantised", "Vertex", "quantise"]

Floats = NDArray[np.float64]
# Whole numbers whose absolute values sum to less are added exactly in any order.
SUM_BITS = 52
FINEST_BITS = 60
# Rounding may lift a convex combination above its ball by this share.
SLACK = 1e-12


@dataclass(frozen=True)
class Vertex:
    """radius * sign * e_column of a block's ball: the message is the vertex itself, so the server adds it
    unchanged."""

    column: int
    sign: int


@dataclass(frozen=True)
class Quantised:
    """numbers / 2^bits, whole numbers as float64."""

    numbers: Floats
    bits: int


def quantise(values: Floats, sum_bits: int = SUM_BITS) -> Quantised:
    """Values as whole numbers, as fine as exact sums allow. Results from them are the same on every machine.

    values: public, finite.
    sum_bits: the absolute values sum to less than 2^sum_bits.
    """
    exponent = math.frexp(float(np.sum(np.abs(values))))[1]
    bits = min(FINEST_BITS, sum_bits - 1 - exponent)
    return Quantised(np.rint(np.ldexp(values, bits)), bits)


class Iterate:
    """x, block by block, and the sketches of its columns.

    blocks: of all parties, in the public order.
    columns: how many each party has.
    """

    def __init__(self, blocks: Sequence[Block], columns: Mapping[str, int]) -> None:
        self._blocks = blocks
        self.x = {party: np.zeros(count) for party, count in columns.items()}
        self._sums: dict[tuple[str, int], Floats] = {}

    @property
    def support(self) -> int:
        """How many columns have a weight."""
        return sum(int(np.count_nonzero(own)) for own in self.x.values())

    @property
    def l1_norm(self) -> float:
        return math.fsum(abs(weight) for own in self.x.values() for weight in own.tolist())

    def show(self, party: str, column: int, sums: Floats) -> None:
        """Takes a column's released sums, (numbers,)."""
        self._sums[party, column] = sums

    def step(self, answers: Mapping[int, Vertex], gamma: float) -> None:
        """x_b <- (1 - gamma) x_b + gamma r_b s_b for the blocks that answered; the others stay as they are.

        answers: by number of the block.
        gamma: between 0 and 1.

        Raises ValueError, before anything changes, if a vertex is not of its block; AssertionError if x has
        left its ball.
        """
        for number, vertex in answers.items():
            if vertex.column not in self._blocks[number].columns or vertex.sign not in (1, -1):
                raise ValueError(
                    f"column {vertex.column} with sign {vertex.sign} is no vertex of block {number}"
                )
        for number, vertex in answers.items():
            block = self._blocks[number]
            own = self.x[block.party]
            chosen = np.array(block.columns)
            own[chosen] *= 1 - gamma
            own[vertex.column] += gamma * block.radius * vertex.sign
            if not float(np.sum(np.abs(own[chosen]))) <= block.radius * (1 + SLACK):
                raise AssertionError(f"block {number} has left its ball of radius {block.radius}")

    def others(self, party: str, numbers: int) -> Floats:
        """The sum of x_j times the sums of column j over the columns of all other parties: (numbers,).

        It is computed from x anew each time, so that no rounding is carried from step to step. numbers: of a
        sketch.
        """
        total = np.zeros(numbers)
        for (owner, column), sums in sorted(self._sums.items()):
            if owner != party and self.x[owner][column] != 0:
                total += self.x[owner][column] * sums
        return total
