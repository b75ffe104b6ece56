"""How an active party predicts entities: it asks all parties for their parts, and publishes the predictions.

Before anything is learnt f is 0, whatever the columns. Then the parties are asked only which entities they
know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Send
from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.feature_cache import FeatureCache
from streamfl.fdskl.learning.model import Expansion, KernelModel
from streamfl.fdskl.messages import KNOWN, OUTPUTS, Prediction
from streamfl.fdskl.party.figures import ActiveFigures
from streamfl.fdskl.party.partition import PartyPartition
from streamfl.fdskl.predicting.catch_up import CatchUp
from streamfl.fdskl.predicting.forecasts import Forecasts
from streamfl.fdskl.sums.contributions import features_of, opened_outputs
from streamfl.fdskl.sums.rounds import Question, Rounds, cut, fit_together, outputs_of, phases_of

__all__ = ["EntityPredictor"]


class _Wanted:
    """Entities that were asked for together, to be predicted by one version of the model. since: when."""

    def __init__(self, predicting: EntityPredictor, expansion: Expansion, since: float) -> None:
        self._predicting = predicting
        self._expansion = expansion
        self.since = since

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        if question.purpose == OUTPUTS:
            outputs = opened_outputs(total)
        elif question.purpose == KNOWN:
            self._predicting.told_of(self)
            outputs = np.zeros(len(question.entities))
        else:
            features = features_of(total, len(question.entities))
            outputs = self._expansion.evaluate(features)
            self._predicting.keep(question, features)
        self._predicting.predict(question.entities, outputs, known, self._expansion.version)


class EntityPredictor:
    """Predicts the entities of one partition. The forecasts remember which entities wait.

    settings: of the party.
    encode: encodes a prediction for users.
    partition: what every party has of the partition.
    figures: of all partitions.
    model, forecasts, cache, catch_up, rounds: of the partition.
    sends: list to which predictions are added.
    learn_from: called with entities that were predicted and have their label.
    """

    def __init__(
        self,
        settings: FdsklSettings,
        encode: Callable[[Prediction], bytes],
        partition: PartyPartition,
        figures: ActiveFigures,
        model: KernelModel,
        forecasts: Forecasts,
        cache: FeatureCache,
        catch_up: CatchUp,
        rounds: Rounds,
        sends: list[Send],
        learn_from: Callable[[str, float], None],
    ) -> None:
        self._encode = encode
        self._prediction_of = settings.prediction_of
        self._round_seconds = settings.aggregation.round_seconds
        self._width = settings.aggregation.circle_bits // 8
        self._is_shared = len(settings.federation.actives) > 1
        self._partition = partition
        self._figures = figures
        self._model = model
        self._forecasts = forecasts
        self._cache = cache
        self._catch_up = catch_up
        self._rounds = rounds
        self._sends = sends
        self._learn_from = learn_from
        # Entities that were asked for, and have to be asked for again because a party has new columns since.
        self._again: set[str] = set()
        # Entities that were asked for, and whose answer is from outdated columns.
        self._outdated: set[str] = set()
        # Entities for which the parties are asked only who knows them, the longest waiting ones first.
        self._unlearnt: dict[_Wanted, Sequence[str]] = {}
        self._keeps = settings.learning.solver == "newton"
        self._last_now = 0.0
        forecasts.on_forget = self._forget

    def begin(self, now: float) -> None:
        """Set the time of the messages that follow."""
        self._last_now = now

    def want(self, entity: str, now: float, offset: int | None = None) -> None:
        """Have the entity predicted, once more if it was asked for with older columns. offset: of its sample,
        if that came."""
        if self._forecasts.is_asked_for(entity):
            self._again.add(entity)
            return
        if offset is not None and self._catch_up.holds_back:
            self._catch_up.hold_back(entity, offset, now)
        else:
            self._forecasts.want(entity, now, offset or 0)
            self.gather(full_only=True)

    def revised(self, entity: str) -> None:
        """A party has new columns of the entity, so its features are outdated."""
        self._cache.forget(entity)
        if self._forecasts.is_asked_for(entity):
            self._outdated.add(entity)

    def told_of(self, wanted: _Wanted) -> None:
        """The parties have answered who knows these entities."""
        del self._unlearnt[wanted]

    @property
    def wake_at(self) -> float | None:
        """When waiting for who knows the first of the entities ends."""
        return next(iter(self._unlearnt)).since + self._round_seconds if self._unlearnt else None

    def keep(self, question: Question, features: NDArray[np.float64]) -> None:
        """Keep the features of a prediction, which learning uses too: (entities, features of the
        question)."""
        if self._keeps:
            rows = [place for place, one in enumerate(question.entities) if one not in self._outdated]
            entities, small = [question.entities[row] for row in rows], features.astype(np.float32)
            self._cache.put(
                entities, question.ranges, small if len(rows) == len(small) else small[rows], labelled=False
            )
        self._outdated.difference_update(question.entities)

    def gather(self, full_only: bool) -> None:
        """Ask for gathered entities, in rounds. full_only: an incomplete round waits for more entities."""
        most = self._most
        while self._forecasts.gathered >= (most if full_only else 1):
            self._ask(self._forecasts.gather(most))

    def predict(
        self, entities: Sequence[str], outputs: NDArray[np.float64], known: NDArray[np.uint8], version: int
    ) -> None:
        """Publish predictions of these entities, and learn from those whose label has come."""
        for entity, output, parties in zip(entities, outputs.tolist(), known.tolist(), strict=True):
            found = self._forecasts.predicted(entity, output, version, parties, self._last_now)
            if found is None:
                continue
            self._catch_up.predicted(entity, self._last_now)
            self._figures.predictions += 1
            prediction = Prediction(
                entity, self._prediction_of(output), output, version, parties, found.revision - 1
            )
            content, headers = self._encode(prediction), self._partition.pending_headers.of(entity)
            self._sends.append(
                Send("predictions", entity.encode(), content, self._partition.partition, headers)
            )
            if entity in self._again:
                self._again.discard(entity)
                if found.label is None:
                    self._forecasts.want(entity, self._last_now)
                    continue
            if found.label is not None:
                self._learn_from(entity, found.label)

    def set_back(self, now: float) -> None:
        """The clock was ahead: set later times back to ``now``."""
        for wanted in self._unlearnt:
            wanted.since = min(wanted.since, now)

    def pass_time(self, now: float) -> None:
        """A tick. Before anything is learnt, a party that is away is waited for no longer than the time of a
        round, because its columns do not change f. If the parties cannot be asked any more, none is waited
        for, as after a restart.

        Once there is a model all parties are waited for.
        """
        for wanted, entities in list(self._unlearnt.items()):
            is_over = wanted.since + self._round_seconds <= now
            if is_over or not self._partition.peers.complete:
                del self._unlearnt[wanted]
                self._rounds.drop(wanted)
                self._ask(entities, alone=is_over)
        self._again = {entity for entity in self._again if self._forecasts.get(entity) is not None}
        self._outdated = {entity for entity in self._outdated if self._forecasts.get(entity) is not None}

    def _forget(self, entity: str) -> None:
        """The entity's forecast was forgotten."""
        self._catch_up.predicted(entity, self._last_now)
        self._partition.pending_headers.forget(entity)
        self._cache.forget_unlabelled(entity)

    @property
    def _most(self) -> int:
        """Most entities whose f fits into one round."""
        return fit_together(len(self._model.snapshot().alphas), self._width)

    def _ask(self, entities: Sequence[str], alone: bool = False) -> None:
        """Ask for f of these entities by the current version of the model. alone: ask nobody if nothing is
        learnt."""
        if not self._model.snapshot().ranges and (alone or not self._partition.peers.complete):
            # f is 0 whichever parties know them. Only this party's own columns are counted.
            known = np.array([self._partition.columns.knows(entity) for entity in entities], np.uint8)
            self.predict(entities, np.zeros(len(entities)), known, self._model.version)
            return
        for question in self._asked(entities, self._most):
            self._rounds.want(question)

    def _asked(self, entities: Sequence[str], most: int) -> Iterator[Question]:
        """Questions for f of these entities by the current version of the model."""
        expansion = self._model.snapshot()
        if not expansion.ranges:
            for part in cut(entities, 1, 1, most):
                wanted = _Wanted(self, expansion, self._last_now)
                self._unlearnt[wanted] = part
                yield self._who_knows(wanted)
            return
        wanted = _Wanted(self, expansion, self._last_now)
        if not self._is_shared:
            yield from phases_of(wanted, entities, expansion.ranges, expansion.bandwidth, self._width, most)
            return
        for question in outputs_of(wanted, entities, expansion, most):
            yield replace(question, renewed=partial(self._asked_anew, question.entities))

    def _asked_anew(self, entities: Sequence[str]) -> Question:
        """The question by the current version of the model: the one that was asked for may be outdated."""
        return next(self._asked(entities, len(entities)))

    def _who_knows(self, wanted: _Wanted) -> Question:
        """The question how many parties have columns of these entities."""
        return Question(wanted, KNOWN, [], self._unlearnt[wanted], renewed=partial(self._known_anew, wanted))

    def _known_anew(self, wanted: _Wanted) -> Question | None:
        """The same question. If something was learnt meanwhile f is not 0 any more, and is asked for
        instead."""
        if not self._model.snapshot().ranges:
            return self._who_knows(wanted)
        self._ask(self._unlearnt.pop(wanted))
        return None
