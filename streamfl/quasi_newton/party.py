"""What guest and host have in common: their entities, their rows of a run, and their place in a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.changelog import ChangedParts
from streamfl.quasi_newton.batches import check_batch, secret_start
from streamfl.quasi_newton.config import MOST_COLUMNS
from streamfl.quasi_newton.fixed_point import FixedPoint, OutOfBounds
from streamfl.quasi_newton.iterates import Iterates
from streamfl.quasi_newton.keys import PublicKey
from streamfl.quasi_newton.member import Desk
from streamfl.quasi_newton.messages import (
    ANOTHER,
    Begin,
    Joined,
    Message,
    Opened,
    Ready,
    Step,
    content_of,
    place_of,
    read_content,
    records_of,
)
from streamfl.quasi_newton.own_columns import PRODUCTS
from streamfl.quasi_newton.party_settings import (
    ALIGNING,
    DECIDING,
    FAILED,
    GATHERING,
    OPENING,
    OUTPUTS,
    READY,
    TRAINED,
    PartySettings,
    Progress,
)
from streamfl.quasi_newton.randomness import Place
from streamfl.quasi_newton.scheme import Scheme, scheme_of
from streamfl.quasi_newton.table import EntityTable
from streamfl.quasi_newton.trained_model import LatestModel, TrainedModel
from streamfl.quasi_newton.training_rows import TrainingRows
from streamfl.quasi_newton.works import Own
from streamfl.records.samples import Sample
from streamfl.role import PeerError
from streamfl.wire import VERSION, decode_array, encode_array

__all__ = ["PartyTask"]

Floats = NDArray[np.float64]
VECTORS = ("outputs", "residuals", "gradient", "dots", "sums")


class PartyTask:
    """A party's partition. What is only the guest's or a host's is in its own class."""

    def __init__(self, settings: PartySettings, desk: Desk) -> None:
        self.settings = settings
        self.desk = desk
        self.parts = ChangedParts()
        self.progress = Progress()
        self.table = EntityTable(
            self.parts, settings.columns, settings.is_guest, settings.expiry, settings.most, desk.counts
        )
        self.rows = TrainingRows(self.parts, settings.most)
        self.iterates = Iterates(self.parts, settings.learning, settings.kinds, settings.is_guest)
        self._latest = LatestModel(self.parts)
        self._signs: Floats = np.zeros(0)

    # ---- what it has come to

    @property
    def trained(self) -> TrainedModel | None:
        """The party's part of the model of the latest successful training; None before the first."""
        return self._latest.model

    @property
    def learnt(self) -> Collection[str]:
        """Names of the entities that batches consist of."""
        return frozenset(self.rows.names if self.progress.phase >= OUTPUTS else ())

    # ---- what the runtime asks

    @property
    def wake_at(self) -> float | None:
        times = [self.table.wake_at]
        if self.progress.phase == GATHERING and self.table.complete >= self.settings.entities:
            times.append(self.table.latest + self.settings.settle)
        return min((at for at in times if at is not None), default=None)

    @property
    def owed(self) -> bool:
        return ALIGNING <= self.progress.phase <= DECIDING

    @property
    def trouble(self) -> str | None:
        return self.progress.failure or None

    def set_back(self, now: float) -> None:
        self.table.set_back(now)

    def pass_time(self, now: float) -> None:
        self.table.expire(now)
        settings, progress = self.settings, self.progress
        enough = self.table.complete >= settings.entities
        if progress.phase == GATHERING and enough and now >= self.table.latest + settings.settle:
            progress.phase = READY
            self.remember()
            self.upload("ready", content_of(Ready(self.table.complete)))

    def restore(self, key: bytes, value: bytes) -> None:
        if key == b"progress":
            self.progress = msgspec.msgpack.decode(value, type=Progress)
            return
        owners = (self.table, self.rows, self.iterates, self._latest)
        if not any(owner.restore(key, value) for owner in owners):
            raise PeerError("malformed", f"state {key[:60]!r} is not of this party")

    def take(self, channel: str, message: Any, now: float) -> None:
        if isinstance(message, Sample):
            self.desk.counts["samples"] += 1
            self.table.put(message.client, now, np.array(message.features, "<f8").tobytes())
            return
        assert isinstance(message, Message)
        if message.fingerprint != self.settings.fingerprint:
            raise PeerError("configuration", ANOTHER)
        self.go_on()
        if channel == "decisions":
            self._take_decision(message)
        else:
            self.take_linked(channel, message)

    def take_linked(self, channel: str, message: Message) -> None:
        """A message of another party."""
        raise NotImplementedError

    def align(self) -> None:
        """The rows are frozen and the run has begun: find the common entities."""
        raise NotImplementedError

    def begin_round(self) -> None:
        """Say what a new round needs of this party."""
        raise NotImplementedError

    def tell_products(self, products: list[int]) -> None:
        """The round's inner products with the basis are there."""
        raise NotImplementedError

    # ---- what is said

    def message(self, kind: str, content: bytes, alignment: bytes | None = None) -> Message:
        settings, progress = self.settings, self.progress
        known = progress.alignment if alignment is None else alignment
        return Message(VERSION, settings.fingerprint, settings.own, progress.run, progress.round, kind, known, content)

    def _count(self, kind: str, content: bytes) -> None:
        if kind in VECTORS:
            self.desk.counts["ciphertexts_sent"] += len(content) // self.scheme.unit_bytes

    def upload(self, kind: str, content: bytes) -> None:
        """To the coordinator."""
        self._count(kind, content)
        self.desk.send("uploads", records_of(self.settings.codec, self.message(kind, content)))

    def tell(self, channel: str, other: str, kind: str, content: bytes) -> None:
        """To another party, sealed."""
        self._count(kind, content)
        message = self.message(kind, b"")
        sealed = self.settings.links[other].seal(content, self.settings.link_topics[other][0], place_of(message))
        self.desk.send(channel, records_of(self.settings.codec, msgspec.structs.replace(message, content=sealed)))

    def unsealed(self, other: str, message: Message) -> bytes:
        """What another party said. PeerError where it was not that one."""
        if message.sender != other:
            raise PeerError("forged", f"{message.sender!r} speaks where {other!r} is heard")
        return self.settings.links[other].open(message.content, self.settings.link_topics[other][1], place_of(message))

    def place(self, kind: str) -> Place:
        settings, progress = self.settings, self.progress
        return Place(settings.federation, str(progress.run), settings.own, progress.round, kind)

    def session(self, host: str) -> bytes:
        """The name of the alignment with a host."""
        return msgspec.msgpack.encode((self.settings.federation, self.progress.run, self.settings.guest, host))

    def remember(self) -> None:
        self.parts.remember(b"progress", self.progress)

    def repeated(self) -> None:
        """A message came again, or too late."""
        self.desk.counts["repeated_messages"] += 1

    def is_present(self, message: Message, phase: int) -> bool:
        """Whether a message belongs to what the party waits for; False for one that came before. PeerError for neither."""
        progress = self.progress
        now, then = (progress.run, progress.round, progress.phase), (message.run, message.round, phase)
        if then < now:
            self.repeated()
            return False
        if then > now:
            raise PeerError("implausible", f"{message.kind} of run {message.run}, round {message.round}: nothing led to it")
        if phase > ALIGNING and message.alignment != progress.alignment:
            raise PeerError("alignment", "other entities are in common there")
        return True

    # ---- rounds

    @property
    def scheme(self) -> Scheme:
        return scheme_of(self.progress.modulus, self.settings.secret if self.progress.modulus else b"")

    @property
    def hidden(self) -> Own:
        """What work needs to hide numbers."""
        return Own(self.progress.modulus, self.settings.secret)

    @property
    def for_curvature(self) -> bool:
        return self.progress.round % 2 == 1

    @property
    def batch(self) -> NDArray[np.intp]:
        """Rows of the present batch."""
        size = self.settings.learning.batch
        first = self.progress.round // 2 % self.progress.batches * size
        return np.arange(first, first + size)

    @property
    def matrix(self) -> NDArray[Any]:
        """What the round's vector is multiplied with: at the guest with the labels behind, but for curvature."""
        own = self.iterates.own.integers[self.batch]
        if not self.settings.is_guest or self.for_curvature:
            return own
        return np.hstack([own, self.settings.kinds.inputs.encode(self.signs[self.batch])[:, np.newaxis]])

    @property
    def upload_kind(self) -> FixedPoint:
        return self.settings.kinds.curvature if self.for_curvature else self.settings.kinds.gradients

    @property
    def signs(self) -> Floats:
        if not len(self._signs):
            self._signs = self.rows.signs
        return self._signs

    def own_numbers(self) -> NDArray[Any]:
        """u of the batch, or s'x. OutOfBounds beyond the public bound."""
        own = self.iterates.own
        return own.changes(self.batch, self.vector(self.progress.step)) if self.for_curvature else own.outputs(self.batch)

    def vector(self, content: bytes) -> Floats:
        """One of the party's vectors in :class:`Progress`."""
        return decode_array(content, np.float64, self.iterates.own.weights.shape, "vector")

    def join(self, names: list[str], alignment: bytes) -> None:
        """The common entities are known, in the order of the batches."""
        settings, progress = self.settings, self.progress
        left_out = self.rows.select(names, settings.method, settings.learning.batch, settings.min_support)
        if left_out:
            self.desk.notices.say("columns", f"{left_out} columns have too little support in a batch and are left out")
        inputs = self.rows.inputs(len(names))
        self._signs = np.zeros(0)
        columns = inputs.shape[1] + settings.is_guest
        progress.alignment, progress.batches = alignment, len(names) // settings.learning.batch
        if not 0 < columns <= MOST_COLUMNS:
            self.fail(f"{columns} columns: 1 to {MOST_COLUMNS} are expected")
            return
        try:
            check_batch(settings.learning.batch, columns, settings.min_batch)
        except ValueError as error:
            self.fail(f"learning.batch: {error}")
            return
        context = msgspec.msgpack.encode((settings.federation, progress.run, settings.own))
        self.iterates.begin(inputs, secret_start(settings.secret, context, columns))
        self.remember()
        self.upload("joined", content_of(Joined(columns, progress.batches)))
        self.attempt_round()

    def _keep_model(self) -> None:
        """The training has come to its end."""
        settings, progress, found, model = self.settings, self.progress, self.rows.preparation, self.iterates.model
        assert model is not None
        kind = settings.kinds.inputs
        self._latest.keep(TrainedModel(progress.run, model, found.preprocessing, found.kept, kind, settings.is_guest))
        progress.phase = TRAINED
        self.remember()

    def attempt_round(self) -> None:
        """Begin the round, or say why this party cannot."""
        self.progress.phase = OUTPUTS
        self.progress.digest = b""
        self.remember()
        self.within_bounds(self.begin_round)

    def within_bounds(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OutOfBounds as error:
            self.fail(f"{error}: lower learning.learning_rate or learning.largest_step, or allow more at every member")

    def fail(self, text: str) -> None:
        """The run has come to nothing here, and so everywhere."""
        self._end(text)
        self.upload("failed", b"")

    def _end(self, text: str) -> None:
        self.progress.phase, self.progress.failure = FAILED, f"training {self.progress.run} has ended: {text}"
        self.desk.counts["failed_trainings"] += 1
        self.desk.notices.say("failed", self.progress.failure)
        self.remember()

    def go_on(self) -> None:
        """After a restart: the arithmetic is made again from what was remembered."""
        progress = self.progress
        if self.iterates.is_ready or not OUTPUTS <= progress.phase <= TRAINED:
            return
        inputs = self.rows.inputs(progress.batches * self.settings.learning.batch)
        taken = (progress.round + 1) // 2
        in_epoch = progress.round // 2 % progress.batches + progress.round % 2
        self.iterates.go_on(inputs, taken, in_epoch)

    # ---- the coordinator

    def _take_decision(self, message: Message) -> None:
        if message.kind == "begin":
            self._begin(message)
        elif message.kind == "failed":
            self._take_failed(message)
        elif message.kind == "opened" and self.is_present(message, OPENING):
            opened: Opened = read_content(message.content, Opened)
            self.within_bounds(lambda: self._take_opened(opened))
        elif message.kind == "step" and self.is_present(message, DECIDING):
            self._take_step(read_content(message.content, Step))
        elif message.kind not in ("opened", "step"):
            raise PeerError("malformed", f"{message.kind!r} is nothing that a coordinator says")

    def _begin(self, message: Message) -> None:
        settings, progress = self.settings, self.progress
        if message.run <= progress.run:
            self.repeated()
            return
        if message.run != progress.run + 1 or progress.phase != READY:
            raise PeerError("implausible", f"run {message.run} begins after run {progress.run}, which this party is not ready for")
        begin: Begin = read_content(message.content, Begin)
        if settings.encrypted:
            PublicKey.from_bytes(begin.key, settings.key_bits, settings.key_fingerprint)
        elif begin.key:
            raise PeerError("configuration", ANOTHER)
        self.progress = Progress(message.run, ALIGNING, 0, modulus=begin.key)
        names = self.table.names()
        self.rows.freeze(names, *self.table.rows(names))
        self.remember()
        self.align()

    def _take_failed(self, message: Message) -> None:
        progress = self.progress
        if message.run < progress.run or progress.phase == FAILED:
            self.repeated()
        elif message.run > progress.run or not self.owed:
            raise PeerError("implausible", f"training {message.run} has failed: nothing led to it")
        else:
            self._end("another party could not go on, see its log")

    def _take_opened(self, opened: Opened) -> None:
        progress, own = self.progress, self.iterates.own
        count, kind = self.matrix.shape[1], self.upload_kind
        numbers = self.scheme.opened(opened.residues, count, kind, self.place("gradient"), progress.digest)
        sums = np.array(numbers[: len(own.weights)], dtype=object)
        if self.for_curvature:
            step = self.vector(progress.step)
            curvature = own.curvature(sums, step)
            products, progress.curvature = own.pair_products(step, curvature).ravel(), encode_array(curvature)
        else:
            gradient, product = own.gradient(sums)
            progress.gradient = encode_array(gradient)
            last = self.loss_number(numbers, product)
            products = np.array([*own.products(gradient).tolist(), last], dtype=object)
        self.remember()
        self.tell_products(products.tolist())

    def loss_number(self, numbers: list[int], product: float) -> int:
        """What this party adds to the loss: w'g."""
        return int(PRODUCTS.encode(np.array([product]))[0])

    def _take_step(self, step: Step) -> None:
        progress, own, learning = self.progress, self.iterates.own, self.settings.learning
        iteration = progress.round // 2
        if self.for_curvature:
            if step.coefficients or step.pair:
                raise PeerError("implausible", "a round for curvature has no step")
            if step.kept:
                self.iterates.keep_pair(self.vector(progress.step), self.vector(progress.curvature))
        else:
            coefficients = decode_array(step.coefficients, np.float64, (2 * own.pair_count + 1,), "coefficients")
            taken = iteration + 1
            due = taken % learning.curvature_every == 0 and taken >= 2 * learning.curvature_every
            if not math.isfinite(step.loss) or (step.pair and not due):
                raise PeerError("implausible", "no pair is due, or the loss is no number")
            change = own.step(self.vector(progress.gradient), coefficients)
            self.iterates.remember()
            if step.pair:
                assert change is not None
                progress.round, progress.step = progress.round + 1, encode_array(change)
                self.attempt_round()
                return
        if step.epoch_ends:
            self.iterates.end_epoch()
        if step.over:
            self._keep_model()
            return
        progress.round = 2 * (iteration + 1)
        progress.gradient = progress.step = progress.curvature = b""
        self.attempt_round()
