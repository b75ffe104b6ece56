"""Iterations of the solver ``newton``: blocks of features, solved for over all labelled entities that are
kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.feature_cache import FeatureCache
from streamfl.fdskl.learning.iteration import Iteration
from streamfl.fdskl.learning.labelled import LabelledEntities
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.learning.newton import of_few, solve_block
from streamfl.fdskl.learning.schedule import labels_wanted
from streamfl.fdskl.messages import FeatureRange
from streamfl.fdskl.sums.rounds import Question

__all__ = ["NewtonIteration"]


class NewtonIteration(Iteration):
    """Solves for some blocks of features, one after the other; :func:`~.newton.solve_block` has the equation.

    While there is room the blocks are new. Then the kept blocks take turns, the oldest first. With
    ``sweeps``, a new block replaces one that has had as many turns, at most one in an iteration. f of each
    entity is kept between iterations, and so are its features while the cache has room. So only new features
    are asked for. For a new entity all features are asked for, and for one that is not in the cache those of
    the iteration's blocks. Features that an entity was predicted by are in the cache."""

    def __init__(
        self,
        settings: FdsklSettings,
        model: KernelModel,
        labelled: LabelledEntities,
        cache: FeatureCache,
        dropped: Callable[[int], None],
    ) -> None:
        super().__init__(settings, model, labelled, list(labelled), dropped)
        self._cache = cache
        self._outputs, self._known_before = labelled.outputs_and_known(self._entities)
        self._known = self._known_before.copy()
        self._blocks, self._replaces = self._plan()
        # Without any feature f is 0, and need not be asked for.
        if not model.kept:
            self._outputs[:] = 0.0
        self._unknown = np.isnan(self._outputs)
        self._needed = [*([model.oldest] if self._replaces else []), *self._blocks]
        self._news = [block for block in self._blocks if block.first >= model.newest.first]
        kept = [block for block in self._needed if block.first < model.newest.first]
        self._cached_rows = cache.rows_of(self._entities)
        self._cached = ~self._unknown & cache.has(self._cached_rows, kept)
        # One array a block: each is solved for on its own.
        self._features = [np.zeros((len(self._entities), model.block), np.float32) for _ in self._blocks]
        self._old = np.zeros((len(self._entities), model.block if self._replaces else 0), np.float32)

    def _plan(self) -> tuple[list[FeatureRange], bool]:
        """The blocks of this iteration, in order, and whether the first replaces the oldest."""
        learning, model = self._learning, self._model
        size, blocks = model.block, model.limit // model.block
        if room := (model.limit - model.kept) // size:
            count = min(room, learning.visits)
            return [FeatureRange(model.newest.first + number * size, size) for number in range(count)], False
        if learning.sweeps is not None and model.version % math.ceil(learning.sweeps / learning.visits) == 0:
            others = min(learning.visits, blocks) - 1
            return [
                model.newest,
                *(model.nth(1 + (model.visits + number) % (blocks - 1)) for number in range(others)),
            ], True
        return [
            model.nth((model.visits + number) % blocks) for number in range(min(learning.visits, blocks))
        ], False

    def questions(self) -> Iterator[Question]:
        self._fill_from_cache()
        for chosen, ranges in (
            (self._cached, self._news),
            (~self._cached & ~self._unknown, self._needed),
            (self._unknown, [*self._expansion.ranges, *self._news]),
        ):
            if ranges:
                yield from self._asked(np.flatnonzero(chosen), ranges)
        if not self._rows:
            self._end()

    def _fill_from_cache(self) -> None:
        rows = np.flatnonzero(self._cached)
        if not len(rows):
            return
        there = self._cached_rows[rows]
        kept = [
            (number, block)
            for number, block in enumerate(self._blocks)
            if block.first < self._model.newest.first
        ]
        for (number, _), features in zip(
            kept, self._cache.get(there, [block for _, block in kept]), strict=True
        ):
            if len(rows) == len(self._entities):
                self._features[number] = features
            else:
                self._features[number][rows] = features
        if self._replaces:
            (self._old[rows],) = self._cache.get(there, [self._model.oldest])

    def _take(
        self,
        rows: NDArray[np.intp],
        features: NDArray[np.float64],
        question: Question,
        known: NDArray[np.uint8],
    ) -> None:
        self._known[rows] = known
        small = features.astype(np.float32)
        for number, block in enumerate(self._blocks):
            if (columns := columns_of(question.ranges, block)) is not None:
                self._features[number][rows] = small[:, columns]
        if self._replaces and (columns := columns_of(question.ranges, self._model.oldest)) is not None:
            self._old[rows] = small[:, columns]
        if self._unknown[rows[0]]:
            self._known_before[rows] = known
            self._outputs[rows] = self._expansion.evaluate(features[:, : len(self._expansion.alphas)])
        self._cache.put(question.entities, question.ranges, small)

    def _end(self) -> None:
        learning, model = self._learning, self._model
        # Once a party has forgotten an entity's columns, its new features do not fit the earlier ones.
        whole = self._known >= self._known_before
        if not whole.all():
            self._leave_out(~whole)
        outputs, labels = self._outputs[whole], self._labels[whole]
        regularisation = of_few(learning.regularisation, len(labels))
        if self._replaces:
            outputs = outputs - self._old[whole] @ model.alphas(model.oldest)
            model.drop_oldest()
        for block, all_features in zip(self._blocks, self._features, strict=True):
            features = all_features if len(labels) == len(whole) else all_features[whole]
            alphas = model.alphas(block)
            step = solve_block(features, outputs, labels, alphas, model.limit, regularisation, self._loss)
            outputs = outputs + features @ step.astype(np.float32)
            model.put(block, alphas + step)
        model.end_visits(len(self._blocks))
        self._labelled.use(
            labels_wanted(self._labelled.learnt, learning.first_block, learning.block_instances)
        )
        kept = [entity for entity, fits in zip(self._entities, whole.tolist(), strict=True) if fits]
        self._labelled.put_outputs(kept, outputs, self._known[whole])
        self._labelled.forget_outputs_but(kept)
        self._cache.keep_only(self._labelled)
        for entity in self._revised:
            self._labelled.forget_output(entity)
            self._cache.forget(entity)
        self.ended = True

    def _leave_out(self, forgotten: NDArray[np.bool_]) -> None:
        for place in np.flatnonzero(forgotten).tolist():
            if self._entities[place] in self._labelled:
                self._labelled.forget(self._entities[place])
        self._dropped(int(forgotten.sum()))


def columns_of(ranges: Sequence[FeatureRange], block: FeatureRange) -> slice | None:
    """The columns of a block in answers about these ranges of features; None: it is not among them."""
    at = 0
    for one in ranges:
        if one.first <= block.first < one.first + one.count:
            begin = at + block.first - one.first
            return slice(begin, begin + block.count)
        at += one.count
    return None
