"""Sketches of columns, which parties release: m sums of a column's rows with random signs, from a public
seed.

J = H / sqrt(m) with H of +1 and -1 (Achlioptas 2003). The paper's J is Gaussian: the norms of its columns
differ, and the largest decides the noise. Here each norm is exactly 1, whatever the seed is. So nobody can
choose a seed that weakens the claim.

Replacing a row moves its feature by 2 at most. So each of the m sums H a moves by 2, and J a by 2 in
Euclidean norm. A party releases H a in whole numbers with discrete noise. J' J a = H' (H a) / m.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import rng_for
from streamfl.dp_frank_wolfe.party.window import CHUNK

__all__ = ["IdentitySketch", "SignSketch", "Sketch"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
# Most signs that are kept in memory, a byte each. More are drawn anew each time.
MOST_KEPT = 2**27


class Sketch(Protocol):
    """numbers: how many a column's sketch has. moved: how many of them one row moves. scale: J'J a = scale *
    back(apply(a))."""

    @property
    def numbers(self) -> int: ...
    @property
    def moved(self) -> int: ...
    @property
    def scale(self) -> float: ...
    @property
    def name(self) -> str: ...

    def apply(self, column: NDArray[np.int16]) -> Integers:
        """A column's rows, (rows,), to its sums, (numbers,), exact."""
        ...

    def back(self, sums: Floats) -> Floats:
        """Sums, (numbers,), to H' sums, (rows,). Whole numbers whose absolute sum is below 2^53 give exact
        whole numbers."""
        ...


class IdentitySketch:
    """The rows themselves: one row moves one number."""

    moved = 1
    scale = 1.0
    name = "identity"

    def __init__(self, rows: int) -> None:
        self.numbers = rows

    def apply(self, column: NDArray[np.int16]) -> Integers:
        return column.astype(np.int64)

    def back(self, sums: Floats) -> Floats:
        return sums.copy()


class SignSketch:
    """Sums with random signs.

    rows: n of the window.
    numbers: m.
    seed: public, the same at all parties of a window.
    """

    def __init__(self, rows: int, numbers: int, seed: int) -> None:
        if numbers < 1:
            raise ValueError("a sketch has at least one number")
        self._rows = rows
        self._seed = seed
        self.numbers = numbers
        self.moved = numbers
        self.scale = 1.0 / numbers
        self.name = f"signs {numbers} {seed}"

    def apply(self, column: NDArray[np.int16]) -> Integers:
        total = np.zeros(self.numbers)
        for chunk in range(-(-self._rows // CHUNK)):
            rows = column[chunk * CHUNK : (chunk + 1) * CHUNK].astype(np.float64)
            total += rows @ self._signs(chunk)
        return total.astype(np.int64)

    def back(self, sums: Floats) -> Floats:
        return np.concatenate([self._signs(chunk) @ sums for chunk in range(-(-self._rows // CHUNK))])

    @property
    def signs(self) -> NDArray[np.int8]:
        """H' of all rows: (rows, numbers) of +1 and -1."""
        return np.concatenate([self._draw(chunk) for chunk in range(-(-self._rows // CHUNK))])

    def _signs(self, chunk: int) -> Floats:
        """H' of the chunk's rows: (rows, numbers) of +1 and -1."""
        kept = self._kept[chunk] if self._kept else self._draw(chunk)
        return kept.astype(np.float64)

    @cached_property
    def _kept(self) -> list[NDArray[np.int8]]:
        if self._rows * self.numbers > MOST_KEPT:
            return []
        return [self._draw(chunk) for chunk in range(-(-self._rows // CHUNK))]

    def _draw(self, chunk: int) -> NDArray[np.int8]:
        rows = min(CHUNK, self._rows - chunk * CHUNK)
        drawn = np.frombuffer(
            rng_for(self._seed, "sketch", chunk).bytes(-(-rows * self.numbers // 8)), np.uint8
        )
        bits = np.unpackbits(drawn, count=rows * self.numbers).reshape(rows, self.numbers)
        return np.asarray(2 * bits.astype(np.int8) - 1, dtype=np.int8)
