"""The coordinator: brings embeddings and labels of an entity together, predicts, and answers with gradients.

VAFL, Algorithm 1, server: keeps the latest embedding of every entity and party, answers with d l / d h_nm, moves its own theta_0.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.moments import Moments, overdue, set_back
from streamfl.optimisers import LARGEST_GRADIENT, Optimiser, OptimiserName, finite_step, optimiser_named
from streamfl.restored import Time, check_name, check_within
from streamfl.role import Measurement, Notice, PeerError, Received, Rejection, Send, StateChange
from streamfl.samples import Label
from streamfl.sequences import Run, check_numbers, note, was_heard
from streamfl.silence import Silence
from streamfl.vafl.arrays import changed_chunks, restore_chunk
from streamfl.vafl.heads import Head, OutputLoss
from streamfl.vafl.messages import (
    ANOTHER,
    REPLY,
    Embedding,
    Prediction,
    Reply,
    bounded_array,
    bounded_rows,
    encode_rows,
    within_bounds,
)
from streamfl.vafl.privacy import secret_noise
from streamfl.wire import VERSION, Count, encode_array

__all__ = ["Alignment", "HeadSteps", "VaflCoordinator"]

NO_EMBEDDING = (
    "no embedding of {} has come for {:g} s, while others' or labels have. See whether that party runs, and what this log says of "
    "its embeddings; if it is meant to be silent for longer, raise alignment.patience_seconds"
)
WINDOW = 1000
HEADLINES = {"embeddings", "labels", "predictions", "learnt", "gradients"}
# A sum of embeddings, or what a network makes of them.
LARGEST_OUTPUT = 1e100
# A running mean of embeddings follows the parties' models: its memory is of so many embeddings.
MEAN_OF = 1000


@dataclass(frozen=True)
class Alignment:
    """When an entity's embeddings and label make something.

    quorum: so many parties have to have shown it before it is predicted or learnt from. wait_for t: it is learnt from when so
    many parties have shown it anew; 1: at once, all parties: synchronously. Who comes after them is answered at once.
    max_staleness D: an embedding made more than so many steps of its party ago is asked for anew first. reply_seconds: after so
    long without an answer the party counts as absent. revise: predict again with every further embedding before the label.
    expiry: seconds after its last message that an entity is forgotten. limit: so many entities a partition at most are; the
    oldest gives way. keep: remember what was learnt from, for parties that show it again.
    """

    quorum: int = 1
    wait_for: int = 1
    max_staleness: int | None = None
    reply_seconds: float = 10.0
    revise: bool = True
    expiry: float = 3600.0
    limit: int = 100_000
    keep: bool = False


@dataclass(frozen=True)
class HeadSteps:
    """How theta_0 learns. batch_size: entities that make a step."""

    optimiser: OptimiserName = "adagrad"
    learning_rate: float = 0.03
    batch_size: int = 16
    regularisation: float = 0.0


# -1: nothing was heard yet.
Epoch = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]


class _Party(msgspec.Struct, array_like=True):
    """What is known of a party in a partition. ``mean``: of its embeddings, float64 numbers.

    epoch, sequence, parameters_version: of the embedding that was taken last. runs: which ones were.
    """

    epoch: Epoch = -1
    sequence: Count = 0
    parameters_version: Count = 0
    count: Count = 0
    mean: bytes = b""
    runs: list[Run] = []


class _Held(msgspec.Struct, array_like=True, gc=False):
    """An embedding.

    fresh: no gradient went to it. asked: a newer one was asked for. again: it came because of that. answers:
    gradients that went to earlier ones of this party and entity.
    """

    epoch: Count
    sequence: Count
    parameters_version: Count
    values: bytes
    fresh: bool = True
    asked: bool = False
    again: bool = False
    answers: Count = 0


class _Entity(msgspec.Struct, array_like=True):
    """``held``: by the number of the party. ``shown``: how many embeddings its last prediction was made of, and its outputs.

    asked_at: since when a newer embedding is awaited. rounds: how often ``wait_for`` parties were learnt from together.
    """

    since: Time
    label: float | None = None
    held: dict[int, _Held] = {}
    shown: Count = 0
    revision: Count = 0
    outputs: tuple[float, ...] | None = None
    asked_at: Time | None = None
    rounds: Count = 0


class _Counters(msgspec.Struct, array_like=True):
    steps: Count = 0
    gathered: Count = 0
    fingerprint: int = 0


class _Asking(NamedTuple):
    entity: str
    party: int
    held: _Held


class _Predicting(NamedTuple):
    name: str
    entity: _Entity
    row: bytes
    embeddings: int
    revision: int


class _Scoring(NamedTuple):
    entity: _Entity
    label: float


class _Learning(NamedTuple):
    name: str
    label: float
    row: bytes
    answers: list[tuple[int, _Held]]


@dataclass(slots=True)
class _Task:
    parameters: NDArray[Any]
    optimiser: Optimiser
    gradient: NDArray[np.float64]
    means: NDArray[np.float64]
    parties: list[_Party]
    entities: dict[str, _Entity] = field(default_factory=dict)
    # Since when.
    asked: dict[str, float] = field(default_factory=dict)
    counters: _Counters = field(default_factory=_Counters)
    # Of this batch, in order: what is computed together at the present parameters.
    pending: list[_Asking | _Predicting | _Scoring | _Learning] = field(default_factory=list)
    learning: int = 0
    touched: dict[str, None] = field(default_factory=dict)
    touched_parties: set[int] = field(default_factory=set)
    begun: bool = False
    moved: bool = False
    stepped: bool = False


class VaflCoordinator:
    """The member that knows the labels. One model a partition, of the entities whose key falls there.

    parties: their names, in the order that the head sees them in. ``original`` takes an output of the square loss to the label's
    own unit. The label of an entity that was forgotten, and came after it, waits and expires like any other. gradient_noise:
    standard deviation of noise on d l / d outputs, drawn from ``noise_secret``. patience: seconds after which a party that shows
    nothing, while others do or labels come, is trouble.
    """

    prompt = True
    full: Collection[int] = ()

    def __init__(
        self,
        *,
        parties: Sequence[str],
        embedding_size: int,
        head: Head,
        loss: OutputLoss,
        steps: HeadSteps,
        alignment: Alignment,
        seed: int,
        fingerprint: int = 0,
        dtype: Any = np.float32,
        encode_prediction: Callable[[Prediction], bytes] = msgspec.json.encode,
        original: Callable[[float], float] = float,
        gradient_noise: float = 0.0,
        noise_secret: str = "",
        patience: float = math.inf,
    ) -> None:
        self.parties = tuple(parties)
        self.embedding_size = embedding_size
        self.head = head
        self.loss = loss
        self.steps = steps
        self.alignment = alignment
        self.seed = seed
        self.fingerprint = fingerprint
        self.dtype = dtype
        self.encode_prediction = encode_prediction
        self.original = original
        self.gradient_noise = gradient_noise
        self.noise_secret = noise_secret
        self._wire_dtype = np.dtype(dtype).newbyteorder("<")
        self._numbers = {f"embeddings/{name}": number for number, name in enumerate(self.parties)}
        self._replies = [f"gradients/{name}" for name in self.parties]
        self._moments = Moments()
        self._tasks: dict[int, _Task] = {}
        self._counts = dict.fromkeys(
            (
                "embeddings",
                "predictions",
                "revised_predictions",
                "labels",
                "learnt",
                "gradients",
                "requests",
                "steps",
                "refused_steps",
            ),
            0,
        )
        self._ignored = dict.fromkeys(("duplicate",), 0)
        self._superseded = 0
        # The first of each reason: there may be as many as messages.
        self._notices: dict[str, Notice] = {}
        self._duplicate_labels = 0
        self._forgotten = dict.fromkeys(("no_quorum", "no_label", "no_embedding", "displaced", "learnt"), 0)
        self._staleness_sum = self._staleness_largest = 0
        self._silent = 0
        self._recent: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._silences = [Silence(patience) for _ in self.parties]
        # Of this batch: the parties that showed something, and those that did not show what was shown or labelled.
        self._heard: set[int] = set()
        self._awaited: set[int] = set()

    @property
    def wake_at(self) -> float | None:
        times = [next(iter(task.entities.values())).since + self.alignment.expiry for task in self._tasks.values() if task.entities]
        for task in self._tasks.values():
            if task.asked:
                times.append(min(task.asked.values()) + self.alignment.reply_seconds)
        times += [silence.wake_at for silence in self._silences if silence.wake_at is not None]
        return min(times, default=None)

    @property
    def trouble(self) -> str | None:
        silent = [name for name, silence in zip(self.parties, self._silences, strict=True) if silence.overdue]
        return NO_EMBEDDING.format(", ".join(silent), self._silences[0].patience) if silent else None

    def notices(self) -> Iterable[Notice]:
        notices, self._notices = self._notices, {}
        return notices.values()

    def forget(self, name: str) -> bool:
        return False

    def open(self, partition: int) -> None:
        self._moments.opened()
        parameters = self.head.initial(self.seed)
        steps, size, count = self.steps, self.head.size, len(self.parties)
        self._tasks[partition] = _Task(
            parameters,
            optimiser_named(steps.optimiser, steps.learning_rate, size),
            np.zeros(size),
            np.zeros((count, self.embedding_size)),
            [_Party() for _ in self.parties],
            counters=_Counters(fingerprint=self.fingerprint),
        )

    def close(self, partition: int) -> None:
        del self._tasks[partition]
        if not self._tasks:
            for silence in self._silences:
                silence.answered()

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies: list[Send | Rejection] = []
        if self._moments.pass_to(now, tick=not batch):
            for task in self._tasks.values():
                self._set_back(task, now)
        if not batch:
            for partition, task in self._tasks.items():
                replies += self._give_up_asking(partition, task, now)
                self._expire(task, now)
        embeddings = [one.message.values for one in batch if isinstance(one.message, Embedding)]
        values = iter(bounded_rows(embeddings, self.dtype, self.embedding_size))
        for received in batch:
            task = self._tasks[received.partition]
            message = received.message
            try:
                if isinstance(message, Label):
                    if not self.loss.accepts(message.label):
                        classes = max(self.loss.outputs, 2)
                        raise PeerError("label", f"the label {message.label:g} is not one of {classes} classes from 0")
                    self._take_label(task, message, now)
                else:
                    self._take_embedding(task, received, message, next(values), now)
            except PeerError as error:
                replies.append(Rejection(received, error))
            replies += self._work_off_full(received.partition, task)
        for partition, task in self._tasks.items():
            replies += self._work_off(partition, task)
        self._watch_parties(bool(batch), now)
        return replies

    def _watch_parties(self, batch: bool, now: float) -> None:
        for number, silence in enumerate(self._silences):
            if number in self._heard:
                silence.answered()
            if number in self._awaited - self._heard:
                silence.asked(now)
            if not batch:
                silence.look(now)
        self._heard, self._awaited = set(), set()

    def parameters(self, partition: int) -> NDArray[Any]:
        """theta_0 of a partition, (size,): a copy."""
        return self._tasks[partition].parameters.copy()

    def mean_embeddings(self, partition: int) -> NDArray[np.float64]:
        """What stands for a party that has not shown an entity, (M, embedding size): the running mean of what it showed. A copy."""
        return self._tasks[partition].means.copy()

    def evaluate(self, partition: int, embeddings: NDArray[Any]) -> NDArray[Any]:
        """What the head makes of (n, M, embedding size) at the partition's present parameters: (n, outputs)."""
        return self.head.forward(self._tasks[partition].parameters, embeddings)[0]

    def changed_state(self) -> Iterable[StateChange]:
        for partition, task in self._tasks.items():
            if task.stepped:
                for key, chunk in changed_chunks({"parameters": task.parameters, **task.optimiser.arrays}):
                    yield StateChange("state", partition, key, chunk)
            if task.moved:
                # The gradient so far and how many entities it is of belong together.
                for key, chunk in changed_chunks({"gradient": task.gradient}):
                    yield StateChange("state", partition, key, chunk)
            if task.moved or (not task.begun and (task.touched or task.touched_parties)):
                task.begun = True
                yield StateChange("state", partition, b"task", msgspec.msgpack.encode(task.counters))
            task.moved = task.stepped = False
            for number in sorted(task.touched_parties):
                task.parties[number].mean = encode_array(task.means[number])
                yield StateChange("state", partition, b"party/%d" % number, msgspec.msgpack.encode(task.parties[number]))
            task.touched_parties = set()
            for name in task.touched:
                entity = task.entities.get(name)
                value = None if entity is None else msgspec.msgpack.encode(entity)
                yield StateChange("state", partition, b"entity/" + name.encode(), value)
            task.touched = {}

    def restore(self, change: StateChange) -> None:
        try:
            self._restore(change)
        except (msgspec.DecodeError, ValueError) as error:
            raise PeerError("malformed", f"the coordinator's state: {error}") from None

    def _restore(self, change: StateChange) -> None:
        task, key, value = self._tasks[change.partition], change.key, change.value
        if value is None:
            return
        kind, _, name = key.partition(b"/")
        if key == b"task":
            task.counters = msgspec.msgpack.decode(value, type=_Counters)
            task.begun = True
            if task.counters.fingerprint != self.fingerprint:
                raise PeerError("configuration", ANOTHER)
        elif kind == b"party":
            number = int(name)
            self._check_numbers([number])
            party = msgspec.msgpack.decode(value, type=_Party)
            task.means[number] = bounded_array(party.mean, np.float64, self.embedding_size, "mean")
            if not party.runs and party.epoch >= 0:
                # As the first releases remembered it: everything up to the latest number was taken.
                party.runs.append(Run(party.epoch, 0, party.sequence))
            task.parties[number] = party
        elif kind == b"entity":
            entity = msgspec.msgpack.decode(value, type=_Entity)
            self._check_numbers(entity.held)
            for held in entity.held.values():
                self._values(held.values)
            if entity.label is not None and not self.loss.accepts(entity.label):
                raise PeerError("label", f"of the entity {name!r} the label {entity.label:g} is remembered")
            if len(entity.outputs or ()) != (self.loss.outputs if entity.shown else 0):
                raise PeerError("shape", f"of the entity {name!r} {len(entity.outputs or ())} outputs are remembered")
            if entity.outputs is not None:
                check_within(entity.outputs, -LARGEST_OUTPUT, LARGEST_OUTPUT, f"the outputs of entity {name!r}")
            task.entities[check_name(name)] = entity
            if entity.asked_at is not None:
                task.asked[name.decode()] = entity.asked_at
        else:
            arrays = {"parameters": task.parameters, "gradient": task.gradient, **task.optimiser.arrays}
            restore_chunk(arrays, key, value, task.optimiser.check)

    def _check_numbers(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if not 0 <= number < len(self.parties):
                raise PeerError("malformed", f"party {number} is remembered, federation.parties has {len(self.parties)}, from 0")

    def measure(self) -> Iterable[Measurement]:
        texts = {
            "embeddings": "Embeddings taken",
            "predictions": "Entities predicted",
            "revised_predictions": "Predictions of entities that had one, made when another embedding came",
            "labels": "Labels taken",
            "learnt": "Times that an entity was learnt from",
            "gradients": "Gradients sent",
            "requests": "Embeddings asked for anew",
            "steps": "Steps of the head's own parameters",
            "refused_steps": "Steps not taken because a parameter would have become infinite",
        }
        for name, text in texts.items():
            yield Measurement(name, "counter", text, self._counts[name], (), name in HEADLINES)
        for reason, count in self._ignored.items():
            text = "Embeddings that came again"
            yield Measurement("ignored_embeddings", "counter", text, count, (("reason", reason),))
        text = "Embeddings with a number below one that was taken just before: two speak for one party"
        yield Measurement("superseded_embeddings", "counter", text, self._superseded)
        text = "Labels of entities that had one; the first counts"
        yield Measurement("duplicate_labels", "counter", text, self._duplicate_labels)
        for reason, count in self._forgotten.items():
            text = "Entities forgotten: by what never came, to make room, or learnt from before all parties had shown them"
            yield Measurement("forgotten_entities", "counter", text, count, (("reason", reason),))
        text = "Requests for a newer embedding that nobody answered"
        yield Measurement("silent_parties", "counter", text, self._silent, (), True)
        tasks = self._tasks.values()
        remembered = sum(len(task.entities) for task in tasks)
        yield Measurement("entities", "gauge", "Entities that are remembered", remembered, (), True)
        mean = self._staleness_sum / self._counts["gradients"] if self._counts["gradients"] else 0.0
        text = "Steps that a party took between an embedding and the gradient to it, as far as known here: the mean"
        yield Measurement("staleness_mean", "gauge", text, mean)
        yield Measurement("staleness_largest", "gauge", "The same: the largest", self._staleness_largest)
        if self._recent:
            count = len(self._recent)
            text = f"Mean loss of the predictions made before the label, over the last {WINDOW} labels ({self.loss.name})"
            yield Measurement("loss_windowed", "gauge", text, sum(loss for loss, _ in self._recent) / count, (), True)
            if self.loss.name == "square":
                yield Measurement("mse_windowed", "gauge", text, sum(loss for loss, _ in self._recent) / count)
            else:
                text = f"Share of the predictions that were right, over the last {WINDOW} labels"
                yield Measurement("accuracy", "gauge", text, sum(right for _, right in self._recent) / count)

    # ---- what comes in

    def _take_label(self, task: _Task, label: Label, now: float) -> None:
        known = task.entities.get(label.client)
        if known is not None and known.label is not None:
            self._duplicate_labels += 1
            return
        self._counts["labels"] += 1
        entity = self._entity(task, label.client, now)
        entity.label = label.label
        self._await_others(entity)
        if entity.shown:
            task.pending.append(_Scoring(entity, label.label))
        self._learn_if_ready(task, label.client, entity, now)

    def _take_embedding(
        self, task: _Task, received: Received, embedding: Embedding, values: NDArray[Any] | None, now: float
    ) -> None:
        """values: of the embedding, None where something is wrong with them."""
        self._check(received, embedding, now)
        if values is None:
            values = self._values(embedding.values)
        number = self._numbers[received.channel]
        party = task.parties[number]
        if was_heard(party.runs, embedding.epoch, embedding.sequence):
            self._ignored["duplicate"] += 1
            self._say("duplicate_embedding", number, embedding, "came again and changed nothing; if this goes on, two speak for it")
            return
        if note(party.runs, embedding.epoch, embedding.sequence):
            self._superseded += 1
            text = "came after a later one: does a second process of the party write, or somebody else for it?"
            self._say("superseded", number, embedding, text)
        party.epoch, party.sequence, party.parameters_version = embedding.epoch, embedding.sequence, embedding.parameters_version
        party.count = min(party.count + 1, MEAN_OF)
        mean = task.means[number]
        mean += (values - mean) / party.count
        task.touched_parties.add(number)
        self._counts["embeddings"] += 1
        entity = self._entity(task, embedding.entity, now)
        before = entity.held.get(number)
        again = before is not None and before.asked
        entity.held[number] = _Held(
            embedding.epoch,
            embedding.sequence,
            embedding.parameters_version,
            embedding.values,
            again=again,
            answers=0 if before is None else before.answers,
        )
        if again and not any(held.asked for held in entity.held.values()):
            task.asked.pop(embedding.entity, None)
            entity.asked_at = None
        self._heard.add(number)
        self._await_others(entity)
        present = len(entity.held)
        better = entity.label is None and self.alignment.revise and present > entity.shown
        if present >= self.alignment.quorum and (not entity.shown or better):
            task.pending.append(_Predicting(embedding.entity, entity, self._row(task, entity), present, entity.revision))
            entity.shown = present
            entity.revision += 1
        self._learn_if_ready(task, embedding.entity, entity, now)

    def _await_others(self, entity: _Entity) -> None:
        if len(entity.held) < len(self.parties):
            self._awaited.update(number for number in range(len(self.parties)) if number not in entity.held)

    def _learn_if_ready(self, task: _Task, name: str, entity: _Entity, now: float) -> None:
        if name in task.asked:
            return
        if entity.label is None or len(entity.held) < self.alignment.quorum:
            self._close_asking(entity)
            return
        fresh = [(number, held) for number, held in sorted(entity.held.items()) if held.fresh]
        # Who was not there when enough were, once or several times, waits for nobody.
        late = [(number, held) for number, held in fresh if held.answers < entity.rounds]
        together = len(fresh) - len(late) >= self.alignment.wait_for
        fresh = fresh if together else late
        if not fresh:
            self._close_asking(entity)
            return
        if stale := self._too_stale(task, entity):
            for number, held in stale:
                held.asked = True
                task.pending.append(_Asking(name, number, held))
            task.asked[name] = entity.asked_at = now
            self._touch(task, name)
            return
        entity.rounds += together
        task.pending.append(_Learning(name, entity.label, self._row(task, entity), fresh))
        task.learning += 1
        for number, held in fresh:
            held.fresh = False
            held.answers += 1
            staleness = max(0, task.parties[number].parameters_version - held.parameters_version)
            self._staleness_sum += staleness
            self._staleness_largest = max(self._staleness_largest, staleness)
        if len(entity.held) == len(self.parties) and not self.alignment.keep:
            del task.entities[name]

    @staticmethod
    def _close_asking(entity: _Entity) -> None:
        """What was asked for counts as new only where it is learnt from as soon as all answers are there."""
        for held in entity.held.values():
            held.again = False

    def _too_stale(self, task: _Task, entity: _Entity) -> list[tuple[int, _Held]]:
        bound = self.alignment.max_staleness
        if bound is None:
            return []
        # What was asked for once is as new as can be had, and who has its gradient has forgotten the entity.
        return [
            (number, held)
            for number, held in sorted(entity.held.items())
            if held.fresh
            and not held.again
            and (
                held.epoch != task.parties[number].epoch
                or task.parties[number].parameters_version - held.parameters_version > bound
            )
        ]

    def _give_up_asking(self, partition: int, task: _Task, now: float) -> list[Send]:
        sends: list[Send] = []
        for name in [name for name, at in task.asked.items() if at + self.alignment.reply_seconds <= now]:
            entity = self._entity(task, name, now)
            del task.asked[name]
            entity.asked_at = None
            silent = [number for number, held in entity.held.items() if held.asked]
            for number in silent:
                del entity.held[number]
            self._silent += len(silent)
            self._learn_if_ready(task, name, entity, now)
            sends += self._work_off_full(partition, task)
        return sends

    def _set_back(self, task: _Task, now: float) -> None:
        """Let everything that came after ``now`` have come now: the clock was ahead. Whoever was asked then was heard of then."""
        for name in set_back(task.entities, now):
            entity = task.entities[name]
            if entity.asked_at is not None:
                task.asked[name] = entity.asked_at = min(entity.asked_at, now)
            self._touch(task, name)

    def _expire(self, task: _Task, now: float) -> None:
        for name in overdue(task.entities, self.alignment.expiry, now):
            self._forget(task, name)

    def _forget(self, task: _Task, name: str, displaced: bool = False) -> None:
        entity = task.entities.pop(name)
        task.asked.pop(name, None)
        self._touch(task, name)
        if not all(held.fresh for held in entity.held.values()):
            reason = "learnt"
        elif displaced:
            reason = "displaced"
        elif entity.label is None:
            reason = "no_label" if len(entity.held) >= self.alignment.quorum else "no_quorum"
        else:
            reason = "no_quorum" if entity.held else "no_embedding"
        self._forgotten[reason] += 1

    def _entity(self, task: _Task, name: str, now: float) -> _Entity:
        """The entity of this name, from now on the one that was heard of last."""
        entity = task.entities.pop(name, None)
        if entity is None:
            entity = _Entity(now, held={})
            if len(task.entities) >= self.alignment.limit:
                self._forget(task, next(iter(task.entities)), displaced=True)
        entity.since = now
        task.entities[name] = entity
        self._touch(task, name)
        return entity

    def _touch(self, task: _Task, name: str) -> None:
        # What is restored is in the order of the last writing, which is that of age.
        task.touched.pop(name, None)
        task.touched[name] = None

    # ---- what is computed together

    def _work_off_full(self, partition: int, task: _Task) -> list[Send]:
        """Theta_0 moves after every ``batch_size`` entities, whatever came together: what comes after that has to see it."""
        full = self.head.size and task.counters.gathered + task.learning >= self.steps.batch_size
        return self._work_off(partition, task) if full else []

    def _work_off(self, partition: int, task: _Task) -> list[Send]:
        pending, task.pending, task.learning = task.pending, [], 0
        sends: list[Send] = []
        rows = [item for item in pending if isinstance(item, (_Predicting, _Learning))]
        outputs: Sequence[Any] = ()
        predictions: Sequence[Any] = ()
        gradients: Sequence[bytes] = ()
        scored: list[_Scoring] = []
        if rows:
            numbers = np.frombuffer(b"".join([item.row for item in rows]), self._wire_dtype).astype(self.dtype, copy=False)
            stacked = numbers.reshape(len(rows), *task.means.shape)
            with np.errstate(over="ignore", invalid="ignore"):
                made, done = self.head.forward(task.parameters, stacked)
                outputs, predictions = made.tolist(), self.loss.prediction(made).tolist()
                gradients = self._learn(task, rows, made, done)
        index, count = 0, len(self.parties)
        for item in pending:
            if isinstance(item, _Asking):
                self._counts["requests"] += 1
                sends.append(self._reply(partition, item.party, item.entity, item.held, b""))
            elif isinstance(item, _Scoring):
                scored.append(item)
            elif isinstance(item, _Predicting):
                item.entity.outputs = tuple(outputs[index])
                sends.append(self._prediction(item, predictions[index]))
                index += 1
            else:
                for number, held in item.answers:
                    sends.append(self._reply(partition, number, item.name, held, gradients[index * count + number]))
                self._counts["gradients"] += len(item.answers)
                self._counts["learnt"] += 1
                index += 1
        if scored:
            self._score(scored)
        return sends

    def _learn(
        self, task: _Task, rows: Sequence[_Predicting | _Learning], outputs: NDArray[Any], done: Any
    ) -> list[bytes]:
        """d l / d h of all rows as bytes, M a row, 0 of those that are only predicted; theta_0 moves if its batch is full.

        Nothing where none is learnt from.
        """
        chosen = [index for index, item in enumerate(rows) if isinstance(item, _Learning)]
        learning = [item for item in rows if isinstance(item, _Learning)]
        if not learning:
            return []
        cotangents = np.zeros_like(outputs)
        labels = np.array([item.label for item in learning])
        if self.gradient_noise:
            cotangents[chosen] = self._noisy_gradient(outputs[chosen].astype(np.float64), labels, learning)
        else:
            cotangents[chosen] = self.loss.gradient(outputs[chosen], labels)
        gradient, down = self.head.backward(task.parameters, done, np.nan_to_num(cotangents))
        if self.head.size:
            # What cannot be remembered as a number could not be taken back.
            task.gradient += np.clip(np.nan_to_num(gradient.astype(np.float64)), -LARGEST_GRADIENT, LARGEST_GRADIENT)
            task.counters.gathered += len(learning)
            task.moved = True
            if task.counters.gathered >= self.steps.batch_size:
                self._step(task)
        return encode_rows(within_bounds(down, self.dtype).reshape(-1, self.embedding_size))

    def _step(self, task: _Task) -> None:
        gradient = task.gradient / task.counters.gathered + self.steps.regularisation * task.parameters
        if finite_step(task.optimiser, task.parameters, gradient, task.counters.steps + 1):
            task.counters.steps += 1
            self._counts["steps"] += 1
        else:
            self._counts["refused_steps"] += 1
        task.gradient[:] = 0.0
        task.counters.gathered = 0
        task.stepped = True

    def _score(self, items: Sequence[_Scoring]) -> None:
        outputs, labels = np.array([item.entity.outputs for item in items]), np.array([item.label for item in items])
        likeliest = outputs.argmax(axis=1) if self.loss.name == "softmax" else outputs[:, 0] > 0
        losses = self.loss.values(outputs, labels).tolist()
        self._recent.extend(zip(losses, (likeliest == labels).astype(float).tolist(), strict=True))

    def _row(self, task: _Task, entity: _Entity) -> bytes:
        """(M, embedding size) as bytes: what is there, and each absent party's mean."""
        held = entity.held
        if len(held) == len(self.parties):
            return b"".join([held[number].values for number in range(len(self.parties))])
        return b"".join(
            [
                held[number].values if number in held else mean.astype(self._wire_dtype).tobytes()
                for number, mean in enumerate(task.means)
            ]
        )

    def _prediction(self, item: _Predicting, prediction: Any) -> Send:
        self._counts["revised_predictions" if item.revision else "predictions"] += 1
        value = self.original(prediction) if self.loss.name == "square" else prediction
        message = Prediction(item.name, value, item.embeddings, item.revision)
        return Send("predictions", item.name.encode(), self.encode_prediction(message))

    def _reply(self, partition: int, number: int, entity: str, held: _Held, gradient: bytes) -> Send:
        message = Reply(VERSION, self.fingerprint, entity, held.epoch, held.sequence, gradient)
        return Send(self._replies[number], entity.encode(), REPLY.encode(message), partition)

    def _noisy_gradient(
        self, outputs: NDArray[np.float64], labels: NDArray[Any], learning: Sequence[_Learning]
    ) -> NDArray[np.float64]:
        """d l / d outputs with the noise that hides the label, which comes onto the label's part before anything is rounded.

        That part is the same at all outputs. Next to a large output, chosen by a party, rounding would make it larger than it is.
        """
        nothing, none = np.zeros_like(outputs), np.zeros_like(labels)
        hidden = self.loss.gradient(nothing, labels) - self.loss.gradient(nothing, none)
        noise = [self._label_noise(item) for item in learning]
        return np.asarray(self.loss.gradient(outputs, none) + (hidden + noise), dtype=np.float64)

    def _label_noise(self, item: _Learning) -> NDArray[np.float64]:
        # The label is in d l / d outputs as a term of its own. The same noise to everybody and every time is as if it had been told
        # once and with noise: several gradients, or several parties, cannot average it out.
        label = (self.loss.name, self.loss.outputs, self.gradient_noise, item.name, float(item.label))
        return self.gradient_noise * secret_noise(self.loss.outputs, self.noise_secret, "label", *label)

    def _say(self, reason: str, number: int, embedding: Embedding, text: str) -> None:
        which = f"party {self.parties[number]!r}: embedding {embedding.sequence} of epoch {embedding.epoch} {text}"
        self._notices.setdefault(reason, Notice(reason, which))

    def _check(self, received: Received, embedding: Embedding, now: float) -> None:
        if received.record.key != embedding.entity.encode():
            raise PeerError("forged", f"embedding of {embedding.entity!r} under the key {received.record.key!r}")
        if embedding.fingerprint != self.fingerprint:
            raise PeerError("configuration", ANOTHER)
        written_at = received.record.timestamp
        check_numbers(embedding.epoch, embedding.sequence, written_at if written_at > 0 else now)

    def _values(self, content: bytes) -> NDArray[Any]:
        return bounded_array(content, self.dtype, self.embedding_size, "embedding")
