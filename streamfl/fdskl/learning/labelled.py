"""The latest labelled entities of a partition, which the active party learns from, with the model's output
for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_name, check_within
from streamfl.encoding.wire import Count, encode_array
from streamfl.fdskl.predicting.prequential_totals import PrequentialTotals
from streamfl.fdskl.state import LABELLED, LABELS, OUTPUTS
from streamfl.state.changelog import ChangedParts

__all__ = ["LabelledEntities"]

# Outputs that are remembered in one record, because they change together with every iteration.
CHUNK = 512
LARGEST_OUTPUT = 1e150


class _Labelled(msgspec.Struct, array_like=True, gc=False):
    """label: -1 or 1, or a number. number: running number of the entity's latest label."""

    label: float
    number: Count


class _LabelTotals(msgspec.Struct, array_like=True):
    """labels: how many came. fresh: how many of them no iteration has learnt from. totals: how good
    predictions were."""

    labels: Count = 0
    fresh: Count = 0
    # Last, so that a release without this field can read the rest.
    totals: PrequentialTotals = msgspec.field(default_factory=PrequentialTotals)


class _Chunk:
    """outputs: f at the current version of the model, NaN: not known, (CHUNK,). known: from how many parties'
    columns, (CHUNK,)."""

    __slots__ = ("known", "outputs")

    def __init__(self) -> None:
        self.outputs = np.full(CHUNK, math.nan)
        self.known = np.zeros(CHUNK, np.uint8)


class LabelledEntities:
    """The last ``limit`` labelled entities, the one that was labelled longest ago first.

    parts: where they are remembered.
    limit: most entities kept.
    """

    def __init__(self, parts: ChangedParts, limit: int) -> None:
        self._kept_entities = parts.named(LABELLED, check_name, _Labelled, self.restore)
        self._kept_outputs = parts.named(OUTPUTS, int, bytes, self.restore_outputs)
        self._remember_totals = parts.single(LABELS, _LabelTotals, self.restore_totals)
        self._limit = limit
        self._entities: dict[str, _Labelled] = {}
        self._chunks: dict[int, _Chunk] = {}
        self._label_totals = _LabelTotals()
        self._in_order = True
        self._touched: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._entities)

    def __iter__(self) -> Iterator[str]:
        self._sort()
        return iter(self._entities)

    def __contains__(self, entity: str) -> bool:
        return entity in self._entities

    @property
    def fresh(self) -> int:
        """Labels that no iteration has learnt from."""
        return self._label_totals.fresh

    @property
    def learnt(self) -> int:
        """Labels that iterations have learnt from."""
        return self._label_totals.labels - self._label_totals.fresh

    @property
    def labels(self) -> int:
        """Labels that came."""
        return self._label_totals.labels

    @property
    def totals(self) -> PrequentialTotals:
        """How good predictions have been."""
        return self._label_totals.totals

    def score(self, loss: float, label: float) -> None:
        """Count the loss of a model's prediction. A call of :meth:`add` with its label follows."""
        self._label_totals.totals.score(loss, label)
        self._remember_totals(self._label_totals)

    def add(self, entity: str, label: float, output: float = math.nan, known: int = 0) -> None:
        """Add a label. Its entity becomes the youngest; beyond the limit the oldest is forgotten.

        output: f at the current version of the model; NaN: not known, or as before.
        known: from how many parties' columns.
        """
        self._sort()
        before = self._entities.pop(entity, None)
        if before is not None:
            if math.isnan(output):
                chunk, place = self._place(before.number)
                output, known = float(chunk.outputs[place]), int(chunk.known[place])
            self._clear(before.number)
        number = self._label_totals.labels
        self._entities[entity] = one = _Labelled(label, number)
        self._kept_entities.remember(entity, one)
        chunk, place = self._place(number)
        chunk.outputs[place], chunk.known[place] = output, known
        self._touch(number)
        self._label_totals.labels += 1
        self._label_totals.fresh += 1
        self._remember_totals(self._label_totals)
        # More than one, after the limit was lowered.
        while len(self._entities) > self._limit:
            self.forget(next(iter(self._entities)))

    def use(self, count: int) -> None:
        """An iteration has learnt from ``count`` fresh labels."""
        self._label_totals.fresh -= min(count, self._label_totals.fresh)
        self._remember_totals(self._label_totals)

    def latest(self, count: int) -> list[str]:
        """The ``count`` entities that were labelled last, in that order."""
        return list(self)[-count:]

    def not_learnt(self, count: int) -> list[str]:
        """Up to ``count`` entities that no iteration has learnt from, in the order of their labels."""
        entities = list(self)
        return entities[max(0, len(entities) - self._label_totals.fresh) :][:count]

    def labels_of(self, entities: Sequence[str]) -> NDArray[np.float64]:
        return np.fromiter((self._entities[entity].label for entity in entities), np.float64, len(entities))

    def outputs_and_known(self, entities: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
        """f at the current version of the model, NaN where it is not known, (n,); and the number of parties
        behind it, (n,)."""
        numbers = self._numbers([self._entities[entity] for entity in entities])
        outputs, known = np.empty(len(numbers)), np.empty(len(numbers), np.uint8)
        for chunk, rows in self._by_chunk(numbers):
            places = numbers[rows] % CHUNK
            outputs[rows], known[rows] = chunk.outputs[places], chunk.known[places]
        return outputs, known

    def put_outputs(
        self, entities: Sequence[str], outputs: NDArray[np.float64], known: NDArray[np.uint8] | None = None
    ) -> None:
        """Store f of these entities, except those that were forgotten meanwhile. known: None: as before."""
        found = [self._entities.get(entity) for entity in entities]
        here = np.fromiter((one is not None for one in found), np.bool_, len(found))
        numbers = self._numbers([one for one in found if one is not None])
        outputs, parties = outputs[here], None if known is None else known[here]
        for chunk, rows in self._by_chunk(numbers):
            places = numbers[rows] % CHUNK
            chunk.outputs[places] = outputs[rows]
            if parties is not None:
                chunk.known[places] = parties[rows]
            self._touch(int(numbers[rows[0]]))

    def forget_outputs_but(self, entities: Sequence[str]) -> None:
        """The model has changed: forget f of all entities but these."""
        kept = set(entities)
        for entity in [one for one in self._entities if one not in kept]:
            self.forget_output(entity)

    def forget_output(self, entity: str) -> None:
        """The model, or a party's columns of the entity, have changed: f has to be computed again."""
        if (one := self._entities.get(entity)) is not None and not math.isnan(self._at(entity)[0]):
            chunk, place = self._place(one.number)
            chunk.outputs[place] = math.nan
            self._touch(one.number)

    def forget(self, entity: str) -> None:
        number = self._entities.pop(entity).number
        self._kept_entities.forget(entity)
        self._clear(number)

    def flush(self) -> None:
        """Remember the outputs that changed since the last call."""
        for number in self._touched:
            if (chunk := self._chunks.get(number)) is not None:
                content = encode_array(chunk.outputs) + chunk.known.tobytes()
                self._kept_outputs.remember(number, content)
        self._touched = {}

    def restore(self, entity: str, one: _Labelled) -> None:
        check_within(one.label, -LARGEST_OUTPUT, LARGEST_OUTPUT, "a label")
        self._entities[entity] = one
        self._in_order = False

    def restore_outputs(self, number: int, value: bytes) -> None:
        if len(value) != CHUNK * 9:
            raise BadRecord(
                "malformed", f"outputs of {len(value)} bytes are remembered, {CHUNK * 9} are expected"
            )
        chunk = self._chunks[number] = _Chunk()
        chunk.outputs[:] = np.frombuffer(value, "<f8", CHUNK)
        chunk.known[:] = np.frombuffer(value, np.uint8, CHUNK, 8 * CHUNK)
        given = chunk.outputs[~np.isnan(chunk.outputs)]
        check_within(given, -LARGEST_OUTPUT, LARGEST_OUTPUT, "outputs")

    def restore_totals(self, counts: _LabelTotals) -> None:
        if counts.fresh > counts.labels:
            raise BadRecord(
                "malformed", f"{counts.fresh} labels of {counts.labels} are remembered as not learnt from"
            )
        self._label_totals = counts

    def _at(self, entity: str) -> tuple[float, int]:
        chunk, place = self._place(self._entities[entity].number)
        return float(chunk.outputs[place]), int(chunk.known[place])

    @staticmethod
    def _numbers(found: Sequence[_Labelled]) -> NDArray[np.int64]:
        return np.fromiter((one.number for one in found), np.int64, len(found))

    def _by_chunk(self, numbers: NDArray[np.int64]) -> Iterator[tuple[_Chunk, NDArray[np.intp]]]:
        """Each chunk that has any of these numbers, and their places in ``numbers``."""
        chunks = numbers // CHUNK
        for number in np.unique(chunks).tolist():
            yield self._place(number * CHUNK)[0], np.flatnonzero(chunks == number)

    def _place(self, number: int) -> tuple[_Chunk, int]:
        chunk = self._chunks.get(number // CHUNK)
        if chunk is None:
            chunk = self._chunks[number // CHUNK] = _Chunk()
        return chunk, number % CHUNK

    def _clear(self, number: int) -> None:
        """Clear a number that no entity has any more, and forget chunks below the oldest one in use."""
        chunk, place = self._place(number)
        chunk.outputs[place], chunk.known[place] = math.nan, 0
        oldest = min(
            next(iter(self._entities.values())).number if self._entities else self._label_totals.labels,
            self._label_totals.labels,
        )
        for gone in [one for one in self._chunks if one < oldest // CHUNK]:
            del self._chunks[gone]
            self._kept_outputs.forget(gone)
        if number // CHUNK in self._chunks:
            self._touch(number)

    def _touch(self, number: int) -> None:
        self._touched[number // CHUNK] = None

    def _sort(self) -> None:
        """Restored entities come in the order in which they were last written."""
        if not self._in_order:
            self._entities = dict(sorted(self._entities.items(), key=lambda item: item[1].number))
            self._in_order = True
