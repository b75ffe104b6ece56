"""The part of a party that guest and host share: entities, messages, and the order of a training's steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from streamfl.contract.role import BadRecord, Measurement
from streamfl.quasi_newton.config import MOST_COLUMNS, QuasiNewtonSettings
from streamfl.quasi_newton.encryption.fixed_point import OutOfBounds
from streamfl.quasi_newton.encryption.key_file import MOST_KEYS, OTHER_KEY
from streamfl.quasi_newton.learning.iterates import Iterates
from streamfl.quasi_newton.messages import (
    ANOTHER,
    Joined,
    Message,
    Opened,
    Ready,
    StepDecision,
    content_of,
    read_content,
)
from streamfl.quasi_newton.metrics import MemberCounts, PartyMetrics
from streamfl.quasi_newton.rows.batches import check_batch, secret_start
from streamfl.quasi_newton.rows.table import EntityTable
from streamfl.quasi_newton.rows.training_rows import FAR_OUT, TrainingRows
from streamfl.quasi_newton.training.alignment_tasks import AlignmentTasks
from streamfl.quasi_newton.training.beginning import Beginning
from streamfl.quasi_newton.training.exchange import MessageExchange
from streamfl.quasi_newton.training.given import PartyGiven
from streamfl.quasi_newton.training.readiness import HeldOut, Readiness
from streamfl.quasi_newton.training.rounds import TrainingRounds
from streamfl.quasi_newton.training.trained_model import LatestModel, TrainedModel
from streamfl.quasi_newton.training.training_progress import (
    ALIGNING,
    DECIDING,
    FAILED,
    GATHERING,
    OPENING,
    OUTPUTS,
    READY,
    TRAINED,
)
from streamfl.records.samples import Sample
from streamfl.roles.partitioned_role import Outbox
from streamfl.roles.task_role import PartsTask
from streamfl.state.changelog import ChangedParts
from streamfl.state.clock_guard import earliest, time_written_by

__all__ = ["PartyTask"]

IMPLAUSIBLE = (
    "numbers within the public bounds cannot give what the coordinator decrypted for this party: a party "
    "does not follow the protocol, or the coordinator decrypted something else"
)


class PartyTask(PartsTask):
    """The state machine of a party's partition. Subclasses have the parts of guest and host."""

    def __init__(
        self, settings: QuasiNewtonSettings, given: PartyGiven, outbox: Outbox[MemberCounts]
    ) -> None:
        self.settings = settings
        self.given = given
        self.outbox = outbox
        self.parts = ChangedParts()
        self.alignments = AlignmentTasks(settings, given, outbox)
        self.exchange = MessageExchange(self.parts, settings, given, outbox)
        self.progress = self.exchange.progress
        self.is_held_out = HeldOut(given.secret, settings.alignment.held_out if settings.is_guest else 0.0)
        self.rows = TrainingRows(
            self.parts,
            settings.alignment.limit,
            settings.learning.batch,
            settings.columns,
            settings.kinds.inputs,
            settings.learning.min_support,
            given.secret,
            outbox.counts,
            largest=settings.learning.largest_leverage,
            intercept=settings.is_guest,
        )
        self.table = EntityTable(
            self.parts,
            settings.columns,
            settings.is_guest,
            settings.alignment.expiry_seconds,
            settings.alignment.limit,
            outbox.counts,
            self._is_taken,
        )
        self.rounds = TrainingRounds(self.parts, settings, given, self.progress, self.rows)
        self.readiness = Readiness(self.parts, settings, self.progress, self.table, self.rows.batches)
        self._latest = LatestModel(self.parts)
        self._beginning = Beginning(self)
        self._now = 0.0

    # ---- what it has come to

    @property
    def trained(self) -> TrainedModel | None:
        """The party's part of the model of the latest successful training; None before the first."""
        return self._latest.model

    @property
    def learnt(self) -> Collection[str]:
        """Names of the entities in batches. ``in`` is also true for entities whose batch is gone."""
        return self.rows.batches

    @property
    def iterates(self) -> Iterates:
        return self.rounds.iterates

    def _is_taken(self, name: str) -> bool:
        return name in self.rows.batches or self.is_held_out(name)

    # ---- what the runtime asks

    @property
    def wake_at(self) -> float | None:
        return earliest(self.table.wake_at, self.readiness.due_at)

    @property
    def owed(self) -> bool:
        return ALIGNING <= self.progress.phase <= DECIDING

    @property
    def owing(self) -> Sequence[str]:
        raise NotImplementedError

    @property
    def trouble(self) -> str | None:
        return self.progress.failure or None

    @property
    def awaited(self) -> str | None:
        return self.readiness.awaited

    def set_back(self, now: float) -> None:
        self.table.set_back(now)
        self.readiness.set_back(now)

    def pass_time(self, now: float) -> None:
        self._now = now
        self.table.expire(now)
        self._look_at_key()
        self.readiness.look(now)
        due_at = self.readiness.due_at
        if due_at is None or now < due_at:
            return
        if self.progress.phase == GATHERING:
            self.progress.phase = READY
            self.readiness.look(now)
        elif self.progress.phase != READY:
            self.progress.again = True
        self.progress.told = [*self.progress.told, self.settings.encryption.agreed_key][-MOST_KEYS:]
        self.exchange.remember()
        self.exchange.upload(
            "ready", content_of(Ready(self.table.complete, self.settings.encryption.agreed_key))
        )
        self._beginning.go_on()

    def restore(self, key: bytes, value: bytes) -> None:
        self.parts.restore(key, value)
        self.table.recount()

    def measure(self) -> Iterator[Measurement]:
        """Metrics of the training's place, the known entities, and the traffic of an iteration."""
        progress = self.progress
        # No round follows the last one.
        iterations = progress.round // 2 + (progress.phase == TRAINED)
        yield PartyMetrics.training(progress.run)
        yield PartyMetrics.phase(progress.phase)
        yield PartyMetrics.iteration(iterations)
        yield PartyMetrics.known_entities(self.table.known)
        yield PartyMetrics.missing_entities(self.readiness.missing)
        yield from self.exchange.traffic.measure()

    def take(self, channel: str, message: Any, now: float) -> None:
        self._now = now
        if isinstance(message, Sample):
            self.outbox.counts.samples += 1
            self.put(message.client, columns=np.array(message.features, "<f8").tobytes())
            return
        assert isinstance(message, Message)
        if message.fingerprint != self.settings.fingerprint:
            raise BadRecord("configuration", ANOTHER)
        self._look_at_key()
        self.rounds.go_on()
        if channel == "decisions":
            self._take_decision(message)
        else:
            self.take_linked(channel, message)

    def put(self, entity: str, columns: bytes = b"", label: int = 0) -> None:
        """Take an entity's columns, or its label, into the table."""
        more = self.table.put(entity, self._now, columns, label)
        written = 0.0 if self.outbox.record is None else self.outbox.record.timestamp
        self.readiness.came(self._now, time_written_by(self._now, written), fresh=more)

    def _look_at_key(self) -> None:
        """Fail a run whose key the configuration no longer pins, as after a restart: nothing more is
        encrypted under that key."""
        if self.owed and self.readiness.has_other_key:
            self.fail(OTHER_KEY)

    def take_linked(self, channel: str, message: Message) -> None:
        """Take a message of another party."""
        raise NotImplementedError

    def align(self) -> None:
        """Find the common entities, now that the run has begun."""
        raise NotImplementedError

    def begin_round(self) -> None:
        """Compute and send this party's part of a new round."""
        raise NotImplementedError

    def tell_products(self, products: list[int]) -> None:
        """Send the round's inner products with the basis."""
        raise NotImplementedError

    # ---- rounds

    def freeze(self) -> None:
        """Freeze the present entities: this run takes no others."""
        names = self.table.candidates()
        self.rows.freeze(names, *self.table.rows(names))

    def choose(self, names: list[str]) -> None:
        """Fill new batches with these of the frozen entities."""
        self.rows.choose(names)
        self.table.recount()
        self.readiness.look(self._now)

    def join(self, alignment: bytes) -> None:
        """Prepare the rows of the run's batches, report to the coordinator, and begin the first round."""
        settings, progress, rows = self.settings, self.progress, self.rows
        preparation = rows.prepare(settings.preprocessing.method)
        columns = len(preparation.kept) + settings.is_guest
        progress.alignment, progress.batches = alignment, rows.batches.count
        if rows.preparation is None and (left_out := preparation.results - len(preparation.kept)):
            self.outbox.notices.say(
                "columns", f"{left_out} columns have too little support in a batch and are left out"
            )
        if not 0 < columns <= MOST_COLUMNS:
            self.fail(f"{columns} columns: 1 to {MOST_COLUMNS} are expected")
            return
        try:
            check_batch(rows.batches.size, columns, settings.learning.min_batch)
        except ValueError as error:
            self.fail(f"learning.batch: {error}")
            return
        inputs, far = rows.learnt(preparation)
        muted = int(far.sum())
        if 2 * muted > len(rows.batches):
            self.fail(
                f"{muted} of {len(rows.batches)} rows {FAR_OUT}; a party that learns from less than half of "
                "its rows does not help"
            )
            return
        rows.fix(preparation)
        context = msgspec.msgpack.encode((settings.federation.name, progress.run, settings.required_party()))
        start = (
            secret_start(self.given.secret, context, columns)
            if self.trained is None
            else self.trained.weights
        )
        self.rounds.begin(inputs, far, start)
        if muted:
            self.outbox.counts.muted_rows += muted
            self.outbox.notices.say("muted", f"{muted} of {len(rows.batches)} rows {FAR_OUT}")
        self.exchange.remember()
        self.exchange.upload("joined", content_of(Joined(columns, progress.batches)))
        self.attempt_round()

    def attempt_round(self) -> None:
        """Begin the round. A number beyond the public bounds fails the run."""
        self.progress.phase = OUTPUTS
        self.progress.digest = b""
        self.exchange.remember()
        self.within_bounds(self.begin_round)

    def within_bounds(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OutOfBounds as error:
            self.fail(
                f"{error}: lower learning.learning_rate or learning.largest_step, or allow more at every "
                "member"
            )

    def fail(self, text: str) -> None:
        """End the run as failed, and tell the coordinator, which tells all parties."""
        self._end(text)
        self.exchange.upload("failed", b"")

    def _end(self, text: str) -> None:
        self.progress.phase, self.progress.failure = FAILED, f"training {self.progress.run} has ended: {text}"
        self.readiness.ended(self._now, failed=True)
        self.outbox.counts.failed_trainings += 1
        self.outbox.notices.say("failed", self.progress.failure)
        self.exchange.remember()

    def _keep_model(self) -> None:
        """Keep the model of the training, which has succeeded."""
        settings, progress = self.settings, self.progress
        found, model = self.rows.preparation, self.iterates.model
        assert found is not None
        assert model is not None
        kind = settings.kinds.inputs
        self._latest.keep(TrainedModel(progress.run, model, found, kind, settings.is_guest))
        progress.phase = TRAINED
        self.readiness.ended(self._now)
        self.outbox.counts.trainings += 1
        self.exchange.remember()

    # ---- the coordinator

    def _take_decision(self, message: Message) -> None:
        if message.kind == "begin":
            self._beginning.take(message)
        elif message.kind == "failed":
            self._beginning.take_failed(message)
        elif message.kind == "opened" and self.exchange.is_present(message, OPENING):
            opened: Opened = read_content(message.content, Opened)
            self.within_bounds(lambda: self._take_opened(opened))
        elif message.kind == "step" and self.exchange.is_present(message, DECIDING):
            self._take_step(read_content(message.content, StepDecision))
        elif message.kind not in ("opened", "step"):
            raise BadRecord("malformed", f"{message.kind!r} is not a message of a coordinator")

    def _take_opened(self, opened: Opened) -> None:
        rounds = self.rounds
        count, digest = rounds.matrix.shape[1], self.progress.digest
        try:
            numbers = rounds.scheme.opened(
                opened.residues, count, rounds.upload_kind, self.exchange.place("gradient"), digest
            )
            rounds.check(numbers)
        except BadRecord as error:
            if error.reason != "out_of_bounds":
                raise
            # The coordinator does not decrypt it a second time, so no other numbers will come.
            self.outbox.counts.implausible_openings += 1
            self.fail(f"{IMPLAUSIBLE}: {error.text}")
            return
        products = rounds.products(numbers)
        self.exchange.remember()
        self.tell_products(products)

    def _take_step(self, step: StepDecision) -> None:
        goes_on = self.rounds.take(step)
        self.outbox.counts.iterations += not step.pair
        if goes_on:
            self.attempt_round()
        else:
            self._keep_model()
