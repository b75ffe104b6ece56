"""The constraint as a product of balls, which of them take part in a step, and the step's length.

|x|_1 <= r is replaced by sum of r_b = r and |x_b|_1 <= r_b for each block b of columns. A party has one block
or several. The theorem about arbitrary sampling needs this product. Sampling columns within one ball is
another algorithm.

E h_(t+1) <= (1 - gamma p) h_t + gamma^2 C / 2 gives with gamma_t = 2 / (p t + 2)

    E h_t <= 2 (h_0 + C / p) / (p t + 2)

p: the smallest probability of a block. C: curvature over a step in all sampled blocks. The paper's theorem 1
has the 1/p outside of the sum, with t + 2 below: from the optimum, f = |x|^2 / 2, it fails by a factor of
1.42.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamfl.contract.seeding import rng_for

__all__ = ["Block", "Sampling", "SamplingName", "step_length"]

SamplingName = Literal["full", "uniform", "nice", "distributed", "importance"]


@dataclass(frozen=True)
class Block:
    """party: its owner. columns: their numbers at the party. radius: of its ball, above 0."""

    party: str
    columns: tuple[int, ...]
    radius: float

    def __post_init__(self) -> None:
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise ValueError("a block has columns, each once")
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise ValueError(f"a radius of {self.radius}: it is above 0")


@dataclass(frozen=True)
class Sampling:
    """Which blocks take part in an iteration: a function of public numbers alone. Raises ValueError for
    counts and probabilities that do not fit the blocks.

    name: "full": all, p = 1. "uniform": one of B blocks, p = 1/B. "nice": ``count`` of B blocks, each set
        equally likely, p = count/B. "distributed": ``count`` of each party's blocks, p = count over the most
        blocks of a party. "importance": one block, by public probabilities.
    blocks: of all parties, in a public order.
    seed: public. No amplification by sampling is claimed: everybody knows who takes part.
    probabilities: of the blocks, for "importance".
    """

    name: SamplingName
    blocks: Sequence[Block]
    seed: int
    count: int = 1
    probabilities: Sequence[float] = ()

    def __post_init__(self) -> None:
        most = {"nice": len(self.blocks), "distributed": min(map(len, self._by_party.values()), default=0)}
        if not 1 <= self.count <= most.get(self.name, self.count):
            raise ValueError(f"{self.count} blocks of {most[self.name]} cannot be sampled")
        if self.name == "importance":
            fits = len(self.probabilities) == len(self.blocks) and all(
                0 < given <= 1 for given in self.probabilities
            )
            if not fits or abs(math.fsum(self.probabilities) - 1) > 1e-9:
                raise ValueError("importance sampling needs a probability above 0 for each block, of sum 1")

    @property
    def least(self) -> float:
        """p, the smallest probability with which a block takes part."""
        if self.name == "full":
            return 1.0
        if self.name == "importance":
            return min(self.probabilities)
        if self.name == "distributed":
            return self.count / max(map(len, self._by_party.values()))
        return (self.count if self.name == "nice" else 1) / len(self.blocks)

    def blocks_of(self, window: int, iteration: int) -> list[int]:
        """Numbers of the blocks that take part, ascending."""
        if self.name == "full":
            return list(range(len(self.blocks)))
        random = rng_for(self.seed, "sampling", window, iteration)
        if self.name == "importance":
            return [
                int(
                    random.choice(
                        len(self.blocks), p=np.array(self.probabilities) / math.fsum(self.probabilities)
                    )
                )
            ]
        if self.name == "distributed":
            drawn = [random.choice(numbers, self.count, replace=False) for numbers in self._by_party.values()]
            return sorted(int(number) for numbers in drawn for number in numbers)
        count = self.count if self.name == "nice" else 1
        return sorted(int(number) for number in random.choice(len(self.blocks), count, replace=False))

    def answers_of(self, party: str, window: int, iterations: int) -> int:
        """How many choices a party makes in a fit. The schedule fixes it beforehand."""
        schedule = (number for iteration in range(iterations) for number in self.blocks_of(window, iteration))
        return sum(self.blocks[number].party == party for number in schedule)

    @property
    def _by_party(self) -> dict[str, list[int]]:
        numbers: dict[str, list[int]] = {}
        for number, block in enumerate(self.blocks):
            numbers.setdefault(block.party, []).append(number)
        return numbers


def step_length(iteration: int, least: float) -> float:
    """gamma_t = 2 / (p t + 2), the universal step.

    iteration: t, from 0.
    least: p.

    >>> step_length(0, 0.5), step_length(4, 0.5)
    (1.0, 0.5)
    """
    return 2.0 / (least * iteration + 2.0)
