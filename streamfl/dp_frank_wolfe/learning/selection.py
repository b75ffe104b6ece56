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

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.party.fit import ReleaseContext, column_scores
from streamfl.dp_frank_wolfe.party.window import CHUNK, FEATURE_ONE, RESIDUAL_ONE, Window, correlations
from streamfl.dp_frank_wolfe.privacy.budget import choice_rate
from streamfl.encoding.wire import Count
from streamfl.privacy.exponential_mechanism import exponential_mechanism
from streamfl.privacy.integer_distribution import DRAW_BITS
from streamfl.privacy.integer_noise import IntegerNoise
from streamfl.privacy.release_bits import Release, release_bits
from streamfl.privacy.zcdp import cost_of_choice

__all__ = [
    "MARGINAL",
    "TWO_ROUND",
    "PartySelection",
    "SelectionPlan",
    "SelectionState",
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

    columns: N_k. others: columns that the other parties choose. rate: of each choice, None where epsilon is
    infinite. noises: by kind of release. row_bound: B.
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

    cost: of the party, may be infinite. columns: N_k. others: columns that the other parties choose.
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


class SelectionState(msgspec.Struct, array_like=True, frozen=True):
    """A party's progress. transcript: digest of all that was read and released. chosen: its columns."""

    transcript: bytes
    chosen: tuple[Count, ...]


class PartySelection:
    """One party's releases. Call the methods in the order in which they are defined, each once."""

    def __init__(self, window: Window, plan: SelectionPlan, place: ReleaseContext) -> None:
        self._window = window
        self._plan = plan
        self._place = place
        self._transcript = hashlib.sha256(b"streamfl selection/1" + window.digest).digest()
        self.chosen: list[int] = []

    @property
    def state(self) -> SelectionState:
        """The state to remember. Setting it continues the releases from there."""
        return SelectionState(self._transcript, tuple(self.chosen))

    @state.setter
    def state(self, state: SelectionState) -> None:
        self._transcript, self.chosen = state.transcript, list(state.chosen)

    def choose(self) -> list[int]:
        """N_k columns, best first: the exponential mechanism over +-a_i'y of the columns that are left, N_k
        times."""
        scores = correlations(self._window.columns, self._window.labels, RESIDUAL_ONE)
        left = np.arange(len(scores))
        for number in range(min(self._plan.columns, len(scores))):
            # At x = 0 the gradient is -A'y.
            signed = column_scores(-scores[left])
            if self._plan.rate is None:
                found = int(np.argmax(signed))
            else:
                found = int(
                    exponential_mechanism(signed, self._plan.rate).draw(
                        self._bits(f"choice {number}", 1, (self._plan.rate,))
                    )[0]
                )
            self.chosen.append(int(left[found % len(left)]))
            left = np.delete(left, found % len(left))
            self._hear(b"%d" % self.chosen[-1])
        return self.chosen

    def values(self) -> Floats:
        """a_i'y / n of the chosen columns."""
        sums = correlations(self._own, self._window.labels, RESIDUAL_ONE)
        return self._told("values", sums) / (FEATURE_ONE * RESIDUAL_ONE * len(self._own))

    def norms(self) -> Floats:
        """|a_i|^2 / n of the chosen columns."""
        sums = np.sum(self._own.astype(np.int64) ** 2, axis=0)
        return self._told("norms", sums) / (FEATURE_ONE**2 * len(self._own))

    def rows(self) -> Floats:
        """The chosen columns' rows: (rows, N_k), in features of 1."""
        return self._told("rows", self._own.astype(np.int64).ravel()).reshape(self._own.shape) / FEATURE_ONE

    def gram(self) -> Floats:
        """A_k'A_k / n. The upper triangle is released, then mirrored."""
        own = self._own.astype(np.float64)
        above = np.triu_indices(own.shape[1])
        found = np.zeros((own.shape[1], own.shape[1]))
        found[above] = self._told("gram", (own.T @ own).astype(np.int64)[above]) / (FEATURE_ONE**2 * len(own))
        return found + np.triu(found, 1).T

    def products(self, others: Integers) -> Floats:
        """A_k'Z / n: (N_k, others). others: the other parties' rows, clipped."""
        self._hear(others.astype("<i8").tobytes())
        sums = np.zeros((self._own.shape[1], others.shape[1]), dtype=np.int64)
        for start in range(0, len(others), CHUNK):
            part = self._own[start : start + CHUNK].astype(np.float64).T @ others[
                start : start + CHUNK
            ].astype(np.float64)
            sums += part.astype(np.int64)
        told = self._told("products", sums.ravel()).reshape(sums.shape)
        return np.ldexp(told, -row_bits(self._plan.row_bound)) / (FEATURE_ONE * len(others))

    @property
    def _own(self) -> NDArray[np.int16]:
        return self._window.columns[:, self.chosen]

    def _told(self, kind: str, sums: Integers) -> Floats:
        if self._plan.rate is None:
            return sums.astype(np.float64)
        noise = self._plan.noises[kind]
        bits = self._bits(kind, len(sums), (noise.variance, noise.unit))
        told = noise.add(sums, bits)
        self._hear(kind.encode(), told.astype("<i8").tobytes())
        return told.astype(np.float64) * noise.unit

    def _bits(self, kind: str, draws: int, given: tuple[Fraction | int, ...]) -> bytes:
        place = self._place
        every = (FEATURE_ONE, RESIDUAL_ONE, self._plan.columns, self._plan.row_bound, *given)
        release = Release(
            place.ledger, place.federation, place.party, place.window, 0, kind, every, self._transcript
        )
        return release_bits(place.secret, release, draws)

    def _hear(self, *parts: bytes) -> None:
        content = b"".join(len(part).to_bytes(8, "big") + part for part in (self._transcript, *parts))
        self._transcript = hashlib.sha256(content).digest()
