"""A party's weights and curvature pairs, remembered after each step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_number
from streamfl.encoding.wire import decode_array, encode_array
from streamfl.quasi_newton.config import MOST_COLUMNS
from streamfl.quasi_newton.encryption.fixed_point import Kinds
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.learning.own_columns import PartyArithmetic
from streamfl.quasi_newton.state import MODEL, PAIR, VECTORS
from streamfl.state.changelog import ChangedParts

__all__ = ["Iterates"]

Floats = NDArray[np.float64]


class Iterates:
    """Stores the latest weights, the sums of iterates, the pairs and the model.

    learning, kinds: public settings.
    intercept: whether this party has the column of ones.
    """

    def __init__(self, parts: ChangedParts, learning: DescentSettings, kinds: Kinds, intercept: bool) -> None:
        self._remember_vectors = parts.single(VECTORS, bytes, self._restore_vectors)
        self._kept_pairs = parts.named(PAIR, check_number, bytes, self._restore_pair)
        self._remember_model = parts.single(MODEL, bytes, self._restore_model)
        self._learning = learning
        self._kinds = kinds
        self._intercept = intercept
        self._vectors: Floats | None = None
        self._pairs: dict[int, Floats] = {}
        self._own: PartyArithmetic | None = None
        self.model: Floats | None = None
        """The mean of the latest epoch's iterates."""

    @property
    def own(self) -> PartyArithmetic:
        """The arithmetic on the party's rows. Only after :meth:`begin` or :meth:`go_on`."""
        assert self._own is not None, "no rows yet"
        return self._own

    @property
    def is_ready(self) -> bool:
        return self._own is not None

    def begin(self, inputs: Floats, muted: NDArray[np.bool_], start: Floats, batch: int) -> None:
        """Start to learn from these rows. muted: as for :class:`PartyArithmetic`. start: first weights.
        batch: rows of a batch."""
        for number in self._pairs:
            self._kept_pairs.forget(number)
        self._pairs.clear()
        self._own = self._of(inputs, muted, start, batch)
        self.remember()

    def go_on(
        self, inputs: Floats, muted: NDArray[np.bool_], batch: int, iterations: int, in_epoch: int
    ) -> None:
        """Continue from the remembered state after a restart. iterations, in_epoch: steps taken in all, and
        in this epoch."""
        columns = inputs.shape[1] + self._intercept
        vectors = self._vectors
        pairs = [self._pairs[number] for number in sorted(self._pairs)]
        if (
            vectors is None
            or vectors.shape[1] != columns
            or any(pair.shape != (2, columns) for pair in pairs)
        ):
            raise BadRecord("malformed", f"the weights in state are not of {columns} columns")
        self._own = self._of(inputs, muted, vectors[0], batch)
        self._own.restore(vectors, np.array(pairs).reshape(-1, 2, columns), iterations, in_epoch)

    def remember(self) -> None:
        """Store the weights in the changelog."""
        self._vectors = self.own.vectors
        self._remember_vectors(encode_array(self._vectors))

    def keep_pair(self, step: Floats, curvature: Floats) -> None:
        """Store a pair that the coordinator has accepted."""
        self.own.keep_pair(step, curvature)
        number = max(self._pairs, default=-1) + 1
        self._pairs[number] = np.array([step, curvature])
        self._kept_pairs.remember(number, encode_array(self._pairs[number]))
        for old in [one for one in self._pairs if one <= number - self._learning.memory]:
            del self._pairs[old]
            self._kept_pairs.forget(old)

    def end_epoch(self) -> None:
        """End an epoch: the model is the mean of its iterates."""
        self.model = self.own.end_epoch()
        self._remember_model(encode_array(self.model))
        self.remember()

    def _restore_vectors(self, value: bytes) -> None:
        self._vectors = _array(value, 4)

    def _restore_pair(self, number: int, value: bytes) -> None:
        self._pairs[number] = _array(value, 2)

    def _restore_model(self, value: bytes) -> None:
        self.model = _array(value, 1)[0]

    def _of(self, inputs: Floats, muted: NDArray[np.bool_], start: Floats, batch: int) -> PartyArithmetic:
        learning = replace(self._learning, batch=batch)
        return PartyArithmetic(inputs, learning, self._kinds, start, intercept=self._intercept, muted=muted)


def _array(content: bytes, rows: int) -> Floats:
    columns = len(content) // (8 * rows)
    if columns > MOST_COLUMNS + 1:
        raise BadRecord("malformed", f"{columns} columns in state")
    return decode_array(content, np.float64, (rows, columns), "vectors")
