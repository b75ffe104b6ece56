"""What only an active party does in a partition: it predicts, learns, and asks all parties for what it needs
for that.

FDSKL, Algorithm 1, worker l. Its coefficients never leave it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Send
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.due import Due
from streamfl.fdskl.learning.feature_cache import FeatureCache
from streamfl.fdskl.learning.iteration import BandwidthSearch, SgdIteration, SharedSgdIteration
from streamfl.fdskl.learning.labelled import LabelledEntities
from streamfl.fdskl.learning.losses import sign_of
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.learning.newton_iteration import NewtonIteration
from streamfl.fdskl.learning.shared_model import SharedModel
from streamfl.fdskl.messages import ROUND, Revision, Round, Turn
from streamfl.fdskl.party.figures import ActiveFigures
from streamfl.fdskl.party.given import PartyGiven
from streamfl.fdskl.party.partition import PartyPartition
from streamfl.fdskl.predicting.catch_up import CatchUp
from streamfl.fdskl.predicting.forecasts import Forecasts
from streamfl.fdskl.predicting.predictions import EntityPredictor
from streamfl.fdskl.predicting.prequential_totals import of_no_use
from streamfl.fdskl.sums.pending_sums import Key
from streamfl.fdskl.sums.rounds import Rounds
from streamfl.state.clock_guard import earliest

__all__ = ["ActivePartition"]

# Times that a call looks for more to do. The rest waits for a tick.
MOST_TURNS = 64


class ActivePartition:
    """An active party's own part of a partition: forecasts, labelled entities, the model, and what is being
    asked.

    settings, given: of the party.
    partition: what every party has of the partition.
    figures: of all partitions.
    """

    def __init__(
        self, settings: FdsklSettings, given: PartyGiven, partition: PartyPartition, figures: ActiveFigures
    ) -> None:
        learning, alignment = settings.learning, settings.alignment
        self._settings = settings
        self._label_of = sign_of if settings.loss.classifies else float
        self._linger = alignment.linger_ms / 1000
        self._partition = partition
        self._figures = figures
        self.forecasts = Forecasts(
            partition.parts, alignment.expiry_seconds, alignment.limit, figures.forgotten_forecasts
        )
        self.labelled = LabelledEntities(partition.parts, max(learning.window, learning.block_instances))
        self.model = KernelModel(partition.parts, learning.block_features, learning.features_limit)
        self.due = Due(settings, self.labelled, self.model, partition.standardisation, partition.notices)
        self.catch_up = CatchUp(self.forecasts, self.due, self.model, settings)
        self.cache = FeatureCache(self.model.block, self.model.limit, learning.cache_bytes)
        self.rounds = Rounds(settings.aggregation.rounds_in_flight)
        several = len(settings.federation.actives) > 1
        self.shared = (
            SharedModel(settings, given.sign, partition, self.model, self.rounds) if several else None
        )
        self._predicts = settings.predicts
        self._iteration: BandwidthSearch | NewtonIteration | SgdIteration | None = None
        self._sends: list[Send] = []
        self.predicting = EntityPredictor(
            settings,
            given.encode,
            partition,
            figures,
            self.model,
            self.forecasts,
            self.cache,
            self.catch_up,
            self.rounds,
            self._sends,
            self._learn_from,
        )
        self._last_now = 0.0
        self._is_going_on = self._is_behind = self._is_whole = False
        partition.sums.collector = self

    # ---- what comes in

    def take_sample(self, entity: str, late: bool, offset: int, now: float) -> None:
        """Take the party's own columns of an entity, which is to be predicted, from the record at ``offset``.
        late: the entity was asked for before, with other columns or without."""
        if late:
            self.predicting.revised(entity)
        if late and entity in self.labelled:
            # Its label belongs to the old columns.
            self.labelled.forget(entity)
            is_of_it = isinstance(self._iteration, SgdIteration) and entity in self._iteration
            if self._iteration is not None and (is_of_it or not len(self.labelled)):
                # The iteration begins again without the entity, as it would after a restart.
                self.rounds.drop(self._iteration)
                self._iteration = None
            elif self._iteration is not None:
                self._iteration.revised(entity)
        if self._predicts:
            self.predicting.want(entity, now, offset)
        elif (found := self.forecasts.get(entity)) is not None and found.label is not None:
            self.labelled.add(entity, found.label)
            self.forecasts.forget(entity)

    def take_label(self, entity: str, label: float, now: float) -> None:
        """Learn from a label, or keep it until its entity can be learnt from."""
        self._figures.labels += 1
        self.catch_up.rest -= 1
        label = self._label_of(label)
        found = self.forecasts.get(entity)
        if found is None and (
            entity in self.labelled or (not self._predicts and self._partition.columns.knows(entity))
        ):
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
        """Take the next message in the log of several active parties. Returns False for one that came
        before."""
        assert self.shared is not None
        return self.shared.take_turn(message)

    def revise(self, entity: str, now: float) -> None:
        """A party has new columns of an entity: forget what was computed from the old ones."""
        self.labelled.forget_output(entity)
        self.predicting.revised(entity)
        if self._iteration is not None:
            self._iteration.revised(entity)
        if (
            (found := self.forecasts.get(entity))
            and self._predicts
            and self._settings.alignment.revise
            and found.label is None
        ):
            self.predicting.want(entity, now)

    def pass_time(self, now: float) -> None:
        """A tick."""
        since = self.forecasts.gathered_since
        if since is not None and since + self._linger <= now:
            self.predicting.gather(full_only=False)
        self.forecasts.expire(now)
        self.due.pass_time(now)
        self.catch_up.pass_time(now)
        self.predicting.pass_time(now)

    def set_back(self, now: float) -> None:
        """The clock was ahead: set later times back to ``now``."""
        self.forecasts.set_back(now)
        self.due.set_back(now)
        self.catch_up.set_back(now)
        self.predicting.set_back(now)

    @property
    def wake_at(self) -> float | None:
        since = self.forecasts.gathered_since
        behind = self._last_now if self._is_behind else None
        gathered = None if since is None else since + self._linger
        return earliest(
            self.forecasts.wake_at,
            gathered,
            behind,
            self.due.freezes_at,
            self.catch_up.wake_at,
            self.predicting.wake_at,
        )

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an answer or for its turn."""
        return self.rounds.busy or (self.shared is not None and self.shared.queue.is_asked_for)

    @property
    def is_due(self) -> bool:
        """Whether there are enough labels for an iteration."""
        return self.due.is_due

    # ---- results of rounds

    def complete(self, key: Key, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        question = self.rounds.take(key)
        if question is not None:
            if question.wanting is self._iteration:
                self.catch_up.advanced(self._last_now)
            question.wanting.answered(question, total, known)

    def abandoned(self, key: Key) -> None:
        self.rounds.ask_again(key)

    def begin(self, now: float) -> None:
        """Set the time of the messages that follow. BadRecord if coefficients of the model were lost."""
        if not self._is_whole and self.shared is None:
            self.model.check_whole()
        self._is_whole = True
        self._last_now = now
        self.predicting.begin(now)
        self.catch_up.begin(now)

    def go_on(self) -> None:
        """Begin iterations that are due and ask what may be asked, until there is nothing left to do."""
        if self._is_going_on:
            # With one party alone the answer comes while the question is asked.
            return
        self._is_going_on = True
        try:
            self._is_behind = False
            self.due.look(self._last_now)
            for _ in range(MOST_TURNS):
                if not self._let_go() | self._begin_iteration() | self._ask():
                    return
            # A worker with much to learn must not stop answering: the rest waits for the next tick.
            self._is_behind = True
        finally:
            self._is_going_on = False

    def take_sends(self) -> list[Send]:
        """Take out the messages to send."""
        sends = self._sends[:]
        self._sends.clear()
        return sends

    # ----

    def _let_go(self) -> bool:
        """Ask for entities of a backlog that need not wait any more. Returns whether there were any."""
        if not self.catch_up.let_go(self._last_now):
            return False
        # They have waited longest, and no tick comes while many records are unread.
        self.predicting.gather(full_only=False)
        return True

    def _learn_from(self, entity: str, label: float) -> None:
        """An entity that was predicted has its label: score the prediction, and learn from the entity."""
        found = self.forecasts.get(entity)
        assert found is not None
        loss = self._figures.score(found.output, label)
        # Version 0 has learnt nothing: its loss says nothing of the model.
        if found.version:
            self.labelled.score(loss, label)
        current = found.version == self.model.version
        self.labelled.add(entity, label, found.output if current else float("nan"), found.parties)
        self.cache.label(entity)
        self.forecasts.forget(entity)

    def _next_iteration(self) -> BandwidthSearch | NewtonIteration | SgdIteration:
        settings, learning = self._settings, self._settings.learning
        if self.model.bandwidth is None:
            if learning.bandwidth is None:
                return BandwidthSearch(settings, self.model, self.labelled)
            self.model.set_bandwidth(learning.bandwidth)
        if self.shared is not None:
            return SharedSgdIteration(settings, self.model, self.labelled, self._count_dropped)
        if learning.solver == "sgd":
            return SgdIteration(settings, self.model, self.labelled, self._count_dropped)
        return NewtonIteration(settings, self.model, self.labelled, self.cache, self._count_dropped)

    def _count_dropped(self, count: int) -> None:
        self._figures.rows_dropped += count

    def _begin_iteration(self) -> bool:
        """Close an iteration that has ended, and begin the next if it is due. Returns whether one began."""
        if self._iteration is not None and self._iteration.ended:
            if not isinstance(self._iteration, BandwidthSearch):
                self._figures.iterations += 1
                if (told := of_no_use(self.labelled.totals, self._settings.loss)) is not None:
                    self._partition.notices.say("worse_than_mean", told)
            if isinstance(self._iteration, SharedSgdIteration):
                assert self.shared is not None
                self._sends.append(self.shared.end(self._iteration))
            self._iteration = None
        if self._iteration is not None or not self._partition.standardisation.frozen or not self._may_begin():
            return False
        # With several active parties features are dropped only at the end of a turn, because its message
        # tells the others.
        if self.shared is None and self.model.keep_to_limit():
            self.labelled.forget_outputs_but([])
        self._iteration = self._next_iteration()
        self.catch_up.advanced(self._last_now)
        for question in self._iteration.questions():
            self.rounds.want(question)
        return True

    def _may_begin(self) -> bool:
        """Whether an iteration may begin. With several active parties, asks for a turn if one is due."""
        if self.shared is None:
            return self.is_due
        if self.is_due and not self.shared.queue.is_asked_for:
            self._sends.append(self.shared.ask())
        # Labelled entities may have been forgotten meanwhile, and a distance needs two.
        return self.shared.queue.has_come and (self.due.knows_bandwidth or len(self.labelled) >= 2)

    def _ask(self) -> bool:
        """Announce as many rounds as may be under way. Returns whether there were any."""
        partition, settings = self._partition, self._settings
        own = settings.required_party()
        if not self.rounds.are_waiting or not partition.peers.complete:
            return False
        numbers = partition.peers.numbers
        asked = False
        for key, question in self.rounds.ask(numbers[settings.own]):
            asked = True
            message = Round(
                VERSION,
                settings.fingerprint,
                own,
                numbers,
                key[1],
                question.purpose,
                question.bandwidth,
                list(question.ranges),
                list(question.entities),
            )
            content = ROUND.encode(message)
            self._figures.rounds_announced += 1
            for name in settings.federation.parties:
                if name != own:
                    self._sends.append(Send(f"rounds/{name}", None, content, partition.partition))
            partition.sums.take_round(message, content, self._last_now)
        return asked
