"""Estimators that choose columns once and then ask for numbers of them: far fewer releases than a fit has
iterations.

marginal: each party chooses N_k columns by |a_i'y|, one after the other, and releases their a_i'y and |a_i|^2
with fresh noise. The server fits as if columns were independent.

two-round: each party releases its chosen columns' rows with noise, once. Then each party releases the
products of its own chosen columns with the others' noisy rows, and among themselves. They give the server a
Gram matrix for its fit.

All values are computed from whole numbers. Each feature and label is bounded by 1. Sensitivities, for one
replaced row:

    a_i'y of N_k columns      each product moves by 2 at most                            2 sqrt(N_k)
    |a_i|^2 of N_k columns    each square is in 0 .. 1                                   sqrt(N_k)
    rows of N_k columns       each number of that row moves by 2 at most                 2 sqrt(N_k)
    A_k'Z, |z| <= B           |(a - a') z'| <= |a - a'| |z|; Z was released, and stays   2 sqrt(N_k) B
    A_k'A_k, upper triangle   below                                                      sqrt(N_k^2 + N_k/2)

The squares of aa' - bb' sum to |a|^4 + |b|^4 - 2 (a'b)^2 <= 2 N_k^2. The squares of its diagonal sum to at
most N_k. The upper triangle with the diagonal has half of both sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.party.window import CHUNK, FEATURE_ONE, RESIDUAL_ONE
from streamfl.dp_frank_wolfe.privacy.budget import choice_rate
from streamfl.privacy.integer_distribution import DRAW_BITS
from streamfl.privacy.integer_noise import IntegerNoise
from streamfl.privacy.zcdp import cost_of_choice

__all__ = [
    "MARGINAL",
    "TWO_ROUND",
    "SelectionPlan",
    "clip_rows",
    "plan_selection",
    "row_bits",
    "row_bound",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
# Shares of cost.
MARGINAL = {"choices": 0.4, "values": 0.4, "norms": 0.2}
TWO_ROUND = {"choices": 0.25, "values": 0.2, "rows": 0.25, "products": 0.2, "gram": 0.1}
EXACT_BITS = 52
# Rounding of a mean of products within 1.
ROUNDING = 1e-9


@dataclass(frozen=True)
class SelectionPlan:
    """What one party may release.

    columns: N_k.
    others: columns that the other parties choose.
    rate: of each choice, None where epsilon is infinite.
    noises: by kind of release.
    row_bound: B.
    """

    columns: int
    others: int
    rate: Fraction | None
    noises: Mapping[str, IntegerNoise]
    row_bound: int

    @property
    def cost(self) -> float:
        if self.rate is None:
            return math.inf
        # Without a prediction a score moves by 2.
        each = cost_of_choice(2 * self.rate * 2 * FEATURE_ONE * RESIDUAL_ONE)
        return self.columns * each + sum(noise.cost for noise in self.noises.values())

    def range_of(self, kind: str, rows: int) -> tuple[float, float]:
        """Least and largest released number of this kind, whatever the rows are and however the noise falls.
        rows: n."""
        one = {
            "values": FEATURE_ONE * RESIDUAL_ONE * rows,
            "norms": FEATURE_ONE**2 * rows,
            "rows": FEATURE_ONE,
            "products": (FEATURE_ONE << row_bits(self.row_bound)) * rows,
            "gram": FEATURE_ONE**2 * rows,
        }[kind]
        noise = self.noises.get(kind)
        # Values are rounded to the noise's unit.
        added = 0.0 if noise is None else (noise.largest + 1) * noise.unit / one
        exact = self.row_bound if kind == "products" else 1
        lowest = 0 if kind == "norms" else -exact
        return lowest - added - ROUNDING, exact + added + ROUNDING

    def product_deviation(self, rows: int) -> float:
        """Deviation of the noise on one number of A_k'Z / n. rows: n."""
        return math.ldexp(self.noises["products"].deviation, -row_bits(self.row_bound)) / (FEATURE_ONE * rows)

    def variation(self, rows: int, candidates: int) -> float:
        """Total variation of all that the party may release. candidates: columns of the party."""
        count = self.columns
        numbers = {"rows": rows * count, "products": count * self.others, "gram": count * (count + 1) // 2}
        noisy = sum(numbers.get(kind, count) * noise.variation for kind, noise in self.noises.items())
        return noisy + (count * 4 * candidates * 2.0**-DRAW_BITS if self.rate is not None else 0.0)


def plan_selection(cost: float, columns: int, others: int, shares: Mapping[str, float]) -> SelectionPlan:
    """A party's plan.

    cost: of the party, may be infinite.
    columns: N_k.
    others: columns that the other parties choose.
    shares: of cost, by kind, of sum 1: ``MARGINAL`` or ``TWO_ROUND``.
    """
    if (
        columns < 1
        or abs(math.fsum(shares.values()) - 1) > 1e-9
        or not all(share > 0 for share in shares.values())
    ):
        raise ValueError(
            "a party chooses one column or more, and the shares of cost are above 0 and of sum 1"
        )
    if math.isinf(cost):
        return SelectionPlan(columns, others, None, {}, row_bound(None, others))
    if not cost > 0:
        raise ValueError(f"cost = {cost}: nothing can be released for it")
    noises = {"values": IntegerNoise.of_box(2 * FEATURE_ONE * RESIDUAL_ONE, columns, cost * shares["values"])}
    if "norms" in shares:
        noises["norms"] = IntegerNoise.of_box(FEATURE_ONE**2, columns, cost * shares["norms"])
    bound = 0
    if "rows" in shares:
        noises["rows"] = IntegerNoise.of_box(2 * FEATURE_ONE, columns, cost * shares["rows"])
        bound = row_bound(noises["rows"], others)
        length = 2 * FEATURE_ONE * math.sqrt(columns) * (bound << row_bits(bound))
        noises["products"] = IntegerNoise.of_length(length, columns * others, cost * shares["products"])
        square = math.sqrt(columns**2 + columns / 2) * FEATURE_ONE**2
        noises["gram"] = IntegerNoise.of_length(square, columns * (columns + 1) // 2, cost * shares["gram"])
    rate = choice_rate(cost * shares["choices"] / columns, 0)
    if not rate > 0:
        raise ValueError(f"cost = {cost:.3g}: too little for {columns} choices")
    return SelectionPlan(columns, others, rate, noises, bound)


def row_bound(noise: IntegerNoise | None, others: int) -> int:
    """B: hardly any row of ``others`` noisy features of 1 is longer. Public, and a bound whatever the rows
    are."""
    deviation = 0.0 if noise is None else noise.deviation / FEATURE_ONE
    return math.ceil(math.hypot(1.0, deviation) * (math.sqrt(max(1, others)) + 2.5))


def clip_rows(rows: Floats, bound: int) -> Integers:
    """Released rows, cut to the bound's length, as whole numbers of 2^-bits, as fine as exact sums allow:
    (rows, columns).

    rows: in features of 1.
    """
    lengths = np.sqrt(np.sum(rows**2, axis=1, keepdims=True))
    fitting = rows * np.minimum(1.0, bound * (1 - 1e-9) / np.maximum(lengths, 1e-300))
    # Towards 0: rounding must not lengthen a row.
    return np.asarray(np.trunc(np.ldexp(fitting, row_bits(bound))), dtype=np.int64)


def row_bits(bound: int) -> int:
    """Bits after the point of clipped rows. With these, sums of their products over a chunk are exact."""
    return EXACT_BITS - FEATURE_ONE.bit_length() - CHUNK.bit_length() - bound.bit_length()
