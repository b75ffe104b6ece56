"""One iteration of learning: what it asks the parties, and what it learns from the answers.

An iteration is not remembered before it ends. ``sgd`` is FDSKL, Algorithm 1, for B instances and R features
at a time; ``newton`` is in :mod:`streamfl.fdskl.learning.newton_iteration`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.config import FEWEST_ENTITIES, FdsklSettings
from streamfl.fdskl.learning.doubly_stochastic import decay, step_alphas, step_size
from streamfl.fdskl.learning.labelled import LabelledEntities
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.messages import (
    DISTANCES,
    LARGEST_BANDWIDTH,
    MOST_DISTANCES,
    MOST_ENTITIES,
    OUTPUTS,
    SMALLEST_BANDWIDTH,
    FeatureRange,
)
from streamfl.fdskl.sums.contributions import features_of, opened_distances, opened_outputs
from streamfl.fdskl.sums.rounds import Question, fit_together, outputs_of, phases_of

__all__ = ["FEWEST_DISTANCES", "BandwidthSearch", "Iteration", "SgdIteration", "SharedSgdIteration"]

# Fewest distances between entities for the bandwidth, which is their median.
FEWEST_DISTANCES = FEWEST_ENTITIES // 2


class BandwidthSearch:
    """Finds the bandwidth: the median distance of pairs of labelled entities, from one masked sum."""

    def __init__(self, settings: FdsklSettings, model: KernelModel, labelled: LabelledEntities) -> None:
        self._learning = settings.learning
        self._model = model
        latest = labelled.latest(2 * MOST_DISTANCES)
        self._entities = latest[: len(latest) // 2 * 2]
        self.ended = False

    def questions(self) -> Iterator[Question]:
        yield Question(self, DISTANCES, [], self._entities)

    def revised(self, entity: str) -> None:
        """Nothing to do: one inexact distance makes no difference."""

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        distances = opened_distances(total, self._learning.kernel == "laplacian")
        median = float(np.median(distances[distances > 0])) if (distances > 0).any() else 1.0
        # No party answers a round with a bandwidth beyond these.
        bandwidth = min(
            max(median * self._learning.bandwidth_multiplier, SMALLEST_BANDWIDTH), LARGEST_BANDWIDTH
        )
        self._model.set_bandwidth(bandwidth)
        self.ended = True


class Iteration(ABC):
    """What both solvers share: entities, their labels, and features as they come in.

    dropped: called with the number of entities that are left out because a party forgot their columns.
    """

    def __init__(
        self,
        settings: FdsklSettings,
        model: KernelModel,
        labelled: LabelledEntities,
        entities: list[str],
        dropped: Callable[[int], None],
    ) -> None:
        self._learning = settings.learning
        self._loss = settings.loss
        self._width = settings.aggregation.circle_bits // 8
        self._model = model
        self._labelled = labelled
        self._dropped = dropped
        self._entities = entities
        self._labels = labelled.labels_of(entities)
        self._expansion = model.snapshot()
        # By unanswered question, the rows of its entities.
        self._rows: dict[Question, NDArray[np.intp]] = {}
        self._revised: set[str] = set()
        self.ended = False

    def __contains__(self, entity: str) -> bool:
        return entity in self._entities

    def revised(self, entity: str) -> None:
        """A party has new columns of the entity: this iteration's results for it are not kept."""
        self._revised.add(entity)

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        """Take the answer to a question. The last answer ends the iteration."""
        self._take(self._rows[question], features_of(total, len(question.entities)), question, known)
        self._answer_came(question)

    def _answer_came(self, question: Question) -> None:
        del self._rows[question]
        if not self._rows:
            self._end()

    @abstractmethod
    def _take(
        self,
        rows: NDArray[np.intp],
        features: NDArray[np.float64],
        question: Question,
        known: NDArray[np.uint8],
    ) -> None:
        """Keep the features of these rows."""

    @abstractmethod
    def _end(self) -> None:
        """Learn from the answers, which are all there."""

    def _asked(self, chosen: NDArray[np.intp], ranges: list[FeatureRange]) -> Iterator[Question]:
        """Questions for these features of the entities in these rows."""
        bandwidth = self._model.bandwidth
        assert bandwidth is not None
        entities = [self._entities[place] for place in chosen.tolist()]
        yield from self._noted(
            chosen, phases_of(self, entities, ranges, bandwidth, self._width, MOST_ENTITIES)
        )

    def _noted(self, chosen: NDArray[np.intp], questions: Iterator[Question]) -> Iterator[Question]:
        """The same questions, whose rows are noted. chosen: the rows of all their entities, in order."""
        begin = 0
        for question in questions:
            self._rows[question] = chosen[begin : begin + len(question.entities)]
            begin += len(question.entities)
            yield question


class SgdIteration(Iteration):
    """Learns from the next B labelled entities, with R new features.

    f(x) = sum over kept i of alpha_i phi_i(x); alpha_new = -gamma / (B R) sum_b L'(f(x_b), y_b) phi_new(x_b);
    all earlier alphas times (1 - gamma lambda)   (FDSKL, eq. 8 and 9)
    """

    def __init__(
        self,
        settings: FdsklSettings,
        model: KernelModel,
        labelled: LabelledEntities,
        dropped: Callable[[int], None],
    ) -> None:
        learning = settings.learning
        super().__init__(settings, model, labelled, labelled.not_learnt(learning.block_instances), dropped)
        kept = model.kept
        self._features = np.zeros((len(self._entities), kept + learning.block_features))

    def questions(self) -> Iterator[Question]:
        yield from self._asked(np.arange(len(self._entities)), [*self._expansion.ranges, self._model.newest])
        if not self._rows:
            # All entities were forgotten meanwhile.
            self._end()

    def _take(
        self,
        rows: NDArray[np.intp],
        features: NDArray[np.float64],
        question: Question,
        known: NDArray[np.uint8],
    ) -> None:
        self._features[rows] = features

    def _outputs_before(self) -> NDArray[np.float64]:
        """f of the entities before this iteration, (n,)."""
        return self._expansion.evaluate(self._features[:, : self._model.kept])

    def _end(self) -> None:
        learning, model, kept = self._learning, self._model, self._model.kept
        outputs = self._outputs_before()
        gamma = step_size(
            learning.step_rule, model.version, learning.step, learning.regularisation, learning.horizon
        )
        alphas = step_alphas(self._features[:, kept:], outputs, self._labels, gamma, self._loss)
        self.decay = decay(1.0, gamma, learning.regularisation)
        model.decay_to(model.scale * self.decay)
        # More than one block if the limit was lowered.
        for _ in range(1 + (model.kept - model.limit) // model.block):
            model.drop_oldest()
        model.put(model.newest, alphas)
        model.end_iteration()
        self._labelled.use(learning.block_instances)
        self.ended = True


class SharedSgdIteration(SgdIteration):
    """The same with several active parties: asks for f, as a sum over the parties' coefficients, and not for
    its features."""

    def questions(self) -> Iterator[Question]:
        expansion = self._expansion
        self._outputs = np.zeros(len(self._entities))
        everyone = np.arange(len(self._entities))
        yield from self._asked(everyone, [self._model.newest])
        if expansion.ranges:
            # Few enough entities in each that the phases which the others then ask for fit into one round.
            most = fit_together(len(expansion.alphas), self._width)
            yield from self._noted(everyone, outputs_of(self, self._entities, expansion, most))
        if not self._rows:
            self._end()

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        """Take f of some entities, or their new features."""
        if question.purpose != OUTPUTS:
            super().answered(question, total, known)
            return
        self._outputs[self._rows[question]] = opened_outputs(total)
        self._answer_came(question)

    def _take(
        self,
        rows: NDArray[np.intp],
        features: NDArray[np.float64],
        question: Question,
        known: NDArray[np.uint8],
    ) -> None:
        self._features[rows, self._model.kept :] = features

    def _outputs_before(self) -> NDArray[np.float64]:
        return self._outputs
