"""A party's part of a fit: scores of signed vertices, a choice among them, and a sketch of a column when it
is first chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import rng_for
from streamfl.dp_frank_wolfe.learning.blocks import Block
from streamfl.dp_frank_wolfe.learning.iterate import SLACK, SUM_BITS, Quantised, Vertex, quantise
from streamfl.dp_frank_wolfe.learning.sketch import Sketch
from streamfl.dp_frank_wolfe.party.window import (
    FEATURE_BITS,
    FEATURE_ONE,
    RESIDUAL_BITS,
    RESIDUAL_ONE,
    Window,
    correlations,
    outputs,
)
from streamfl.dp_frank_wolfe.privacy.budget import FitPlan
from streamfl.encoding.wire import Count
from streamfl.privacy.exponential_mechanism import exponential_mechanism
from streamfl.privacy.release_bits import Release, release_bits

__all__ = ["BlockAnswer", "FitState", "PartyFit", "ReleaseContext", "column_scores", "predictions"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
# Largest number that a server may send: sums of fewer than 2^64 of these do not overflow.
LARGEST = 1e250


@dataclass(frozen=True)
class ReleaseContext:
    """Where a party's releases belong. ledger, federation, party: names. window: number of it. secret: 32
    bytes or more."""

    ledger: str
    federation: str
    party: str
    window: int
    secret: bytes


class FitState(msgspec.Struct, array_like=True, frozen=True):
    """A party's progress in a fit. transcript: digest of all that was read and released. chosen: how many
    choices were made.

    shown: columns whose sketches were released, in that order.
    """

    transcript: bytes
    chosen: Count
    shown: tuple[Count, ...]


@dataclass(frozen=True)
class BlockAnswer:
    """vertex: of the block. sums: of its column, in the noise's units; None if the column was shown
    before."""

    vertex: Vertex
    sums: Integers | None


def predictions(window: Window, own: Floats, others: Quantised, sketch: Sketch, bound: int) -> Integers:
    """A x of each row, clipped to +-bound, in whole numbers of ``RESIDUAL_ONE``: (rows,).

    The own columns' part is exact. The others' part is estimated from their sketches. A row's prediction
    follows from its own features and from what was released. The bound is enforced: sketches predict several
    times more than the true model ever does, and without a bound one row could move a score by any amount.

    own: x of the party's columns.
    others: sum of x_j times sums of column j over the others' columns.
    """
    weights = quantise(own, SUM_BITS - FEATURE_BITS)
    exact = outputs(window.columns, weights.numbers.astype(np.int64)).astype(np.float64)
    told = sketch.scale * sketch.back(others.numbers)
    # Features are whole numbers of FEATURE_ONE. So is what sketches give back.
    shift = RESIDUAL_BITS - FEATURE_BITS
    total = np.ldexp(exact, shift - weights.bits) + np.ldexp(told, shift - others.bits)
    return np.asarray(np.clip(np.rint(total), -bound, bound), dtype=np.int64)


def column_scores(gradient: Integers) -> Integers:
    """Scores of the vertices +e_i, then of -e_i: (2 columns,). A vertex scores higher the more it points
    against the gradient."""
    return np.concatenate([-gradient, gradient])


class PartyFit:
    """One fit on one window.

    window: the frozen one.
    blocks: the party's, by their public numbers.
    plan: what it may release.
    place: where its releases belong.
    candidates: columns of a block that are tried in an iteration, None for
        all; drawn by the public ``seed``. Fewer of them are cheaper, but the theorem does not cover that.
    """

    def __init__(
        self,
        window: Window,
        blocks: Mapping[int, Block],
        plan: FitPlan,
        sketch: Sketch,
        place: ReleaseContext,
        candidates: int | None = None,
        seed: int = 0,
    ) -> None:
        self._window = window
        self._blocks = dict(blocks)
        self._plan = plan
        self._sketch = sketch
        self._place = place
        self._candidates = candidates
        self._seed = seed
        self._transcript = hashlib.sha256(b"streamfl fit/1" + window.digest).digest()
        self._chosen = 0
        self.shown: list[int] = []
        """Columns whose sketches were released, in that order."""

    @property
    def state(self) -> FitState:
        """The state to remember. Setting it continues the fit from there."""
        return FitState(self._transcript, self._chosen, tuple(self.shown))

    @state.setter
    def state(self, state: FitState) -> None:
        self._transcript, self._chosen, self.shown = state.transcript, state.chosen, list(state.shown)

    def answer(
        self, iteration: int, numbers: Iterable[int], own: Floats, others: Floats
    ) -> dict[int, BlockAnswer]:
        """Answers of the blocks with these numbers. A block that may show no new column and has none shown
        does not answer.

        own: x of the party's columns.
        others: from :meth:`Iterate.others`.
        Raises ValueError for an iterate that no server could have reached, and for more choices than the plan
        has.
        """
        radius = sum(block.radius for block in self._blocks.values())
        if not (
            float(np.sum(np.abs(own))) <= radius * (1 + SLACK)
            and float(np.max(np.abs(others), initial=0.0)) <= LARGEST
        ):
            raise ValueError(
                f"an iterate that is not within the radius of {radius}, or predictions that are no numbers"
            )
        told = quantise(others)
        self._hear(b"%d" % iteration, own.astype("<f8").tobytes(), others.astype("<f8").tobytes())
        predicted = predictions(self._window, own, told, self._sketch, self._plan.prediction_bound)
        residuals = predicted - self._window.labels
        answers = {}
        for number in numbers:
            columns = self._open_columns(iteration, number)
            if not len(columns):
                continue
            if self._chosen >= self._plan.choices:
                raise ValueError(f"the plan has {self._plan.choices} choices, and they are used up")
            self._chosen += 1
            # A copy of a whole table costs more than its products.
            every = len(columns) == self._window.columns.shape[1]
            own_columns = self._window.columns if every else self._window.columns[:, columns]
            gradient = correlations(own_columns, residuals, self._plan.largest_residual)
            found = self._choose(iteration, number, columns, column_scores(gradient))
            vertex = Vertex(int(columns[found % len(columns)]), 1 if found < len(columns) else -1)
            answers[number] = BlockAnswer(
                vertex, None if vertex.column in self.shown else self._show(vertex.column)
            )
            self._hear(b"chose", b"%d %d" % (vertex.column, vertex.sign))
        return answers

    def gap(self, own: Floats, others: Floats) -> float:
        """The party's part of the duality gap, sum over its blocks of g_b' x_b + r_b max |g_b|. It is not
        private.

        The sum over all parties is at least the objective's distance from its optimum.
        """
        predicted = predictions(
            self._window, own, quantise(others), self._sketch, self._plan.prediction_bound
        )
        gradient = correlations(
            self._window.columns, predicted - self._window.labels, self._plan.largest_residual
        )
        real = gradient / (FEATURE_ONE * RESIDUAL_ONE * len(self._window.labels))
        total = 0.0
        for block in self._blocks.values():
            columns = list(block.columns)
            total += float(real[columns] @ own[columns]) + block.radius * float(np.max(np.abs(real[columns])))
        return total

    def value(self, sums: Integers) -> Floats:
        """Released sums in features of ``FEATURE_ONE``. The server computes the same from the public plan."""
        return sums.astype(np.float64) * (self._plan.noise.unit if self._plan.noise else 1)

    def _open_columns(self, iteration: int, number: int) -> NDArray[np.int64]:
        """Columns of the block that may be chosen: at the cap the shown ones, else all, or the drawn
        candidates."""
        own = np.sort(np.array(self._blocks[number].columns, dtype=np.int64))
        if len(self.shown) >= self._plan.columns:
            return own[np.isin(own, self.shown)]
        if self._candidates is None or self._candidates >= len(own):
            return own
        random = rng_for(self._seed, "candidates", self._place.window, iteration, number)
        return np.sort(random.choice(own, self._candidates, replace=False))

    def _choose(self, iteration: int, number: int, columns: NDArray[np.int64], scores: Integers) -> int:
        if self._plan.rate is None:
            return int(np.argmax(scores))
        bits = self._bits(
            iteration,
            f"choice {number}",
            self._transcript,
            1,
            (self._plan.rate, columns.astype("<i8").tobytes()),
        )
        return int(exponential_mechanism(scores, self._plan.rate).draw(bits)[0])

    def _show(self, column: int) -> Integers:
        """The column's sums with noise. They follow from the window alone, so they are the same in any
        iteration."""
        self.shown.append(column)
        sums = self._sketch.apply(self._window.columns[:, column])
        noise = self._plan.noise
        if noise is None:
            return sums
        given = (noise.variance, noise.unit, self._sketch.name)
        return noise.add(sums, self._bits(0, f"sketch {column}", self._window.digest, len(sums), given))

    def _bits(
        self,
        iteration: int,
        kind: str,
        digest: bytes,
        draws: int,
        given: tuple[str | int | bytes | Fraction, ...],
    ) -> bytes:
        place, plan = self._place, self._plan
        every = (FEATURE_BITS, RESIDUAL_BITS, plan.prediction_bound, plan.choices, plan.columns, *given)
        release = Release(
            place.ledger, place.federation, place.party, place.window, iteration, kind, every, digest
        )
        return release_bits(place.secret, release, draws)

    def _hear(self, *parts: bytes) -> None:
        content = b"".join(len(part).to_bytes(8, "big") + part for part in (self._transcript, *parts))
        self._transcript = hashlib.sha256(content).digest()
