"""What only an active party does in a partition: it predicts, learns, and asks all parties for what it needs for that.

FDSKL, Algorithm 1, worker l. Its coefficients never leave it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.active_settings import ActiveSettings
from streamfl.fdskl.catch_up import CatchUp
from streamfl.fdskl.contributions import features_of, opened_outputs
from streamfl.fdskl.due import Due
from streamfl.fdskl.feature_cache import FeatureCache
from streamfl.fdskl.figures import ActiveFigures
from streamfl.fdskl.forecasts import Forecasts
from streamfl.fdskl.iteration import BandwidthSearch, SgdIteration, SharedSgdIteration
from streamfl.fdskl.labelled import LabelledEntities
from streamfl.fdskl.messages import OUTPUTS, ROUND, Prediction, Revision, Round, Turn
from streamfl.fdskl.model import Expansion, KernelModel
from streamfl.fdskl.newton_iteration import NewtonIteration
from streamfl.fdskl.pending_sums import Key
from streamfl.fdskl.rounds import Question, Rounds, fit_together, outputs_of, phases_of
from streamfl.fdskl.shared_model import SharedModel
from streamfl.fdskl.worker_partition import WorkerPartition
from streamfl.fdskl.worker_settings import WorkerSettings
from streamfl.role import PeerError, Send
from streamfl.wire import VERSION

__all__ = ["ActivePartition"]

# Iterations, or rounds, that are begun without looking up: more wait for a tick.
MOST_TURNS = 64


class _PredictionsWanted:
    """Entities that were asked for together, to be predicted by one version of the model."""

    def __init__(self, active: ActivePartition, expansion: Expansion) -> None:
        self._active = active
        self._expansion = expansion

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        if question.purpose == OUTPUTS:
            outputs = opened_outputs(total)
        else:
            outputs = self._expansion.evaluate(features_of(total, len(question.entities)))
        self._active.predict(question.entities, outputs, known, self._expansion.version)


class ActivePartition:
    """An active party's own part of a partition: forecasts, labelled entities, the model, and what is being asked.

    settings, active: of the party.
    partition: what it does as any party.
    figures: of all partitions.
    """

    def __init__(
        self, settings: WorkerSettings, active: ActiveSettings, partition: WorkerPartition, figures: ActiveFigures
    ) -> None:
        learning = active.learning
        self._settings = settings
        self._active = active
        self._partition = partition
        self._figures = figures
        self.forecasts = Forecasts(partition.parts, settings.expiry, settings.limit, figures.forgotten)
        self.forecasts.on_forget = self._forget
        self.labelled = LabelledEntities(partition.parts, max(learning.window, learning.block_instances))
        self.model = KernelModel(partition.parts, learning.block_features, learning.features_limit)
        self.due = Due(settings, learning, self.labelled, self.model, partition.standardisation, partition.notices)
        self.catch_up = CatchUp(self.forecasts, self.due, self.model, settings.limit, active)
        self.cache = FeatureCache(self.model.block, self.model.limit, learning.cache_bytes)
        self.rounds = Rounds(settings.rounds_in_flight)
        # Where others are active too.
        several = len(settings.actives) > 1
        self.shared = SharedModel(settings, active, partition, self.model, self.rounds) if several else None
        self._predicts = settings.own == settings.root
        self._iteration: BandwidthSearch | NewtonIteration | SgdIteration | None = None
        # Entities that were asked for, and of which a party has new columns since.
        self._again: set[str] = set()
        self._sends: list[Send] = []
        self._last_now = 0.0
        self._is_going_on = self._is_behind = False
        partition.sums.collector = self

    # ---- what comes in

    def take_sample(self, entity: str, late: bool, offset: int, now: float) -> None:
        """The party's own columns of an entity came, in the record at ``offset``: it is to be predicted. late: it was learnt from
        with others."""
        if late and entity in self.labelled:
            # Its label was of what it was before.
            self.labelled.forget(entity)
            self.cache.forget(entity)
            if isinstance(self._iteration, SgdIteration) and entity in self._iteration:
                # It begins anew without the entity, as it would after a restart.
                self.rounds.drop(self._iteration)
                self._iteration = None
            elif self._iteration is not None:
                self._iteration.revised(entity)
        if self._predicts:
            self._want(entity, now, offset)
        elif (found := self.forecasts.get(entity)) is not None and found.label is not None:
            self.labelled.add(entity, found.label)
            self.forecasts.forget(entity)

    def take_label(self, entity: str, label: float, now: float) -> None:
        """A label came."""
        self._figures.counts["labels"] += 1
        self.catch_up.rest -= 1
        label = self._active.label_of(label)
        found = self.forecasts.get(entity)
        if found is None and (entity in self.labelled or (not self._predicts and self._partition.columns.knows(entity))):
            self.labelled.add(entity, label)
        elif found is None or found.awaited or not found.revision:
            self.forecasts.keep_label(entity, label, now)
            return
        else:
            self._learn_from(entity, label)

    def take_revision(self, message: Revision, at: float, now: float) -> bool:
        """A party has new columns of an entity. Returns False for a message that came before."""
        party = self._partition.sums.party_of(message.sender)
        if not self._partition.peers.note_revision(party, message.epoch, message.sequence, at):
            return False
        self.revise(message.entity, now)
        return True

    def take_turn(self, message: Turn) -> bool:
        """The log of several active parties says this next. Returns False for what came before."""
        assert self.shared is not None
        return self.shared.take_turn(message)

    def revise(self, entity: str, now: float) -> None:
        """Some party has new columns of an entity: what was computed of it is of old ones."""
        self.labelled.forget_output(entity)
        self.cache.forget(entity)
        if self._iteration is not None:
            self._iteration.revised(entity)
        if (found := self.forecasts.get(entity)) and self._predicts and self._active.revise and found.label is None:
            self._want(entity, now)

    def pass_time(self, now: float) -> None:
        """A tick."""
        since = self.forecasts.gathered_since
        if since is not None and since + self._active.linger <= now:
            self._gather(full_only=False)
        self.forecasts.expire(now)
        self.due.pass_time(now)
        self.catch_up.pass_time(now)
        self._again = {entity for entity in self._again if self.forecasts.get(entity) is not None}

    def set_back(self, now: float) -> None:
        """The clock was ahead."""
        self.forecasts.set_back(now)
        self.due.set_back(now)
        self.catch_up.set_back(now)

    @property
    def wake_at(self) -> float | None:
        since = self.forecasts.gathered_since
        behind = self._last_now if self._is_behind else None
        gathered = None if since is None else since + self._active.linger
        times = [self.forecasts.wake_at, gathered, behind, self.due.freezes_at, self.catch_up.wake_at]
        return min((at for at in times if at is not None), default=None)

    @property
    def is_waiting(self) -> bool:
        """Whether others owe it anything."""
        return self.rounds.busy or (self.shared is not None and self.shared.turns.is_asked_for)

    @property
    def is_due(self) -> bool:
        """Whether there are enough labels for an iteration."""
        return self.due.is_due

    # ---- what rounds come to

    def complete(self, key: Key, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        question = self.rounds.take(key)
        if question is not None:
            if question.wanting is self._iteration:
                self.catch_up.advanced(self._last_now)
            question.wanting.answered(question, total, known)

    def abandoned(self, key: Key) -> None:
        self.rounds.ask_again(key)

    def predict(self, entities: list[str] | Any, outputs: NDArray[np.float64], known: NDArray[np.uint8], version: int) -> None:
        """Publish predictions of these entities, and learn from those whose label has come."""
        for entity, output, parties in zip(entities, outputs.tolist(), known.tolist(), strict=True):
            found = self.forecasts.predicted(entity, output, version, parties, self._last_now)
            if found is None:
                continue
            self.catch_up.predicted(entity, self._last_now)
            self._figures.counts["predictions"] += 1
            prediction = Prediction(entity, self._active.prediction_of(output), output, version, parties, found.revision - 1)
            content, headers = self._active.encode(prediction), self._partition.followed.of(entity)
            self._sends.append(Send("predictions", entity.encode(), content, self._partition.partition, headers))
            if entity in self._again:
                self._again.discard(entity)
                if found.label is None:
                    self.forecasts.want(entity, self._last_now)
                    continue
            if found.label is not None:
                self._learn_from(entity, found.label)

    def begin(self, now: float) -> None:
        """Messages of this time follow."""
        self._last_now = now
        self.catch_up.begin(now)

    def go_on(self) -> None:
        """Begin an iteration if one is due, and ask what may be asked, until nothing more comes of it."""
        if self._is_going_on:
            # Where there is one party, an answer comes while the question is asked.
            return
        self._is_going_on = True
        try:
            self._is_behind = False
            self.due.look(self._last_now)
            for _ in range(MOST_TURNS):
                if not self._let_go() | self._begin_iteration() | self._ask():
                    return
            # Whoever has that much to learn is not to fall silent over it: the rest is for the next tick.
            self._is_behind = True
        finally:
            self._is_going_on = False

    def take_sends(self) -> list[Send]:
        """What has to go out."""
        sends, self._sends = self._sends, []
        return sends

    # ----

    def _forget(self, entity: str) -> None:
        """The entity's forecast is gone."""
        self.catch_up.predicted(entity, self._last_now)
        self._partition.followed.forget(entity)

    def _let_go(self) -> bool:
        """Ask for what need not wait any more of a backlog. Returns whether there was anything."""
        if not self.catch_up.let_go(self._last_now):
            return False
        # They have waited longer than any others do, and no tick comes while much lies unread.
        self._gather(full_only=False)
        return True

    def _learn_from(self, entity: str, label: float) -> None:
        """An entity that was predicted has its label: score the prediction, and learn from the entity."""
        found = self.forecasts.get(entity)
        assert found is not None
        self.labelled.score(self._figures.score(found.output, label), label)
        current = found.version == self.model.version
        self.labelled.add(entity, label, found.output if current else float("nan"), found.parties)
        self.forecasts.forget(entity)

    def _next_iteration(self) -> BandwidthSearch | NewtonIteration | SgdIteration:
        learning = self._active.learning
        if self.model.bandwidth is None:
            if learning.bandwidth is None:
                return BandwidthSearch(learning, self.model, self.labelled)
            self.model.set_bandwidth(learning.bandwidth)
        if self.shared is not None:
            return SharedSgdIteration(learning, self.model, self.labelled, self._count_dropped)
        if learning.solver == "sgd":
            return SgdIteration(learning, self.model, self.labelled, self._count_dropped)
        return NewtonIteration(learning, self.model, self.labelled, self.cache, self._count_dropped)

    def _count_dropped(self, count: int) -> None:
        self._figures.counts["rows_dropped"] += count

    def _begin_iteration(self) -> bool:
        """End the iteration that has come to its end, and begin the next if it is due. Returns whether one began."""
        if self._iteration is not None and self._iteration.ended:
            if not isinstance(self._iteration, BandwidthSearch):
                self._figures.counts["iterations"] += 1
            if isinstance(self._iteration, SharedSgdIteration):
                assert self.shared is not None
                self._sends.append(self.shared.end(self._iteration))
            self._iteration = None
        if self._iteration is not None or not self._partition.standardisation.frozen or not self._may_begin():
            return False
        # Where others are active too, features give way at the end of a turn only, which tells all of it.
        if self.shared is None and self.model.keep_to_limit():
            self.labelled.forget_outputs_but([])
        self._iteration = self._next_iteration()
        self.catch_up.advanced(self._last_now)
        for question in self._iteration.questions():
            self.rounds.want(question)
        return True

    def _may_begin(self) -> bool:
        """Whether an iteration may begin. Where others are active too, ask for a turn if it is due."""
        if self.shared is None:
            return self.is_due
        if self.is_due and not self.shared.turns.is_asked_for:
            self._sends.append(self.shared.ask())
        # Labelled entities may have been forgotten meanwhile, and a distance is of two.
        return self.shared.turns.has_come and (self.due.knows_bandwidth or len(self.labelled) >= 2)

    def _want(self, entity: str, now: float, offset: int | None = None) -> None:
        """The entity is to be predicted, once more if it was asked for with older columns. offset: of its sample, if that came."""
        if self.forecasts.is_asked_for(entity):
            self._again.add(entity)
            return
        if offset is not None and self.catch_up.holds_back:
            self.catch_up.hold_back(entity, offset, now)
        else:
            self.forecasts.want(entity, now, offset or 0)
            self._gather(full_only=True)

    def _gather(self, full_only: bool) -> None:
        """Ask for entities that are to be predicted, as many as fit into rounds. full_only: the last round waits for others."""
        expansion, width = self.model.snapshot(), self._active.learning.bits // 8
        features = len(expansion.alphas)
        most = fit_together(features, width)
        while self.forecasts.gathered >= (most if full_only else 1):
            entities = self.forecasts.gather(most)
            if not features:
                # f is 0 before anything is learnt, whatever the columns.
                self.predict(entities, np.zeros(len(entities)), self._known(entities), expansion.version)
                continue
            for question in self._outputs_asked(entities, most):
                self.rounds.want(question)

    def _outputs_asked(self, entities: Sequence[str], most: int) -> Iterator[Question]:
        """Questions for f of these entities by the present version of the model."""
        expansion, width = self.model.snapshot(), self._active.learning.bits // 8
        wanted = _PredictionsWanted(self, expansion)
        if self.shared is None:
            yield from phases_of(wanted, entities, expansion.ranges, expansion.bandwidth, width, most)
            return
        for question in outputs_of(wanted, entities, expansion, most):
            yield replace(question, renewed=partial(self._asked_anew, question.entities))

    def _asked_anew(self, entities: Sequence[str]) -> Question:
        """The version that was asked for may be over by now."""
        return next(self._outputs_asked(entities, len(entities)))

    def _known(self, entities: list[str]) -> NDArray[np.uint8]:
        return np.array([self._partition.columns.knows(entity) for entity in entities], np.uint8)

    def _ask(self) -> bool:
        """Announce rounds, as many as may be on their way. Returns whether there were any."""
        partition, settings = self._partition, self._settings
        if not partition.peers.complete:
            return False
        numbers = partition.peers.numbers
        asked = False
        for key, question in self.rounds.ask(numbers[settings.own]):
            asked = True
            message = Round(
                VERSION,
                settings.fingerprint,
                settings.name,
                numbers,
                key[1],
                question.purpose,
                question.bandwidth,
                list(question.ranges),
                list(question.entities),
            )
            content = ROUND.encode(message)
            self._figures.counts["rounds_announced"] += 1
            for name in settings.parties:
                if name != settings.name:
                    self._sends.append(Send(f"rounds/{name}", None, content, partition.partition))
            partition.sums.take_round(message, content, self._last_now)
        return asked

    # ---- state

    def restore(self, key: bytes, value: bytes) -> None:
        """Take back one part. Raises PeerError or ValueError for what cannot have been remembered."""
        kind, _, name = key.partition(b"/")
        if key == b"model":
            self.model.restore(value)
        elif key == b"turns" and self.shared is not None:
            self.shared.turns.restore(value)
        elif key == b"labels":
            self.labelled.restore_counts(value)
        elif kind == b"alphas":
            self.model.restore_alphas(name, value)
        elif kind == b"labelled":
            self.labelled.restore(name, value)
        elif kind == b"outputs":
            self.labelled.restore_outputs(name, value)
        elif kind == b"forecast":
            self.forecasts.restore(name, value)
        else:
            raise PeerError("malformed", f"state {key!r} is not of this party")
