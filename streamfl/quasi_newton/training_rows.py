"""A party's rows of a run: what it had when the run began, then the common entities in the order of the batches."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.changelog import ChangedParts
from streamfl.quasi_newton.batches import check_support
from streamfl.quasi_newton.chunks import Chunks
from streamfl.quasi_newton.config import MOST_COLUMNS
from streamfl.quasi_newton.preparation import MOST_PREPARATION_BYTES, Preparation
from streamfl.quasi_newton.preprocessing import Method, fit_preprocessing
from streamfl.role import PeerError
from streamfl.wire import LONGEST_NAME

__all__ = ["TrainingRows"]

Floats = NDArray[np.float64]
NAME_BYTES = 4 * LONGEST_NAME + 5


class TrainingRows:
    """Frozen when a run begins, so that what comes later changes nothing of it.

    limit: entities at most.
    """

    def __init__(self, parts: ChangedParts, limit: int) -> None:
        self._names = Chunks(parts, "names", 5 + limit * NAME_BYTES)
        self._inputs = Chunks(parts, "inputs", limit * MOST_COLUMNS * 8)
        self._signs = Chunks(parts, "signs", limit)
        self._preparation = Chunks(parts, "preparation", MOST_PREPARATION_BYTES)

    @property
    def names(self) -> list[str]:
        """Of the entities, in the order of the rows."""
        return list(msgspec.msgpack.decode(self._names.content, type=list[str])) if self._names else []

    def inputs(self, rows: int) -> Floats:
        """(rows, columns)."""
        numbers = np.frombuffer(self._inputs.content, "<f8").astype(np.float64)
        if rows == 0 or len(numbers) % rows:
            raise PeerError("malformed", f"{len(numbers)} numbers in state are not {rows} rows")
        return numbers.reshape(rows, -1)

    @property
    def preparation(self) -> Preparation:
        """What made the columns ready."""
        return Preparation.decode(self._preparation.content)

    @property
    def signs(self) -> Floats:
        """Labels -1 and 1, (rows,); none at a host."""
        return np.frombuffer(self._signs.content, np.int8).astype(np.float64)

    def freeze(self, names: Sequence[str], inputs: Floats, signs: NDArray[np.int8]) -> None:
        """These are the party's rows. signs: zeros at a host."""
        self._names.write(msgspec.msgpack.encode(list(names)))
        self._inputs.write(inputs.astype("<f8").tobytes())
        self._signs.write(signs.astype(np.int8).tobytes() if signs.any() else b"")

    def select(self, names: Sequence[str], method: Method, batch: int, least: int) -> int:
        """Keep the rows of these names, in this order, preprocessed; returns how many columns were left out.

        batch: rows of each batch. least: a column that has less support than this in a batch is left out.
        """
        known = self.names
        place = {name: number for number, name in enumerate(known)}
        rows = [place[name] for name in names]
        raw = self.inputs(len(known))[rows]
        preprocessing = fit_preprocessing(method, raw)
        inputs = preprocessing.apply(raw)
        refused = {column for at in range(0, len(rows), batch) for column in check_support(inputs[at : at + batch], least)}
        kept = [column for column in range(inputs.shape[1]) if column not in refused]
        self._preparation.write(Preparation(preprocessing, kept).encode())
        signs = self.signs
        self.freeze(names, inputs[:, kept], signs[rows].astype(np.int8) if len(signs) else np.zeros(0, np.int8))
        return len(refused)

    def restore(self, key: bytes, value: bytes) -> bool:
        """Take a piece back; False if the key is another's."""
        return any(chunks.restore(key, value) for chunks in (self._names, self._inputs, self._signs, self._preparation))
