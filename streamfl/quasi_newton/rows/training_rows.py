"""A party's rows of a training: the new entities that it had when the training began, and the batches that it
learns from."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint
from streamfl.quasi_newton.learning.own_columns import rounded
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.rows.batches import check_support, far_rows
from streamfl.quasi_newton.rows.learnt_batches import NAME_BYTES, LearntBatches
from streamfl.quasi_newton.rows.near_rows import cut_at_near_rows
from streamfl.quasi_newton.rows.preparation import MOST_PREPARATION_BYTES, Preparation
from streamfl.quasi_newton.rows.preprocessing import EVIDENCE, Method, fit_preprocessing
from streamfl.quasi_newton.rows.weight_of_evidence import fit_weight_of_evidence
from streamfl.quasi_newton.state import INPUTS, NAMES, PREPARATION, SIGNS
from streamfl.state.changelog import ChangedParts
from streamfl.state.value_fragments import ValueFragments

__all__ = ["FAR_OUT", "TrainingRows"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
FAR_OUT = (
    "are so far out in own columns that a gradient would reveal their labels: the training uses zeros "
    "instead (preprocessing.method = clip and rank leave fewer such rows)"
)
"""What the log, and the text of a failure, say of muted rows."""


class TrainingRows:
    """Candidates are frozen when a training begins, so that later records do not change it. Some of them fill
    batches.

    limit: most entities.
    batch: most rows of a batch.
    columns: how many raw ones.
    kind: that columns are rounded to.
    least: support that a column needs in a batch.
    secret: of the party.
    counts: the member's counters.
    largest: largest leverage of a row in a batch.
    intercept: whether the party has the column of ones.
    """

    def __init__(
        self,
        parts: ChangedParts,
        limit: int,
        batch: int,
        columns: int,
        kind: FixedPoint,
        least: int,
        secret: bytes,
        counts: MemberCounts,
        *,
        largest: float = 1.0,
        intercept: bool = False,
    ) -> None:
        self._columns = columns
        self._kind = kind
        self._least = least
        self._largest = largest
        self._intercept = intercept
        self._names = ValueFragments(parts, NAMES, 5 + limit * NAME_BYTES)
        self._inputs = ValueFragments(parts, INPUTS, limit * columns * 8)
        self._signs = ValueFragments(parts, SIGNS, limit)
        self._preparation = ValueFragments(parts, PREPARATION, MOST_PREPARATION_BYTES)
        self.batches = LearntBatches(parts, batch, columns, limit // batch, secret, counts)

    @property
    def candidates(self) -> list[str]:
        """Names of the frozen new entities."""
        return list(msgspec.msgpack.decode(self._names.content, type=list[str])) if self._names else []

    def freeze(self, names: Sequence[str], inputs: Floats, signs: NDArray[np.int8]) -> None:
        """Store the party's candidates. inputs: raw, (names, columns). signs: labels, (names,); zeros at a
        host."""
        self._names.write(msgspec.msgpack.encode(list(names)))
        self._inputs.write(inputs.astype("<f8").tobytes())
        self._signs.write(signs.astype(np.int8).tobytes() if signs.any() else b"")

    def choose(self, names: Sequence[str]) -> None:
        """Fill new batches for life with these candidates, in this order. The others are candidates of the
        next training again."""
        known = self.candidates
        place = {name: number for number, name in enumerate(known)}
        rows = [place[name] for name in names]
        raw = np.frombuffer(self._inputs.content, "<f8").reshape(len(known), self._columns)[rows]
        signs = np.frombuffer(self._signs.content, np.int8)
        self.batches.add(names, raw, signs[rows] if len(signs) else signs)
        for fragments in (self._names, self._inputs, self._signs):
            fragments.clear()

    @property
    def preparation(self) -> Preparation | None:
        """The transformation of the columns, fixed by the first training that reached its rounds; None
        before."""
        return Preparation.decode(self._preparation.content) if self._preparation else None

    def prepare(self, method: Method) -> Preparation:
        """The fixed preparation, or else one fitted to the batches, without columns that have too little
        support in a batch."""
        found = self.preparation
        if found is not None:
            return found
        raw = self.batches.raw
        fitted = (
            fit_weight_of_evidence(raw, self.signs) if method == EVIDENCE else fit_preprocessing(method, raw)
        )
        refused = {column for _, columns in self._refused(fitted.apply(raw)) for column in columns}
        preprocessing = cut_at_near_rows(
            fitted,
            raw,
            self._kind,
            self.batches.size,
            self._largest,
            intercept=self._intercept,
            left_out=refused,
        )
        inputs = preprocessing.apply(raw)
        refused |= {column for _, columns in self._refused(inputs) for column in columns}
        return Preparation(
            preprocessing, [column for column in range(inputs.shape[1]) if column not in refused]
        )

    def fix(self, preparation: Preparation) -> None:
        """Fix the preparation for life, because weights belong to columns whose meaning does not change."""
        if not self._preparation:
            self._preparation.write(preparation.encode())

    def inputs(self) -> Floats:
        """Columns to learn from, (rows, columns), in the order of the batches. Muted rows are zeros."""
        return self.learnt()[0]

    def learnt(self, preparation: Preparation | None = None) -> tuple[Floats, Bools]:
        """The same columns, and which rows are muted, (rows,): they are too far out, and add nothing to this
        party's gradients.

        If a column has too little support in a later batch, all its rows there get its most common value.
        """
        found = preparation or self.preparation
        if found is None:
            raise BadRecord("malformed", "no preprocessing in state")
        inputs = found.apply(self.batches.raw)
        for begin, columns in self._refused(inputs):
            rows = slice(begin, begin + self.batches.size)
            for column in columns:
                values, counts = np.unique(rounded(self._kind, inputs[rows, [column]])[1], return_counts=True)
                inputs[rows, column] = values[np.argmax(counts)]
        numbers = rounded(self._kind, inputs)[1]
        size = self.batches.size
        pieces = [numbers[at : at + size] for at in range(0, len(numbers), size)]
        muted = [far_rows(piece, self._largest, intercept=self._intercept) for piece in pieces]
        far = np.concatenate([*muted, np.zeros(0, np.bool_)])
        inputs[far] = 0.0
        return inputs, far

    @property
    def signs(self) -> Floats:
        """Labels -1 and 1, (rows,); none at a host."""
        return self.batches.signs

    def _refused(self, inputs: Floats) -> list[tuple[int, list[int]]]:
        """For each batch its first row, and the columns with too little support in it."""
        # Gradients use rounded numbers, in which values that differ before rounding may be equal.
        numbers, size = rounded(self._kind, inputs)[1], self.batches.size
        return [
            (at, check_support(numbers[at : at + size], self._least)) for at in range(0, len(inputs), size)
        ]
