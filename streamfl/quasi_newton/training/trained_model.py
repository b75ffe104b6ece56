"""A party's part of a trained model: all that the party needs to score later rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import decode_restored
from streamfl.encoding.wire import Count, decode_array, encode_array
from streamfl.quasi_newton.config import MOST_COLUMNS
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint
from streamfl.quasi_newton.learning.own_columns import inner, rounded
from streamfl.quasi_newton.rows.preparation import MOST_PREPARATION_BYTES, Preparation
from streamfl.quasi_newton.state import TRAINED
from streamfl.state.changelog import ChangedParts
from streamfl.state.value_fragments import ValueFragments

__all__ = ["MOST_MODEL_BYTES", "LatestModel", "TrainedModel"]

Floats = NDArray[np.float64]
MOST_MODEL_BYTES = MOST_PREPARATION_BYTES + 8 * (MOST_COLUMNS + 1) + 100


class _Content(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: Count
    weights: bytes
    preparation: bytes
    fraction_bits: Annotated[int, msgspec.Meta(ge=0, le=64)]
    largest: Annotated[int, msgspec.Meta(gt=0, lt=2**62)]
    intercept: bool


@dataclass(frozen=True)
class TrainedModel:
    """A party's part of the model of a successful run.

    version: number of the run, the same at every party.
    weights: of the columns that were learnt from; at the guest the intercept's is the last.
    preparation: transforms raw rows.
    inputs: the fixed-point kind that columns are rounded to, as in training.
    intercept: whether this is the guest's part.
    """

    version: int
    weights: Floats
    preparation: Preparation
    inputs: FixedPoint
    intercept: bool = False

    def outputs(self, raw: Floats) -> Floats:
        """u_p = x'w of rows, clipped and rounded as in training: (rows,).

        raw: (rows, columns) as they came. A number that is not finite counts as missing.
        """
        columns = rounded(self.inputs, self.preparation.apply(raw))[1]
        weights = self.weights[:-1] if self.intercept else self.weights
        return inner(columns, weights) + (self.weights[-1] if self.intercept else 0.0)

    def encode(self) -> bytes:
        """Encodes the model for :meth:`decode`."""
        weights, kind = encode_array(self.weights), self.inputs
        return msgspec.msgpack.encode(
            _Content(
                self.version,
                weights,
                self.preparation.encode(),
                kind.fraction_bits,
                kind.largest,
                self.intercept,
            )
        )

    @classmethod
    def decode(cls, content: bytes) -> TrainedModel:
        """Decodes a model. BadRecord with reason malformed, shape, oversized or not_finite."""
        if len(content) > MOST_MODEL_BYTES:
            raise BadRecord(
                "oversized", f"a model of {len(content)} bytes, at most {MOST_MODEL_BYTES} are accepted"
            )
        found = decode_restored(content, _Content, "a trained model")
        preparation = Preparation.decode(found.preparation)
        weights = decode_array(
            found.weights, np.float64, (len(preparation.kept) + found.intercept,), "weights"
        )
        kind = FixedPoint(found.fraction_bits, found.largest)
        return cls(found.version, weights, preparation, kind, found.intercept)


class LatestModel:
    """The model of the latest successful training. It goes on scoring during the next training."""

    def __init__(self, parts: ChangedParts) -> None:
        self._content = ValueFragments(parts, TRAINED, MOST_MODEL_BYTES, registered=False)
        parts.register(TRAINED.prefix, self._restore)
        self._model: TrainedModel | None = None

    @property
    def model(self) -> TrainedModel | None:
        """The latest model; None before the first."""
        if self._model is None and self._content:
            self._model = TrainedModel.decode(self._content.content)
        return self._model

    def keep(self, model: TrainedModel) -> None:
        """Store the model of a training that has ended."""
        self._content.write(model.encode())
        self._model = model

    def _restore(self, name: bytes, value: bytes) -> None:
        self._model = None
        self._content.restore(name, value)
