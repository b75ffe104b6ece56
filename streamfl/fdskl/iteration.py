"""One iteration of learning: what has to be asked, and what is made of the answers.

``newton``: a block of features is solved for over all labelled entities that are kept (block coordinate descent). ``sgd``: FDSKL,
Algorithm 1, for B instances and R features at a time. Nothing of an iteration is remembered before it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.contributions import features_of, opened_distances
from streamfl.fdskl.doubly_stochastic import StepRule, decay, step_alphas, step_size
from streamfl.fdskl.labelled import LabelledEntities
from streamfl.fdskl.losses import MarginLoss
from streamfl.fdskl.messages import DISTANCES, FeatureRange
from streamfl.fdskl.model import KernelModel
from streamfl.fdskl.newton import solve_block
from streamfl.fdskl.rounds import Question, phases_of

__all__ = ["FEWEST_DISTANCES", "BandwidthSearch", "Iteration", "Learning", "NewtonIteration", "SgdIteration"]

# Distances between entities that the bandwidth is the median of.
FEWEST_DISTANCES, MOST_DISTANCES = 32, 256
# Entities of a round at most: its memory, at every party, is bounded by this too.
MOST_ENTITIES = 4096
LARGEST_ALPHA = 1e100


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How is learnt.

    solver: newton or sgd.
    features_limit, block_features, block_instances, window, sweeps: as the settings say.
    multiplier: of the median distance.
    bits: of a phase.
    """

    loss: MarginLoss
    solver: str
    bandwidth: float | None
    multiplier: float
    laplacian: bool
    features_limit: int
    block_features: int
    block_instances: int
    window: int
    sweeps: int
    regularisation: float
    step: float
    step_rule: StepRule
    horizon: int | None
    bits: int


class BandwidthSearch:
    """The median distance between labelled entities, two by two, from one masked sum (spec, second review 11)."""

    def __init__(self, learning: Learning, model: KernelModel, labelled: LabelledEntities) -> None:
        self._learning = learning
        self._model = model
        latest = labelled.latest(2 * MOST_DISTANCES)
        self._entities = latest[: len(latest) // 2 * 2]
        self.ended = False

    def questions(self) -> Iterator[Question]:
        yield Question(self, DISTANCES, [], self._entities)

    def revised(self, entity: str) -> None:
        """A distance more or less exact makes no difference."""

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        distances = opened_distances(total, self._learning.laplacian)
        median = float(np.median(distances[distances > 0])) if (distances > 0).any() else 1.0
        self._model.set_bandwidth(median * self._learning.multiplier)
        self.ended = True


class Iteration:
    """What both solvers share: entities, their labels, and features as they come in.

    dropped: told how many entities are left out because a party forgot their columns.
    """

    def __init__(
        self, learning: Learning, model: KernelModel, labelled: LabelledEntities, entities: list[str], dropped: Callable[[int], None]
    ) -> None:
        self._learning = learning
        self._model = model
        self._labelled = labelled
        self._dropped = dropped
        self._entities = entities
        self._places = {entity: place for place, entity in enumerate(entities)}
        self._labels = labelled.labels_of(entities)
        self._expansion = model.snapshot()
        self._left = 0
        self._revised: set[str] = set()
        self.ended = False

    def revised(self, entity: str) -> None:
        """A party has new columns of the entity: what is computed of it here is not kept."""
        self._revised.add(entity)

    def _asked(self, entities: list[str], ranges: list[FeatureRange]) -> Iterator[Question]:
        bandwidth = self._model.bandwidth
        assert bandwidth is not None
        for question in phases_of(self, entities, ranges, bandwidth, self._learning.bits // 8, MOST_ENTITIES):
            self._left += 1
            yield question


class SgdIteration(Iteration):
    """The next B labelled entities, and R new features.

    f(x) = sum over kept i of alpha_i phi_i(x); alpha_new = -gamma / (B R) sum_b L'(f(x_b), y_b) phi_new(x_b); all earlier alphas
    times (1 - gamma lambda)   (FDSKL, eq. 8 and 9)
    """

    def __init__(
        self, learning: Learning, model: KernelModel, labelled: LabelledEntities, dropped: Callable[[int], None]
    ) -> None:
        super().__init__(learning, model, labelled, labelled.not_learnt(learning.block_instances), dropped)
        kept = model.kept
        self._features = np.zeros((len(self._entities), kept + learning.block_features))

    def questions(self) -> Iterator[Question]:
        return self._asked(self._entities, [*self._expansion.ranges, self._model.newest])

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        rows = [self._places[entity] for entity in question.entities]
        self._features[rows] = features_of(total, len(rows))
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        learning, model, kept = self._learning, self._model, self._model.kept
        outputs = self._expansion.evaluate(self._features[:, :kept])
        gamma = step_size(learning.step_rule, model.version, learning.step, learning.regularisation, learning.horizon)
        alphas = step_alphas(self._features[:, kept:], outputs, self._labels, gamma, learning.loss)
        model.decay_to(decay(model.scale, gamma, learning.regularisation))
        if model.is_full:
            model.drop_oldest()
        model.put(model.newest, np.clip(alphas, -LARGEST_ALPHA, LARGEST_ALPHA))
        model.end_iteration()
        self._labelled.use(learning.block_instances)
        self.ended = True


class NewtonIteration(Iteration):
    """A block of features, solved for over all labelled entities; :func:`~streamfl.fdskl.newton.solve_block` has the equation.

    While there is room the block is new. Then the kept blocks have their turn, the oldest first. A block that has had ``sweeps``
    turns gives way to a new one. f of each entity is kept from iteration to iteration, so only the block's phases are asked for; of
    an entity that is new, those of all features are.
    """

    def __init__(
        self, learning: Learning, model: KernelModel, labelled: LabelledEntities, dropped: Callable[[int], None]
    ) -> None:
        super().__init__(learning, model, labelled, list(labelled), dropped)
        count = len(self._entities)
        self._outputs = labelled.outputs_of(self._entities)
        self._known_before = labelled.known_of(self._entities)
        self._known = np.zeros(count, np.uint8)
        self._features = np.zeros((count, learning.block_features), np.float32)
        self._old = np.zeros((count, learning.block_features), np.float32)
        if not model.kept:
            self._outputs[:] = 0.0
        self._complete = np.isnan(self._outputs)
        blocks = model.limit // model.block
        turn = model.visits - blocks
        self._replaces = model.is_full and turn // blocks % learning.sweeps == learning.sweeps - 1
        self._is_new = not model.is_full or self._replaces
        # While blocks are replaced the oldest is always the first.
        self._block = model.newest if self._is_new else model.nth(turn % blocks)

    def questions(self) -> Iterator[Question]:
        model = self._model
        fresh = [entity for entity, new in zip(self._entities, self._complete.tolist(), strict=True) if new]
        others = [entity for entity, new in zip(self._entities, self._complete.tolist(), strict=True) if not new]
        block = [model.oldest, self._block] if self._replaces else [self._block]
        whole = [*self._expansion.ranges, *([self._block] if self._is_new else [])]
        yield from self._asked(others, block)
        yield from self._asked(fresh, whole)

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        size = self._learning.block_features
        rows = [self._places[entity] for entity in question.entities]
        features = features_of(total, len(rows))
        self._known[rows] = known
        if self._complete[rows[0]]:
            kept = len(self._expansion.alphas)
            self._outputs[rows] = self._expansion.evaluate(features[:, :kept])
            begin = kept if self._is_new else self._block.first - self._expansion.first
            self._features[rows] = features[:, begin : begin + size]
            if self._replaces:
                self._old[rows] = features[:, :size]
        else:
            self._features[rows] = features[:, -size:]
            if self._replaces:
                self._old[rows] = features[:, :size]
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        learning, model = self._learning, self._model
        # Columns that a party has forgotten meanwhile make another entity of it.
        whole = self._complete | (self._known >= self._known_before)
        if not whole.all():
            self._leave_out(~whole)
        outputs, alphas = self._outputs, model.alphas(self._block)
        if self._replaces:
            outputs = outputs - self._old @ model.alphas(model.oldest)
            model.drop_oldest()
        step = solve_block(
            self._features[whole],
            outputs[whole],
            self._labels[whole],
            alphas,
            model.limit,
            learning.regularisation,
            learning.loss,
        )
        outputs = outputs + self._features @ step.astype(np.float32)
        model.put(self._block, np.clip(alphas + step, -LARGEST_ALPHA, LARGEST_ALPHA))
        model.end_visit()
        self._labelled.use(learning.block_instances)
        kept = [entity for entity, fits in zip(self._entities, whole.tolist(), strict=True) if fits]
        self._labelled.put_outputs(kept, outputs[whole], self._known[whole])
        self._labelled.forget_outputs_but(kept)
        for entity in self._revised:
            self._labelled.forget_output(entity)
        self.ended = True

    def _leave_out(self, forgotten: NDArray[np.bool_]) -> None:
        for entity in np.array(self._entities, object)[forgotten].tolist():
            if entity in self._labelled:
                self._labelled.forget(entity)
        self._dropped(int(forgotten.sum()))
