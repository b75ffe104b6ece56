"""The coordinator: brings embeddings and labels of an entity together, predicts, and answers with gradients.

VAFL, Algorithm 1, server: keeps the latest embedding of every entity and party, answers with d l / d h_nm,
updates its own theta_0.

The role calls the owners of its state, which :class:`CoordinatorPartition` lists, and of its output:
:class:`Predictions` and :class:`Replies`.

The role works off a batch in stretches: consecutive messages of one kind (and one party, for embeddings),
each of another entity. One entity affects another only through steps of theta_0. So a stretch is array work,
cut where theta_0 takes a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import (
    BadRecord,
    Headers,
    Measurement,
    OperatorNotice,
    Received,
    Rejection,
    Send,
    StateChange,
)
from streamfl.privacy.ledger import promise_ended
from streamfl.records.labels import Label
from streamfl.roles.first_learnt import first_awaited
from streamfl.roles.label_pause import LabelPause
from streamfl.roles.task_role import TaskRole
from streamfl.state.clock_guard import earliest, time_written
from streamfl.vafl.config import STALE_STEPS, VaflSettings
from streamfl.vafl.coordinator.alignment import NOTHING
from streamfl.vafl.coordinator.figures import CoordinatorFigures
from streamfl.vafl.coordinator.intake import Intake
from streamfl.vafl.coordinator.label_release import RELEASED_WITHOUT_NOISE, LabelRelease
from streamfl.vafl.coordinator.learning_head import LearningHead
from streamfl.vafl.coordinator.parties import SentEmbeddings
from streamfl.vafl.coordinator.partition import CoordinatorPartition
from streamfl.vafl.coordinator.party_watch import PartyWatch
from streamfl.vafl.coordinator.predictions import Predictions
from streamfl.vafl.coordinator.replies import Replies
from streamfl.vafl.given import CoordinatorGiven
from streamfl.vafl.state import SPENT

__all__ = ["VaflCoordinator"]

# Most messages in a stretch. A repeated entity ends a stretch, and this many names are looked at again for
# the next.
STRETCH = 1000


class VaflCoordinator(TaskRole[CoordinatorPartition]):
    """The member that knows the labels. It has one model per partition, for the entities whose key falls
    there.

    A label that comes after its entity was forgotten waits and expires like any other.

    settings, given: the coordinator's.
    """

    # It works off every message at once, so nothing waits. Requests to parties have a time, which wake_at
    # returns.
    prompt = True

    def __init__(self, settings: VaflSettings, given: CoordinatorGiven) -> None:
        super().__init__(self._new_task, "the coordinator's state")
        self.settings = settings
        self.given = given
        self.parties = tuple(settings.federation.parties)
        self.embedding_size = settings.federation.embedding_size
        self.fingerprint = settings.fingerprint
        self._loss = given.loss
        self._dtype = settings.dtype
        self._max_staleness = settings.learning.max_staleness
        self._numbers = {f"embeddings/{name}": number for number, name in enumerate(self.parties)}
        self._figures = CoordinatorFigures()
        self._intake = Intake(settings, given, self._numbers)
        self._predictions = Predictions(settings, given, self._figures)
        self._release = LabelRelease(settings, given)
        self._replies = Replies(self.parties, self.fingerprint)
        self._watch = PartyWatch(self.parties, settings.alignment.patience_seconds)
        self._label_pause = LabelPause()

    @property
    def wake_at(self) -> float | None:
        entities = [task.entities for task in self._tasks.values()]
        return earliest(self._watch.wake_at, self._label_pause.wake_at, *(one.wake_at for one in entities))

    @property
    def backlog(self) -> str | None:
        unlearnt = None if self._figures.learnt else first_awaited(self._tasks)
        told = [self._watch.late, unlearnt, self._label_pause.told]
        return next((one for one in told if one is not None), None)

    @property
    def trouble(self) -> str | None:
        return self._watch.trouble

    def notices(self) -> Iterable[OperatorNotice]:
        return [*self._notices.collect(), *self._watch.notices()]

    def _new_task(self, partition: int) -> CoordinatorPartition:
        return CoordinatorPartition(self.settings, self.given, partition, self._intake, self._figures)

    def close(self, partition: int) -> None:
        super().close(partition)
        if not self._tasks:
            self._watch.reset()

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies: list[Send | Rejection] = []
        if self._clock_guard.pass_to(now, tick=not batch):
            for task in self._tasks.values():
                task.entities.set_back(now)
        if not batch:
            for task in self._tasks.values():
                replies += self._give_up_waiting(task, now)
                task.entities.expire(now)
        # Partitions are independent, so the messages of each may be taken together.
        of_partition: dict[int, list[Received]] = {}
        for received in batch:
            of_partition.setdefault(received.record.partition, []).append(received)
        for partition, messages in of_partition.items():
            replies += self._take(self._tasks[partition], messages, now)
        self._watch.end_batch(not batch, now)
        if not batch:
            self._label_pause.look(now)
        return [*replies, *self._replies.take_requests()]

    # ---- inspection

    def parameters(self, partition: int) -> NDArray[Any]:
        """theta_0 of a partition, (size,): a copy."""
        return self._tasks[partition].head.parameters

    def mean_embeddings(self, partition: int) -> NDArray[np.float64]:
        """The running mean of each party's embeddings, (M, embedding size): replaces an embedding that is
        missing. A copy."""
        return self._tasks[partition].parties.means.copy()

    def evaluate(self, partition: int, embeddings: NDArray[Any]) -> NDArray[Any]:
        """The head's outputs for embeddings (n, M, embedding size) at the partition's present parameters: (n,
        outputs)."""
        return self._tasks[partition].head.evaluate(embeddings)

    # ---- state

    def restore(self, change: StateChange) -> None:
        if change.value is None:
            return
        if change.key.startswith(SPENT.prefix) and not self._release.noise:
            self._notices.add(
                promise_ended("the coordinator", "privacy.reply_noise", self.settings.privacy.without_noise)
            )
        super().restore(change)
        if self._release.noise and self._tasks[change.partition].head.released_without_noise:
            raise BadRecord("configuration", RELEASED_WITHOUT_NOISE)

    def measure(self) -> Iterable[Measurement]:
        tasks = self._tasks.values()
        yield from self._figures.measure([task.entities for task in tasks])
        yield from self._release.measure(math.sqrt(max((task.ledger.largest for task in tasks), default=0.0)))
        yield from self._predictions.measure()

    # ---- input

    def _take(
        self, task: CoordinatorPartition, messages: list[Received], now: float
    ) -> list[Send | Rejection]:
        """Take the messages of a partition. Wrong ones are sorted out first, so that they do not cut a
        stretch in two."""
        messages, shown, refused = self._intake.sorted_out(messages, now)
        replies: list[Send | Rejection] = list(refused)
        for channel, group in groupby(messages, attrgetter("channel")):
            run = list(group)
            if channel in self._numbers:
                replies += self._take_embeddings(task, self._numbers[channel], shown[: len(run)], now)
                shown = shown[len(run) :]
            else:
                written_at = max(time_written(one.record.timestamp, now) for one in run)
                replies += self._take_labels(task, [one.message for one in run], written_at, now)
        return replies

    def _take_labels(
        self, task: CoordinatorPartition, labels: list[Label], written_at: float, now: float
    ) -> list[Send]:
        """Take labels. written_at: when the newest of them was written."""
        sends: list[Send] = []
        begin = 0
        while begin < len(labels):
            part = labels[begin : begin + STRETCH]
            rows, places, read = task.entities.admit([one.client for one in part], now, with_labels=True)
            taken = [part[place] for place in places]
            begin += read
            if not taken:
                continue
            names, values = [one.client for one in taken], np.array([one.label for one in taken])
            self._watch.labelled(task.partition, names)
            self._label_pause.came(written_at, now)
            self._figures.labels += len(names)
            task.entities.label(rows, values)
            predicted, outputs = task.entities.last_outputs(rows)
            self._predictions.score(outputs, values[predicted], now)
            self._watch.awaited(task.entities.missing(rows))
            sends += self._work_off(task, names, rows, now, task.parties.behind)
        return sends

    def _take_embeddings(
        self, task: CoordinatorPartition, number: int, shown: SentEmbeddings, now: float
    ) -> list[Send]:
        new, again, late = task.parties.unheard(number, shown.epochs, shown.sequences)
        if again or late:
            self._tell_of_two(number, shown, again, late)
            shown = shown.only(new)
        sends, begin = list[Send](), 0
        while begin < len(shown.names):
            part = shown[begin : begin + STRETCH]
            rows, _, read = task.entities.admit(part.names, now)
            part = part[:read]
            begin += read
            self._figures.embeddings += read
            self._watch.heard(number, task.partition, part.names)
            ages = task.parties.take(number, part)
            task.parties.keep_up(number, task.entities.missed(rows, number, now))
            task.entities.show(rows, number, part)
            self._watch.awaited(task.entities.missing(rows))
            sends += self._work_off(
                task, part.names, rows, now, task.parties.behind, (number, ages), part.headers
            )
        return sends

    def _tell_of_two(self, number: int, shown: SentEmbeddings, again: list[int], late: list[int]) -> None:
        """Count embeddings that came again or late, and warn the operator that two processes may send for one
        party."""
        self._figures.ignored_embeddings["duplicate"] += len(again)
        self._figures.superseded_embeddings += len(late)
        repeated = "was repeated and had no effect; if this continues, two processes send for this party"
        self._tell_of_first("duplicate_embedding", number, shown, again, repeated)
        superseded = (
            "came after a later one: does a second process of the party write, or somebody else in its name?"
        )
        self._tell_of_first("superseded", number, shown, late, superseded)

    def _tell_of_first(
        self, reason: str, number: int, shown: SentEmbeddings, places: list[int], text: str
    ) -> None:
        if places and reason not in self._notices:
            which = f"embedding {shown.sequences[places[0]]} of epoch {shown.epochs[places[0]]}"
            self._notices.say(reason, f"party {self.parties[number]!r}: {which} {text}")

    def _give_up_waiting(self, task: CoordinatorPartition, now: float) -> list[Send]:
        names, rows = task.entities.give_up_waiting(now)
        if not names:
            return []
        epochs, _, versions = task.entities.numbers(rows)
        _, outdated = task.parties.ages(epochs, versions, self._max_staleness)
        behind = task.parties.fall_behind(task.entities.missing_parties(rows, outdated))
        if self._max_staleness is None:
            # Their gradients would count less.
            _, old = task.parties.ages(epochs, versions, STALE_STEPS)
            outdated = old & task.entities.may_be_asked(rows)
        return self._work_off(task, names, rows, now, behind, outdated=outdated)

    # ---- predicting and learning

    def _work_off(
        self,
        task: CoordinatorPartition,
        names: list[str],
        rows: NDArray[np.intp],
        now: float,
        behind: NDArray[np.bool_],
        newest: tuple[int, NDArray[np.int64]] | None = None,
        headers: Sequence[Headers] = (),
        outdated: NDArray[np.bool_] | None = None,
    ) -> list[Send]:
        """Predict, and learn from, those of these entities that are ready.

        behind: the parties that no quorum waits for.
        newest: the number of the party that has just sent them, and each embedding's age when it came, in
        steps.
        headers: of each.
        outdated: (n, M) which embeddings are too old; None: those beyond learning.max_staleness.
        """
        entities, means = task.entities, task.parties.means
        predicting = NOTHING if newest is None else entities.to_predict(rows)
        predicted = rows[predicting.places]
        inputs = entities.inputs(predicted, means)
        outputs = np.empty((len(predicted), self._loss.outputs), self._dtype)
        requests, answers = list[Send](), list[Send]()
        if entities.labelled(rows):
            epochs, sequences, versions = entities.numbers(rows)
            ages, beyond = task.parties.ages(epochs, versions, self._max_staleness, newest)
            decision = entities.decide(rows, beyond if outdated is None else outdated, behind)
            if self._release.noise:
                self._release.withhold(task.ledger, names, decision, self._figures.withheld_labels)
            elif decision.learns.any():
                task.head.note_release_without_noise()
            entities.settle(names, rows, decision, now)
            self._figures.count(decision, ages, now)
            learning = np.flatnonzero(decision.learns)
            learnt = [names[place] for place in learning.tolist()]
            used = entities.inputs(rows[learning], means, decision.used[learning])
            labels, releases = entities.labels(rows[learning])
            gradients = np.empty(used.shape, self._dtype)
            for some, others in self._between_steps(task.head, predicting.places, learning):
                outputs[some] = self._predict(task, inputs[some])
                gradients[others] = self._learn(
                    task, learnt[others], used[others], labels[others], releases[others]
                )
            encode, partition, answered = self._replies.encode, task.partition, decision.answered[learning]
            requests = encode(partition, names, epochs, sequences, decision.asked)
            answers = encode(partition, learnt, epochs[learning], sequences[learning], answered, gradients)
        else:
            outputs[:] = self._predict(task, inputs)
        replies = self._replies.order(requests, answers)
        if not len(predicted):
            return replies
        entities.predicted(predicted, outputs)
        return self._predictions.sends(names, headers, predicting, outputs) + replies

    def _between_steps(
        self, head: LearningHead, predicted: NDArray[np.intp], learnt: NDArray[np.intp]
    ) -> Iterator[tuple[slice, slice]]:
        """Cut both at the entities that complete a step of theta_0: everything after such an entity has to
        use the new theta_0."""
        begin_predicted = begin = 0
        while (more := head.entities_until_step()) is not None:
            end = begin + more
            if end > len(learnt):
                break
            end_predicted = int(np.searchsorted(predicted, learnt[end - 1], side="right"))
            yield slice(begin_predicted, end_predicted), slice(begin, end)
            begin_predicted, begin = end_predicted, end
        yield slice(begin_predicted, None), slice(begin, None)

    def _predict(self, task: CoordinatorPartition, inputs: NDArray[Any]) -> NDArray[Any]:
        """Outputs of n entities, (n, outputs)."""
        return task.head.evaluate(inputs) if len(inputs) else np.empty((0, self._loss.outputs), self._dtype)

    def _learn(
        self,
        task: CoordinatorPartition,
        names: list[str],
        inputs: NDArray[Any],
        labels: NDArray[np.float64],
        releases: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Learn from n entities. Returns d l / d h, (n, M, embedding size). releases: how often their labels
        were released."""
        if not names:
            return np.empty_like(inputs)

        def gradient_of(outputs: NDArray[Any]) -> NDArray[Any]:
            if not self._release.noise:
                return self._loss.gradient(outputs, labels)
            return self._release.gradient(
                task.partition, names, releases.tolist(), labels, outputs.astype(np.float64)
            )

        return task.head.learn(inputs, gradient_of)
