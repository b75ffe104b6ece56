"""A party: shows embeddings of the entities that it sees, and learns from the gradients that come back.

VAFL, Algorithm 1, party m: theta_m <- theta_m - eta_m (J_m' g + grad r(theta_m)).
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.moments import Moments, overdue, set_back
from streamfl.optimisers import Optimiser, OptimiserName, finite_step, optimiser_named
from streamfl.restored import Amount, Time, check_name, check_within
from streamfl.role import Measurement, Notice, PeerError, Received, Rejection, Send, StateChange
from streamfl.samples import LARGEST_NUMBER, Sample
from streamfl.seeding import uniform
from streamfl.sequences import epoch_at, is_to_come
from streamfl.silence import Silence
from streamfl.vafl.arrays import changed_chunks, restore_chunk
from streamfl.vafl.messages import (
    ANOTHER,
    EMBEDDING,
    Embedding,
    Reply,
    bounded_array,
    bounded_rows,
    encode_rows,
    within_bounds,
)
from streamfl.vafl.networks import Differentiable
from streamfl.vafl.privacy import ROUNDING, Mechanism, epsilon_of, secret_noise
from streamfl.wire import VERSION, Count, Name, decode_array

__all__ = ["PartySteps", "VaflParty"]

NO_GRADIENT = (
    "no coordinator answers: embeddings go out, and no gradient has come for {:g} s. Start the vafl-coordinator, or look at what "
    "its log says of this party's embeddings; if labels come later than that, raise alignment.patience_seconds"
)
DELTA = 1e-5
HEADLINES = {"samples", "embeddings", "gradients", "steps"}


@dataclass(frozen=True)
class PartySteps:
    """How a party learns.

    batch_size: gradients that make a step. in_flight: entities that may be on their way, from their embedding to the step on their
    gradient, before the next has to wait; None: any number. regularisation: lambda of lambda |theta|^2 / 2.
    """

    optimiser: OptimiserName = "adagrad"
    learning_rate: float = 0.03
    batch_size: int = 16
    in_flight: int | None = None
    regularisation: float = 0.0


class _Shown(msgspec.Struct, array_like=True, gc=False):
    """An entity whose gradient has not come yet. ``features``: raw numbers. ``requests``: how often it was shown anew.

    epoch: in which it was shown, if that was given up since; 0: the present one.
    """

    since: Time
    sequence: Count
    features: bytes
    requests: Count = 0
    epoch: Count = 0


class _Answered(msgspec.Struct, array_like=True, gc=False):
    """A gradient that waits for its step. ``noise``: sigma that its cost was counted with; its step has no less."""

    entity: Name
    sequence: Count
    features: bytes
    gradient: bytes
    noise: Amount = 0.0


class _Counters(msgspec.Struct, array_like=True):
    """``learnt``: a digest of all that the parameters were learnt from and how, kept where noise depends on it.

    shown_bare, learnt_bare: whether ever an embedding was sent, or a gradient taken, without the noise that makes mu.
    """

    epoch: Count
    sequence: Count = 0
    steps: Count = 0
    first_waiting: Count = 0
    learnt: bytes = b""
    fingerprint: int = 0
    shown_bare: bool = False
    learnt_bare: bool = False


@dataclass(slots=True)
class _Task:
    """One partition: a model of its own, and the entities whose key falls there."""

    parameters: NDArray[Any]
    optimiser: Optimiser
    counters: _Counters | None = None
    shown: dict[str, _Shown] = field(default_factory=dict)
    answered: dict[int, _Answered] = field(default_factory=dict)
    waiting: deque[tuple[str, bytes]] = field(default_factory=deque)
    # mu^2 of what was released of each entity, as it was then.
    spent: dict[str, float] = field(default_factory=dict)
    # Of this batch: what is to be shown at the present parameters.
    showing: list[tuple[str, _Shown]] = field(default_factory=list)
    largest_mu: float = 0.0
    changed_parameters: bool = False


class VaflParty:
    """One party of a vertical federation, whatever it knows staying with it.

    function: h_m. fingerprint: of what all members have to agree on. expiry: seconds for which an entity is remembered without an
    answer. limit: so many entities a partition at most are; the oldest gives way. waiting_limit: samples a partition that may wait
    because of ``steps.in_flight``, and one poll more. mechanism: its privacy, None for none. without_noise: whether a party that
    has a ledger may go on without a mechanism. requests: how often an entity is shown anew because the coordinator asks.
    ledger_limit: of how many entities a partition it is remembered what was released of them; of others nothing is sent.
    patience: seconds after which embeddings without any answer are trouble.
    """

    prompt = True

    def __init__(
        self,
        *,
        name: str,
        function: Differentiable,
        inputs: int,
        embedding_size: int,
        steps: PartySteps,
        seed: int,
        fingerprint: int = 0,
        expiry: float = 86_400.0,
        limit: int = 100_000,
        waiting_limit: int = 10_000,
        mechanism: Mechanism | None = None,
        without_noise: bool = False,
        requests: int = 4,
        ledger_limit: int = 1_000_000,
        patience: float = math.inf,
    ) -> None:
        self.name = name
        self.function = function
        self.inputs = inputs
        self.embedding_size = embedding_size
        self.steps = steps
        self.seed = seed
        self.fingerprint = fingerprint
        self.expiry = expiry
        self.limit = limit
        self.waiting_limit = waiting_limit
        self.mechanism = mechanism
        self.without_noise = without_noise
        self.requests = requests
        self.ledger_limit = ledger_limit
        self._wire_dtype = np.dtype(function.dtype).newbyteorder("<")
        self._moments = Moments()
        self._tasks: dict[int, _Task] = {}
        # Encoded when it is asked for: most is forgotten, or changed again, before that.
        self._changed: dict[tuple[int, bytes], Any] = {}
        self._counts = dict.fromkeys(("samples", "embeddings", "embeddings_again", "gradients", "steps", "refused_steps"), 0)
        self._ignored = dict.fromkeys(("unknown", "superseded"), 0)
        self._forgotten = dict.fromkeys(("expired", "displaced"), 0)
        self._noticed: dict[str, Notice] = {}
        self._withheld = dict.fromkeys(("budget", "ledger", "requests"), 0)
        self._silence = Silence(patience)

    @property
    def wake_at(self) -> float | None:
        times = [next(iter(task.shown.values())).since + self.expiry for task in self._tasks.values() if task.shown]
        silent = self._silence.wake_at
        return min(times if silent is None else [*times, silent], default=None)

    @property
    def full(self) -> Collection[int]:
        return [partition for partition, task in self._tasks.items() if len(task.waiting) >= self.waiting_limit]

    @property
    def trouble(self) -> str | None:
        return NO_GRADIENT.format(self._silence.patience) if self._silence.overdue else None

    def notices(self) -> Iterable[Notice]:
        noticed, self._noticed = self._noticed, {}
        return noticed.values()

    def forget(self, name: str) -> bool:
        return False

    def open(self, partition: int) -> None:
        self._moments.opened()
        parameters = self.function.initial(self.seed, self.name)
        steps = self.steps
        self._tasks[partition] = _Task(parameters, optimiser_named(steps.optimiser, steps.learning_rate, self.function.size))

    def close(self, partition: int) -> None:
        del self._tasks[partition]
        self._changed = {place: value for place, value in self._changed.items() if place[0] != partition}
        if not self._tasks:
            self._silence.answered()

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies: list[Send | Rejection] = []
        if self._moments.pass_to(now, tick=not batch):
            for partition, task in self._tasks.items():
                for entity in set_back(task.shown, now):
                    self._remember(partition, b"entity/" + entity.encode(), task.shown[entity])
                self._renew_epoch(partition, task, now)
        if not batch:
            for partition, task in self._tasks.items():
                self._expire(partition, task, now)
                self._go_on(partition, task, now)
        gradients = [one.message.gradient for one in batch if isinstance(one.message, Reply)]
        checked = iter(bounded_rows(gradients, self.function.dtype, self.embedding_size))
        for received in batch:
            task = self._tasks[received.partition]
            if isinstance(received.message, Sample):
                self._take_sample(received.partition, task, received.message, now)
                continue
            try:
                self._check(received, received.message, next(checked) is not None)
            except PeerError as error:
                replies.append(Rejection(received, error))
            else:
                replies += self._take_reply(received.partition, task, received.message, now)
        for partition, task in self._tasks.items():
            replies += self._show(partition, task, now)
        if any(task.shown for task in self._tasks.values()):
            self._silence.asked(now)
        elif not self._silence.overdue:
            self._silence.answered()
        if not batch:
            self._silence.look(now)
        return replies

    def parameters(self, partition: int) -> NDArray[Any]:
        """theta_m of a partition, (size,): a copy."""
        return self._tasks[partition].parameters.copy()

    def embed(self, partition: int, inputs: NDArray[Any]) -> NDArray[Any]:
        """h_m of ``inputs``, (n, inputs), at the partition's present parameters and without noise: (n, embedding size)."""
        outputs: NDArray[Any] = self.function.forward(self._tasks[partition].parameters, inputs).outputs
        return outputs

    def changed_state(self) -> Iterable[StateChange]:
        for partition, task in self._tasks.items():
            if task.changed_parameters:
                arrays = {"parameters": task.parameters, **task.optimiser.arrays}
                self._changed.update({(partition, key): value for key, value in changed_chunks(arrays)})
                task.changed_parameters = False
        for (partition, key), value in self._changed.items():
            content = value if value is None or isinstance(value, bytes) else msgspec.msgpack.encode(value)
            yield StateChange("state", partition, key, content)
        self._changed = {}

    def restore(self, change: StateChange) -> None:
        try:
            self._restore(change)
        except (msgspec.DecodeError, ValueError) as error:
            raise PeerError("malformed", f"a party's state: {error}") from None

    def _restore(self, change: StateChange) -> None:
        task, key, value = self._tasks[change.partition], change.key, change.value
        if value is None:
            return
        kind, _, name = key.partition(b"/")
        if key == b"task":
            task.counters = msgspec.msgpack.decode(value, type=_Counters)
            if task.counters.fingerprint != self.fingerprint:
                raise PeerError("configuration", ANOTHER)
            self._check_history(task.counters)
        elif kind == b"entity":
            shown = msgspec.msgpack.decode(value, type=_Shown)
            self._check_features(shown.features)
            task.shown[check_name(name)] = shown
        elif kind == b"answered":
            answered = msgspec.msgpack.decode(value, type=_Answered)
            self._check_features(answered.features)
            bounded_array(answered.gradient, self.function.dtype, self.embedding_size, "gradient")
            if int(name) != len(task.answered):
                raise PeerError("malformed", f"{key!r} is remembered after {len(task.answered)} others")
            task.answered[int(name)] = answered
        elif kind == b"waiting":
            entity, features = msgspec.msgpack.decode(value, type=tuple[Name, bytes])
            self._check_features(features)
            if int(name) < len(task.waiting):
                raise PeerError("malformed", f"{key!r} is remembered after {len(task.waiting)} others")
            task.waiting.append((entity, features))
        elif kind == b"spent":
            self._check_ledger()
            spent = task.spent[check_name(name)] = msgspec.msgpack.decode(value, type=Amount)
            task.largest_mu = max(task.largest_mu, math.sqrt(spent))
        else:
            restore_chunk({"parameters": task.parameters, **task.optimiser.arrays}, key, value, task.optimiser.check)

    def measure(self) -> Iterable[Measurement]:
        texts = {
            "samples": "Samples taken",
            "embeddings": "Embeddings sent",
            "embeddings_again": "Embeddings sent because the coordinator asked for newer ones",
            "gradients": "Gradients learnt from",
            "steps": "Steps taken",
            "refused_steps": "Steps not taken because a parameter would have become infinite",
        }
        for name, text in texts.items():
            yield Measurement(name, "counter", text, self._counts[name], (), name in HEADLINES)
        for reason, count in self._ignored.items():
            text = "Replies to an embedding that is forgotten, or followed by a newer one"
            yield Measurement("ignored_replies", "counter", text, count, (("reason", reason),), True)
        for reason, count in self._forgotten.items():
            text = "Entities forgotten without a gradient: by age, or to make room"
            yield Measurement("forgotten_entities", "counter", text, count, (("reason", reason),))
        tasks = self._tasks.values()
        yield Measurement("entities", "gauge", "Entities whose gradient has not come", sum(len(task.shown) for task in tasks))
        text = "Samples that wait until fewer are on their way"
        yield Measurement("waiting_samples", "gauge", text, sum(len(task.waiting) for task in tasks), (), True)
        for reason, count in self._withheld.items():
            text = "Not sent or not learnt from: the privacy budget is spent, no room to remember what is, or asked for too often"
            yield Measurement("withheld_embeddings", "counter", text, count, (("reason", reason),))
        if self.mechanism is not None:
            if self.mechanism.budget is not None:
                yield Measurement("privacy_budget_mu", "gauge", "mu that no entity may exceed", self.mechanism.budget)
            mu = max((task.largest_mu for task in tasks), default=0.0)
            text = "mu of the entity of which most was released (Gaussian differential privacy)"
            if self.mechanism.guarantees:
                yield Measurement("privacy_mu", "gauge", text, mu)
                text = f"epsilon of the same at delta = {DELTA:g}"
                yield Measurement("privacy_epsilon", "gauge", text, epsilon_of(mu, DELTA))
            else:
                text += ", of its own embeddings alone: what others' tell of it is not counted, and this is no guarantee"
                yield Measurement("privacy_mu_per_release", "gauge", text, mu)

    # ---- what comes in

    def _take_sample(self, partition: int, task: _Task, sample: Sample, now: float) -> None:
        self._counts["samples"] += 1
        counters = self._begun(partition, task, now)
        features = np.array(sample.features, self._wire_dtype).tobytes()
        if task.waiting or self._busy(task):
            self._remember(partition, self._waiting_key(counters.first_waiting + len(task.waiting)), (sample.client, features))
            task.waiting.append((sample.client, features))
        else:
            self._upload(partition, task, sample.client, features, now)

    def _take_reply(self, partition: int, task: _Task, reply: Reply, now: float) -> list[Send]:
        shown = task.shown.get(reply.entity)
        if shown is None or task.counters is None or reply.epoch != (shown.epoch or task.counters.epoch):
            self._ignored["unknown"] += 1
            return []
        if reply.sequence != shown.sequence:
            self._ignored["superseded"] += 1
            return []
        self._silence.answered()
        if not reply.gradient:
            if shown.requests >= self.requests:
                self._withheld["requests"] += 1
            elif self._upload(partition, task, reply.entity, shown.features, now, shown.requests + 1):
                self._counts["embeddings_again"] += 1
                return []
            # No gradient will come, and nobody is to wait for it.
            self._forget(partition, task, reply.entity)
            self._go_on(partition, task, now)
            return []
        self._forget(partition, task, reply.entity)
        if self.mechanism is not None:
            before = sum(task.answered[index].entity == reply.entity for index in range(len(task.answered)))
            # (m + 1)^2 - m^2: gradients of one entity add up in a step.
            if not self._spend(partition, task, reply.entity, steps=2 * before + 1):
                self._go_on(partition, task, now)
                return []
        noise = 0.0 if self.mechanism is None else self.mechanism.gradient_noise or 0.0
        if not noise and not task.counters.learnt_bare:
            task.counters.learnt_bare = True
            self._remember(partition, b"task", task.counters)
        self._counts["gradients"] += 1
        answered = _Answered(reply.entity, shown.sequence, shown.features, reply.gradient, noise)
        self._remember(partition, b"answered/%d" % len(task.answered), answered)
        task.answered[len(task.answered)] = answered
        sends: list[Send] = []
        if len(task.answered) >= self.steps.batch_size:
            # What came before this step is shown as it was then.
            sends = self._show(partition, task, now)
            self._step(partition, task)
        self._go_on(partition, task, now)
        return sends

    def _go_on(self, partition: int, task: _Task, now: float) -> None:
        """Samples that waited are shown as far as they may be."""
        while task.waiting and not self._busy(task):
            counters = self._begun(partition, task, now)
            entity, features = task.waiting.popleft()
            self._changed[partition, self._waiting_key(counters.first_waiting)] = None
            counters.first_waiting += 1
            self._remember(partition, b"task", counters)
            self._upload(partition, task, entity, features, now)

    def _begun(self, partition: int, task: _Task, now: float) -> _Counters:
        """The counters of this life of the partition's state, which begins where there are none."""
        if task.counters is None:
            task.counters = _Counters(epoch=epoch_at(now), fingerprint=self.fingerprint)
            self._remember(partition, b"task", task.counters)
        return task.counters

    def _renew_epoch(self, partition: int, task: _Task, now: float) -> None:
        """Give up an epoch that a clock far ahead named: the coordinator would refuse it until that time comes.

        A gradient to what was shown in it is learnt from all the same. What was refused is not shown again, for nobody knows which
        was: without a gradient it is forgotten in its time.
        """
        counters = task.counters
        if counters is None or not is_to_come(counters.epoch, now):
            return
        to_be_shown = {entity for entity, _ in task.showing}
        for entity, shown in task.shown.items():
            if entity not in to_be_shown:
                shown.epoch = shown.epoch or counters.epoch
            self._remember(partition, b"entity/" + entity.encode(), shown)
        counters.epoch = epoch_at(now)
        self._remember(partition, b"task", counters)

    def _busy(self, task: _Task) -> bool:
        limit = self.steps.in_flight
        return limit is not None and len(task.shown) + len(task.answered) >= limit

    def _expire(self, partition: int, task: _Task, now: float) -> None:
        for entity in overdue(task.shown, self.expiry, now):
            self._forget(partition, task, entity)
            self._forgotten["expired"] += 1

    # ---- what goes out

    def _upload(self, partition: int, task: _Task, entity: str, features: bytes, now: float, requests: int = 0) -> bool:
        """Whether the entity is to be shown: its budget may not allow it."""
        if self.mechanism is not None and not self._spend(partition, task, entity, embeddings=1):
            return False
        assert task.counters is not None
        task.counters.sequence += 1
        task.counters.shown_bare |= self.mechanism is None
        self._remember(partition, b"task", task.counters)
        shown = _Shown(now, task.counters.sequence, features, requests)
        # At the end, for the table is in the order of age.
        task.shown.pop(entity, None)
        task.shown[entity] = shown
        self._remember(partition, b"entity/" + entity.encode(), shown)
        task.showing.append((entity, shown))
        self._counts["embeddings"] += 1
        if len(task.shown) > self.limit:
            self._forget(partition, task, next(iter(task.shown)))
            self._forgotten["displaced"] += 1
        return True

    def _show(self, partition: int, task: _Task, now: float) -> list[Send]:
        """The embeddings, at the present parameters, of all entities that are to be shown."""
        if not task.showing:
            return []
        counters = task.counters
        assert counters is not None
        # Not at a tick alone: there is none while much lies unread.
        self._renew_epoch(partition, task, now)
        sequences = [shown.sequence for _, shown in task.showing]
        inputs = self._table([shown.features for _, shown in task.showing], self.inputs)
        hidden = self._hidden_noise(partition, sequences)
        with np.errstate(over="ignore", invalid="ignore"):
            values = self.function.forward(task.parameters, inputs, hidden).outputs
        if self.mechanism is not None:
            noise = np.stack(
                [
                    self._noise(self.embedding_size, partition, counters, "embedding", shown.sequence, entity, shown.features)
                    for entity, shown in task.showing
                ]
            )
            values = values + self.mechanism.embedding_noise * noise
        sends = []
        rows = encode_rows(within_bounds(values, self.function.dtype))
        for (entity, shown), content in zip(task.showing, rows, strict=True):
            message = Embedding(
                VERSION, self.fingerprint, entity, counters.epoch, shown.sequence, counters.steps, content
            )
            sends.append(Send("embeddings", entity.encode(), EMBEDDING.encode(message), partition))
        task.showing = []
        return sends

    # ---- learning

    def _step(self, partition: int, task: _Task) -> None:
        counters = task.counters
        assert counters is not None
        answered = [task.answered[index] for index in range(len(task.answered))]
        for index in range(len(answered)):
            self._changed[partition, b"answered/%d" % index] = None
        task.answered = {}
        if self.mechanism is not None:
            steps, mechanism = self.steps, self.mechanism
            how = (steps.optimiser, steps.learning_rate, steps.regularisation, mechanism.gradient_norm, mechanism.gradient_noise)
            content = msgspec.msgpack.encode((counters.learnt, answered, how))
            counters.learnt = hashlib.blake2b(content, digest_size=32).digest()
        with np.errstate(over="ignore", invalid="ignore"):
            total = self._total(partition, task, counters, answered)
            gradient = total / len(answered) + self.steps.regularisation * task.parameters
        if finite_step(task.optimiser, task.parameters, gradient, counters.steps + 1):
            counters.steps += 1
            self._counts["steps"] += 1
        else:
            self._counts["refused_steps"] += 1
        task.changed_parameters = True
        self._remember(partition, b"task", counters)

    def _total(self, partition: int, task: _Task, counters: _Counters, answered: Sequence[_Answered]) -> NDArray[Any]:
        """The sum of J' g, (size,), with the noise that goes onto it."""
        inputs = self._table([one.features for one in answered], self.inputs)
        gradients = self._table([one.gradient for one in answered], self.embedding_size)
        noise = self._hidden_noise(partition, [one.sequence for one in answered])
        done = self.function.forward(task.parameters, inputs, noise)
        mechanism = self.mechanism
        if mechanism is None or mechanism.gradient_norm is None or mechanism.gradient_noise is None:
            return self.function.backward(task.parameters, done, gradients)
        norm = mechanism.gradient_norm * (1 - ROUNDING)
        total = self.function.backward_each(task.parameters, done, gradients, norm).astype(np.float64)
        drawn = self._noise(self.function.size, partition, counters, "gradient")
        return total + max(mechanism.gradient_noise, *[one.noise for one in answered]) * mechanism.gradient_norm * drawn

    def _noise(
        self, count: int, partition: int, counters: _Counters, kind: str, *content: str | int | bytes
    ) -> NDArray[np.float64]:
        mechanism = self.mechanism
        assert mechanism is not None
        # Twice one noise in two strengths would be solved for what is under it.
        strength = mechanism.embedding_noise, mechanism.gradient_norm or 0.0, mechanism.gradient_noise or 0.0
        # Not of the epoch, which the clock gives: what was not committed is done again in another one.
        own = (self.fingerprint, self.name, partition, kind, counters.learnt, *strength)
        return secret_noise(count, mechanism.secret, *own, *content)

    def _hidden_noise(self, partition: int, sequences: Sequence[int]) -> NDArray[Any] | None:
        units = self.function.noise_units
        if not units or self.mechanism is None:
            return None
        path = ("hidden", self.mechanism.secret, partition)
        return np.stack([2 * uniform(units, 0, *path, sequence) - 1 for sequence in sequences])

    def _table(self, rows: Sequence[bytes], width: int) -> NDArray[Any]:
        """Rows that were checked when they came, (rows, width)."""
        numbers = np.frombuffer(b"".join(rows), self._wire_dtype)
        return numbers.astype(self.function.dtype, copy=False).reshape(len(rows), width)

    def _check_features(self, content: bytes) -> None:
        features = decode_array(content, self.function.dtype, (self.inputs,), "features")
        check_within(np.abs(features, dtype=np.float64).sum(), 0.0, 1.001 * LARGEST_NUMBER, "features")

    # ---- privacy

    def _spend(self, partition: int, task: _Task, entity: str, embeddings: int = 0, steps: int = 0) -> bool:
        """Whether the entity's budget allows it; then it is spent."""
        mechanism = self.mechanism
        assert mechanism is not None
        spent = task.spent.get(entity)
        if spent is None:
            if len(task.spent) >= self.ledger_limit:
                self._withheld["ledger"] += 1
                return False
            spent = 0.0
        spent += mechanism.cost(embeddings, steps)
        if not mechanism.allows(spent):
            self._withheld["budget"] += 1
            return False
        task.spent[entity] = spent
        task.largest_mu = max(task.largest_mu, math.sqrt(spent))
        self._remember(partition, b"spent/" + entity.encode(), spent)
        return True

    def _check_history(self, counters: _Counters) -> None:
        """PeerError if mu would be claimed of what was sent, or learnt from, without noise."""
        mechanism = self.mechanism
        if mechanism is not None and (counters.shown_bare or (mechanism.guarantees and counters.learnt_bare)):
            raise PeerError(
                "configuration",
                f"{self.name} has {'sent embeddings' if counters.shown_bare else 'taken steps'} without noise before: "
                "no mu could be claimed; begin anew, with another federation.name at all members",
            )

    def _check_ledger(self) -> None:
        """PeerError where something was spent and nothing would be counted any more; a notice where the operator says so."""
        if self.mechanism is not None:
            return
        if not self.without_noise:
            raise PeerError(
                "configuration",
                f"{self.name} has a ledger of what it told with noise, and [privacy] is missing: put it back, or set "
                "privacy.without_noise = true to send without noise from now on, which ends what was claimed of mu",
            )
        self._noticed["without_noise"] = Notice(
            "without_noise", f"{self.name} goes on without noise, as privacy.without_noise says: its mu holds no longer"
        )

    # ---- state

    def _check(self, received: Received, reply: Reply, bounded: bool) -> None:
        if received.record.key != reply.entity.encode():
            raise PeerError("forged", f"reply for entity {reply.entity!r} under the key {received.record.key!r}")
        if reply.fingerprint != self.fingerprint:
            raise PeerError("configuration", ANOTHER)
        if reply.gradient and not bounded:
            bounded_array(reply.gradient, self.function.dtype, self.embedding_size, "gradient")

    def _forget(self, partition: int, task: _Task, entity: str) -> None:
        del task.shown[entity]
        self._changed[partition, b"entity/" + entity.encode()] = None

    def _remember(self, partition: int, key: bytes, value: Any) -> None:
        # At the end: what is restored is in the order of the last writing.
        self._changed.pop((partition, key), None)
        self._changed[partition, key] = value

    def _waiting_key(self, number: int) -> bytes:
        return b"waiting/%d" % number
