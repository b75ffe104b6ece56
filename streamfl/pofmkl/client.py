"""The clients of POF-MKL: personal kernel weights over shared parameters, every prediction before its label.

Ghari and Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022:
equations (4), (6) to (9), Algorithm 1.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit

from streamfl.kernels import LOGISTIC, FeatureMap, Loss
from streamfl.kernels.log_weights import bin_probabilities, heaviest_first, normalised
from streamfl.pofmkl.bandwidth import TokenBucket, UpdateCost
from streamfl.pofmkl.messages import LARGEST_STEP, UPDATE, Prediction, Update
from streamfl.pofmkl.model import ModelTable
from streamfl.role import Measurement, PeerError, Received, Rejection, Send, StateChange
from streamfl.samples import LARGEST_NUMBER, Sample
from streamfl.seeding import UniformSequence
from streamfl.wire import VERSION, decode_array, encode_array, encoded_size

__all__ = ["Learning", "PofmklClient", "StepTrace", "Uplink"]

# Gradients are computed this many at a time: with all kernels in a bin, the samples of a poll have hundreds of thousands.
BLOCK_GRADIENTS = 1024


@dataclass(frozen=True)
class Learning:
    """The constants of the algorithm.

    learning_rate eta, regularisation lambda, exploration_rate xi in [0, 1]. samples_per_version: how many labelled samples a client
    may take on one version of the model: 1 in lockstep, n when bounded, None when asynchronous.
    """

    learning_rate: float
    regularisation: float
    exploration_rate: float
    loss: Loss
    lockstep: bool = True
    samples_per_version: int | None = 1
    upload_interval: float = 1.0


@dataclass(frozen=True)
class Uplink:
    """What a client may send: ``kernels_per_upload`` M, or as many as ``bytes_per_second`` allow when the upload begins."""

    kernels_per_upload: int | None = 1
    bytes_per_second: float | None = None


@dataclass(frozen=True)
class StepTrace:
    """One labelled sample as it was learnt: everything needed to compute it again."""

    client: str
    inputs: NDArray[Any]
    label: float
    prediction: float
    kernel_predictions: NDArray[Any]
    kernel_order: NDArray[Any]
    drawn_bin: int
    bin_probability: float
    sent: NDArray[np.bool_]
    log_weights: NDArray[np.float64]


class _Window(msgspec.Struct, array_like=True):
    """An upload being gathered: the bin drawn before its labels, and the steps added up so far."""

    opened_at: float
    versions: tuple[int, ...]
    probability: float
    drawn_bin: int
    kernels: tuple[int, ...]
    samples: int = 0
    steps: bytes = b""


class _State(msgspec.Struct, array_like=True):
    """What is remembered of one client, as one value. ``numbers``: its row of personal numbers."""

    name: str
    epoch: int
    sequence: int = 0
    taken: int = 0
    taken_on: tuple[int, ...] | None = None
    uploads_drawn: int = 0
    tokens: float = 0.0
    filled_at: float = 0.0
    window: _Window | None = None
    numbers: bytes = b""


@dataclass(slots=True)
class _Member:
    state: _State
    key: tuple[int, str]
    row: int
    draws: UniformSequence
    bucket: TokenBucket | None
    cost: UpdateCost
    waiting: deque[tuple[Sample, bytes | None]] = field(default_factory=deque)
    first_slot: int = 0
    slots_written: int = 0
    step_rows: list[int] = field(default_factory=list)


class _Rows:
    """Rows of float64 numbers that clients borrow: one array, so that many clients' rows are one operation."""

    def __init__(self, width: int) -> None:
        self.numbers = np.zeros((0, width))
        self._free: list[int] = []

    def borrow(self, count: int) -> list[int]:
        """Numbers of ``count`` rows of zeros."""
        held = len(self.numbers)
        if len(self._free) < count:
            more = max(64, held // 2, count)
            self.numbers = np.concatenate([self.numbers, np.zeros((more, self.numbers.shape[1]))])
            self._free = [*range(held + more - 1, held - 1, -1), *self._free]
        return [self._free.pop() for _ in range(count)]

    def give_back(self, rows: list[int]) -> None:
        self.numbers[rows] = 0.0
        self._free += rows


class PofmklClient:
    """Predicts every sample, learns from its label, and sends the server no more than it may.

    One object serves all clients of its partitions: the samples of a poll go through one matrix product. ``encode_prediction``
    makes the user's record; ``original`` takes a prediction or label back to the label's own unit. A client's samples are taken in
    order; those that have to wait for the model are remembered, ``waiting_limit`` a partition and one poll more at most.
    """

    def __init__(
        self,
        *,
        features: FeatureMap,
        learning: Learning,
        uplink: Uplink,
        seed: int,
        clients: int,
        shards: int = 1,
        fingerprint: int = 0,
        encode_prediction: Callable[[Prediction], bytes] = msgspec.json.encode,
        original: Callable[[float], float] = float,
        waiting_limit: int = 10_000,
        trace: Callable[[StepTrace], None] | None = None,
    ) -> None:
        self.features = features
        self.learning = learning
        self.uplink = uplink
        self.seed = seed
        self.clients = clients
        self.shards = shards
        self.fingerprint = fingerprint
        self.encode_prediction = encode_prediction
        self.original = original
        self.waiting_limit = waiting_limit
        self.trace = trace
        self.dtype = np.float64 if features.dtype == np.float64 else np.float32
        self.model = ModelTable(features.kernels, features.count, features.dimension, shards, fingerprint, self.dtype)
        self._members: dict[tuple[int, str], _Member] = {}
        self._waiting: dict[int, int] = {}
        self._ready: dict[tuple[int, str], _Member] = {}
        self._open_uploads: dict[tuple[int, str], _Member] = {}
        self._due: list[tuple[float, tuple[int, str]]] = []
        self._touched: dict[tuple[int, str], _Member] = {}
        self._changed: dict[tuple[int, bytes], bytes | None] = {}
        # A row a client: its log-weights, its loss with each kernel alone, then the four sums below.
        self._personal = _Rows(2 * features.kernels + 4)
        self._steps = _Rows(2 * features.count)
        self._counts = dict.fromkeys(
            ("samples", "labels", "unlabelled", "update_bytes", "update_budget_bytes", "updates", "skipped"), 0.0
        )
        self._recent: deque[float] = deque(maxlen=1000)
        self._last_now: float | None = None

    @property
    def wake_at(self) -> float | None:
        times = [when for when in map(self._affordable_at, self._ready.values()) if when is not None]
        due_at = self._next_upload_due()
        return min(times, default=None) if due_at is None else min([due_at, *times])

    @property
    def full(self) -> Collection[int]:
        return [partition for partition, waiting in self._waiting.items() if waiting >= self.waiting_limit]

    @property
    def prompt(self) -> bool:
        return self.learning.lockstep

    def open(self, partition: int) -> None:
        self._waiting[partition] = 0

    def close(self, partition: int) -> None:
        del self._waiting[partition]
        for key in [key for key in self._members if key[0] == partition]:
            member = self._members.pop(key)
            self._personal.give_back([member.row])
            self._steps.give_back(member.step_rows)
            for table in (self._ready, self._open_uploads, self._touched):
                table.pop(key, None)
        self._changed = {key: value for key, value in self._changed.items() if key[0] != partition}

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies: list[Send | Rejection] = []
        if self._last_now is not None and self.uplink.bytes_per_second is not None:
            passed = max(0.0, now - self._last_now)
            self._counts["update_budget_bytes"] += passed * self.uplink.bytes_per_second * len(self._members)
        self._last_now = now
        before = self.model.versions
        for received in batch:
            try:
                if received.channel == "model":
                    self.model.apply(received.message, received.partition)
                else:
                    self._queue(received, now)
            except PeerError as error:
                replies.append(Rejection(received, error))
        if self.model.versions != before:
            self._ready.update((key, member) for key, member in self._members.items() if member.waiting)
        outdated = [m for m in self._open_uploads.values() if m.state.window and m.state.window.versions != self.model.versions]
        replies += self._upload(outdated, now)
        if not batch:
            replies += self._upload(self._uploads_due(now), now)
        replies += self._advance(now)
        return replies

    def _queue(self, received: Received, now: float) -> None:
        sample: Sample = received.message
        if self.learning.loss is LOGISTIC and sample.label not in (None, 0.0, 1.0):
            raise PeerError("label", f"label {sample.label}, 0 or 1 is expected with the logistic loss (after samples.label_range)")
        partition = received.record.partition
        key = (partition, sample.client)
        member = self._members.get(key)
        if member is None:
            if len(self._members) >= self.clients:
                raise PeerError(
                    "too_many_clients", f"{sample.client!r} would be client {self.clients + 1}: raise federation.clients"
                )
            # A life of the client's state is told from an earlier one that was lost by when it began.
            member = self._member(key, _State(sample.client, epoch=int(now * 1e6), tokens=float("inf"), filled_at=now))
            # Even if its first sample has to wait: the epoch must be the same after a restart.
            self._touched[key] = member
        member.waiting.append((sample, received.record.key))
        self._waiting[partition] += 1
        self._ready[key] = member

    def _advance(self, now: float) -> list[Send | Rejection]:
        """Take every sample that its client may take now."""
        members: list[_Member] = []
        samples: list[tuple[Sample, bytes | None]] = []
        starts: list[int] = []
        for member in self._ready.values():
            taken = self._take(member, now)
            if taken:
                members.append(member)
                starts.append(len(samples))
                samples += taken
            if member.waiting or member.slots_written:
                self._remember_waiting(member, len(taken))
            else:
                member.first_slot += len(taken)
        if self.uplink.bytes_per_second is None:
            self._ready = {}
        else:
            self._ready = {key: member for key, member in self._ready.items() if self._affordable_at(member) is not None}
        if not samples:
            return []
        return self._learn(members, samples, starts, now)

    def _take(self, member: _Member, now: float) -> Sequence[tuple[Sample, bytes | None]]:
        state, waiting, per_version = member.state, member.waiting, self.learning.samples_per_version
        if per_version is None:
            taken = list(waiting)
            waiting.clear()
            self._waiting[member.key[0]] -= len(taken)
            return taken
        if state.taken_on == self.model.versions:
            allowance = per_version - state.taken
        else:
            # In lockstep a round is one version of every shard: between two of them the model is of neither round.
            settled = not self.learning.lockstep or len(set(self.model.versions)) == 1
            allowance = per_version if settled else 0
        if allowance and not self._affords_update(member, now):
            allowance = 0
        taken = []
        while waiting:
            if waiting[0][0].label is not None:
                if allowance == 0:
                    break
                allowance -= 1
                if state.taken_on != self.model.versions:
                    state.taken_on, state.taken = self.model.versions, 0
                state.taken += 1
            taken.append(waiting.popleft())
        self._waiting[member.key[0]] -= len(taken)
        return taken

    def _learn(
        self, members: list[_Member], samples: list[tuple[Sample, bytes | None]], starts: list[int], now: float
    ) -> list[Send | Rejection]:
        learning, theta, kernels = self.learning, self.model.parameters, self.features.kernels
        rows = np.array([member.row for member in members])
        counts = np.diff([*starts, len(samples)])
        inputs = np.array([sample.features for sample, _ in samples], dtype=self.dtype)
        given = [sample.label for sample, _ in samples]
        labelled = np.array([label is not None for label in given])
        labels = np.array([0.0 if label is None else label for label in given])

        # (4), (6): f_i = theta_i . z_i(x)
        kernel_predictions = self.features.predict(inputs, theta)
        if not np.abs(kernel_predictions).max(initial=0.0) < LARGEST_NUMBER:
            # Steps that were far too long have made the model useless; nothing that is not a number may be remembered or sent.
            kernel_predictions = np.clip(np.nan_to_num(kernel_predictions), -LARGEST_NUMBER, LARGEST_NUMBER)
        # l_i = L(f_i, y) + lambda ||theta_i||^2
        plain_losses = learning.loss.value(kernel_predictions, labels[:, None]) * labelled[:, None]
        losses = plain_losses + learning.regularisation * np.outer(labelled, self.model.squared_norms)
        # (7): log w_i <- log w_i - eta l_i after each sample, so that sample s of a client is predicted with the losses before it.
        steps = -learning.learning_rate * losses
        personal = self._personal.numbers[rows]
        before = np.empty_like(steps)
        before[starts] = personal[:, :kernels]
        for first in np.flatnonzero(counts > 1).tolist():
            start, end = starts[first], starts[first] + int(counts[first])
            before[start + 1 : end] = before[start] + np.cumsum(steps[start : end - 1], axis=0)
        weights = normalised(before)
        # (6): f = sum_i w_bar_i f_i
        predictions = np.einsum("bn,bn->b", weights, kernel_predictions, dtype=np.float64)

        # With the logistic loss f is the log-odds of label 1, and what a user reads is its probability.
        published = expit(predictions) if learning.loss is LOGISTIC else predictions
        replies = self._predict(samples, published)
        orders = self._open_windows(members, counts, labelled, before, now)
        self._accumulate(members, counts, labelled, inputs, kernel_predictions, labels)

        last = np.array(starts) + counts - 1
        errors = np.where(labelled, np.square(published - labels), 0.0)
        own_losses = learning.loss.value(predictions, labels) * labelled
        personal[:, :kernels] = before[last] + steps[last]
        personal[:, kernels:-4] += np.add.reduceat(plain_losses, starts, axis=0)
        sums = np.stack([np.ones(len(samples)), labelled, errors, own_losses], axis=1)
        personal[:, -4:] += np.add.reduceat(sums, starts, axis=0)
        self._personal.numbers[rows] = personal
        self._recent.extend(errors[labelled].tolist())
        self._touched.update((member.key, member) for member in members)
        self._counts["samples"] += len(samples)
        self._counts["labels"] += int(labelled.sum())
        self._counts["unlabelled"] += len(samples) - int(labelled.sum())
        if self.trace is not None:
            self._trace(members, starts, counts, labelled, inputs, labels, predictions, kernel_predictions, orders, before + steps)
        if learning.samples_per_version is not None:
            # Nothing more can join these uploads before the model changes, and the model may wait for them.
            complete = [m for m in members if m.state.window is not None and m.state.taken >= learning.samples_per_version]
            replies += self._upload(complete, now)
        return replies

    def _predict(self, samples: list[tuple[Sample, bytes | None]], predictions: NDArray[np.float64]) -> list[Send | Rejection]:
        original, encode, version = self.original, self.encode_prediction, self.model.name
        return [
            Send(
                "predictions",
                key,
                encode(
                    Prediction(
                        sample.client,
                        sample.id,
                        original(prediction),
                        version,
                        None if sample.label is None else original(sample.label),
                    )
                ),
            )
            for (sample, key), prediction in zip(samples, predictions.tolist(), strict=True)
        ]

    def _open_windows(
        self,
        members: list[_Member],
        counts: NDArray[Any],
        labelled: NDArray[np.bool_],
        before: NDArray[np.float64],
        now: float,
    ) -> dict[int, NDArray[Any]]:
        """Draw the bin of every upload that begins with this batch, from the weights before its first label (Algorithm 1)."""
        first_labels = np.full(len(members), -1)
        places = np.flatnonzero(labelled)[::-1]
        first_labels[np.repeat(np.arange(len(members)), counts)[places]] = places
        opening = [
            (member, first)
            for member, first in zip(members, first_labels.tolist(), strict=True)
            if member.state.window is None and first >= 0
        ]
        if not opening:
            return {}
        at = [index for _, index in opening]
        orders = heaviest_first(before[at])
        weights = np.take_along_axis(normalised(before[at]), orders, axis=1)
        limits = np.array([self._kernels_allowed(member, now) for member, _ in opening])
        for limit in np.unique(limits).tolist():
            chosen = np.flatnonzero(limits == limit)
            # (8): q_j = (1 - xi) u_j / sum(u) + xi / m
            probabilities = bin_probabilities(weights[chosen], max(limit, 1), self.learning.exploration_rate)
            cumulated = np.cumsum(probabilities, axis=1)
            drawing = [opening[index][0] for index in chosen.tolist()]
            uniforms = np.array([member.draws[member.state.uploads_drawn] for member in drawing])
            # The sum may end below 1 by rounding: the last bin takes what is left.
            drawn_bins = np.minimum((cumulated <= uniforms[:, None]).sum(axis=1), cumulated.shape[1] - 1)
            drawn_probabilities = np.take_along_axis(probabilities, drawn_bins[:, None], axis=1)[:, 0]
            for member, order, drawn, probability in zip(
                drawing, orders[chosen].tolist(), drawn_bins.tolist(), drawn_probabilities.tolist(), strict=True
            ):
                member.state.uploads_drawn += 1
                kernels = tuple(sorted(order[drawn * limit : (drawn + 1) * limit]))
                if limit == 0:
                    self._counts["skipped"] += 1
                self._gather(member, _Window(now, self.model.versions, probability, drawn, kernels))
        return dict(zip(at, orders, strict=True))

    def _gather(self, member: _Member, window: _Window) -> None:
        member.state.window = window
        member.step_rows = self._steps.borrow(len(window.kernels))
        self._open_uploads[member.key] = member
        heapq.heappush(self._due, (window.opened_at + self.learning.upload_interval, member.key))

    def _accumulate(
        self,
        members: list[_Member],
        counts: NDArray[Any],
        labelled: NDArray[np.bool_],
        inputs: NDArray[Any],
        kernel_predictions: NDArray[Any],
        labels: NDArray[np.float64],
    ) -> None:
        """(9): delta_i += (eta / p_i) grad l_i for the kernels of the drawn bin."""
        sample_of: list[int] = []
        kernel_of: list[int] = []
        row_of: list[int] = []
        scale_of: list[float] = []
        index = 0
        has_label = labelled.tolist()
        for member, count in zip(members, counts.tolist(), strict=True):
            window = member.state.window
            if window is not None:
                held = len(window.kernels)
                scale = self.learning.learning_rate / window.probability
                for position in range(index, index + count):
                    if has_label[position]:
                        window.samples += 1
                        sample_of += [position] * held
                        kernel_of += window.kernels
                        row_of += member.step_rows
                        scale_of += [scale] * held
            index += count
        for start in range(0, len(sample_of), BLOCK_GRADIENTS):
            block = slice(start, start + BLOCK_GRADIENTS)
            samples, kernels, rows = np.array(sample_of[block]), np.array(kernel_of[block]), np.array(row_of[block])
            slopes = self.learning.loss.gradient(kernel_predictions[samples, kernels], labels[samples])
            gradients = slopes[:, None] * self.features.rows(inputs[samples], kernels)
            gradients += 2.0 * self.learning.regularisation * self.model.parameters[kernels]
            gradients *= np.array(scale_of[block])[:, None]
            if len(set(row_of[block])) < len(rows):
                rows, sum_of = np.unique(rows, return_inverse=True)
                gradients = csr_array((np.ones(len(sum_of)), (sum_of, np.arange(len(sum_of))))) @ gradients
            self._steps.numbers[rows] += gradients

    def _kernels_allowed(self, member: _Member, now: float) -> int:
        """M for an upload that begins now; its bytes leave the bucket here, so that sending can never overdraw it."""
        if member.bucket is None:
            return min(self.uplink.kernels_per_upload or self.features.kernels, int(self.features.kernels))
        allowed = member.cost.kernels_within(member.bucket.available(now), self.features.kernels)
        if allowed or self.learning.lockstep:
            member.bucket.take(member.cost.bytes_for(allowed), now)
        return allowed

    def _affords_update(self, member: _Member, now: float) -> bool:
        """Where the model waits for this client, or it for the model, it goes on only when it can send a kernel.

        To take part in a round without sending would cost bytes and teach nothing, and the bucket would never fill.
        """
        bucket = member.bucket
        return bucket is None or member.state.window is not None or bucket.available(now) >= member.cost.bytes_for(1)

    def _affordable_at(self, member: _Member) -> float | None:
        """When a client that waits only for its byte budget can go on; None: it does not wait for that."""
        bucket, per_version = member.bucket, self.learning.samples_per_version
        if not member.waiting or bucket is None or per_version is None or member.state.window is not None:
            return None
        if member.state.taken_on == self.model.versions and member.state.taken >= per_version:
            return None
        lacking = member.cost.bytes_for(1) - bucket.tokens
        # A microsecond more than it takes: times are rounded, and a tick too early would ask for another at the same time.
        return bucket.filled_at + lacking / bucket.rate + 1e-6 if lacking > 0 else None

    def _uploads_due(self, now: float) -> list[_Member]:
        """Whose upload has been open for the upload interval."""
        # Two uploads of one client that began at one time leave two equal entries.
        due: dict[tuple[int, str], _Member] = {}
        while (due_at := self._next_upload_due()) is not None and due_at <= now:
            key = heapq.heappop(self._due)[1]
            due[key] = self._open_uploads[key]
        return list(due.values())

    def _next_upload_due(self) -> float | None:
        # An upload that ended before its time, with a new version of the model, has left its entry behind.
        while self._due:
            due_at, key = self._due[0]
            member = self._open_uploads.get(key)
            window = None if member is None else member.state.window
            if window is not None and window.opened_at + self.learning.upload_interval == due_at:
                return due_at
            heapq.heappop(self._due)
        return None

    def _upload(self, members: Sequence[_Member], now: float) -> list[Send | Rejection]:
        """End these clients' uploads and send what they gathered."""
        if not members:
            return []
        rows = [row for member in members for row in member.step_rows]
        content = encode_array(np.clip(self._steps.numbers[rows], -LARGEST_STEP, LARGEST_STEP).astype(self.dtype))
        row_bytes = 2 * self.features.count * np.dtype(self.dtype).itemsize
        sends: list[Send | Rejection] = []
        start = 0
        for member in members:
            state, window = member.state, member.state.window
            del self._open_uploads[member.key]
            self._touched[member.key] = member
            state.window = None
            end = start + row_bytes * len(member.step_rows)
            steps = [content[first : first + row_bytes] for first in range(start, end, row_bytes)]
            start = end
            member.step_rows = []
            if window is None or not (steps or self.learning.lockstep):
                continue
            if member.bucket is not None:
                member.bucket.sent(member.cost.bytes_for(len(steps)), now)
            name = state.name.encode()
            state.sequence += 1
            for shard in range(self.shards):
                chosen = [index for index, kernel in enumerate(window.kernels) if kernel % self.shards == shard]
                if not chosen and not self.learning.lockstep:
                    continue
                update = Update(
                    version=VERSION,
                    fingerprint=self.fingerprint,
                    dimension=self.features.dimension,
                    client=state.name,
                    epoch=state.epoch,
                    sequence=state.sequence,
                    model_version=window.versions[shard],
                    samples=window.samples,
                    kernels=tuple([window.kernels[index] for index in chosen]),
                    steps=b"".join([steps[index] for index in chosen]),
                )
                value = UPDATE.encode(update)
                sends.append(Send("updates", name, value, partition=shard))
                self._counts["update_bytes"] += encoded_size(name, value)
            self._counts["updates"] += 1
        self._steps.give_back(rows)
        return sends

    def _member(self, key: tuple[int, str], state: _State) -> _Member:
        row_bytes = 2 * self.features.count * np.dtype(self.dtype).itemsize
        cost = UpdateCost(state.name, row_bytes, self.shards, self.learning.lockstep)
        bucket = None
        if self.uplink.bytes_per_second is not None:
            # A second of budget, or one kernel's update where that is more: less could never send anything.
            depth = max(self.uplink.bytes_per_second, float(cost.bytes_for(1)))
            bucket = TokenBucket(self.uplink.bytes_per_second, depth, min(state.tokens, depth), state.filled_at)
            self._counts["update_budget_bytes"] += depth
        (row,) = self._personal.borrow(1)
        member = _Member(state, key, row, UniformSequence(self.seed, "bin", state.name), bucket, cost)
        self._members[key] = member
        return member

    def _remember_waiting(self, member: _Member, taken: int) -> None:
        """Forget the slots of the samples just taken and give each one that stays behind a slot: one write a waiting sample."""
        partition, name = member.key[0], member.state.name.encode()
        for slot in range(member.first_slot, member.first_slot + min(taken, member.slots_written)):
            self._changed[partition, _waiting_key(name, slot)] = None
        member.first_slot += taken
        member.slots_written = max(0, member.slots_written - taken)
        for index in range(member.slots_written, len(member.waiting)):
            sample, key = member.waiting[index]
            value = msgspec.msgpack.encode((sample.id, sample.features, sample.label, key))
            self._changed[partition, _waiting_key(name, member.first_slot + index)] = value
        member.slots_written = len(member.waiting)

    def changed_state(self) -> Iterable[StateChange]:
        encode = msgspec.msgpack.Encoder().encode
        numbers = encode_array(self._personal.numbers[[member.row for member in self._touched.values()]])
        width = self._personal.numbers.shape[1] * 8
        for place, (key, member) in enumerate(self._touched.items()):
            state = member.state
            if member.bucket is not None:
                state.tokens, state.filled_at = member.bucket.tokens, member.bucket.filled_at
            state.numbers = numbers[place * width : (place + 1) * width]
            if state.window is not None:
                state.window.steps = encode_array(self._steps.numbers[member.step_rows])
            yield StateChange("state", key[0], b"client/" + state.name.encode(), encode(state))
            state.numbers = b""
        self._touched = {}
        for (partition, state_key), value in self._changed.items():
            yield StateChange("state", partition, state_key, value)
        self._changed = {}

    def restore(self, change: StateChange) -> None:
        kind, _, rest = change.key.partition(b"/")
        value = change.value or b""
        if kind == b"client":
            self._restore_client((change.partition, rest.decode()), msgspec.msgpack.decode(value, type=_State))
        else:
            self._restore_waiting((change.partition, rest[8:].decode()), int.from_bytes(rest[:8], "big"), value)

    def _restore_client(self, key: tuple[int, str], state: _State) -> None:
        # Its waiting samples may have come first.
        member = self._members.get(key) or self._member(key, state)
        member.state = state
        self._personal.numbers[member.row] = decode_array(
            state.numbers, np.float64, (self._personal.numbers.shape[1],), "the numbers of a client"
        )
        state.numbers = b""
        if member.bucket is not None:
            member.bucket.tokens, member.bucket.filled_at = min(state.tokens, member.bucket.depth), state.filled_at
        if state.window is not None:
            self._gather(member, state.window)
            shape = (len(member.step_rows), 2 * self.features.count)
            self._steps.numbers[member.step_rows] = decode_array(state.window.steps, np.float64, shape, "the steps of a client")

    def _restore_waiting(self, key: tuple[int, str], slot: int, value: bytes) -> None:
        # A compacted topic keeps the last record of each slot, in the order written: slots come and go first in, first out.
        member = self._members.get(key) or self._member(key, _State(key[1], epoch=0))
        if not member.waiting:
            member.first_slot = slot
        identifier, features, label, record_key = msgspec.msgpack.decode(
            value, type=tuple[str, tuple[float, ...], float | None, bytes | None]
        )
        member.waiting.append((Sample(key[1], identifier, features, label), record_key))
        member.slots_written += 1
        self._waiting[key[0]] += 1
        self._ready[key] = member

    @property
    def predicted(self) -> int:
        """Samples predicted by this object since it was made."""
        return int(self._counts["samples"])

    def measure(self) -> Iterable[Measurement]:
        labels, regret = self._sums()[:, 1].sum(), self.total_regret()
        yield Measurement("samples", "counter", "Samples predicted", self._counts["samples"])
        yield Measurement("predictions", "counter", "Predictions published", self._counts["samples"])
        yield Measurement("labels", "counter", "Labels learnt from", self._counts["labels"])
        yield Measurement("unlabelled_samples", "counter", "Samples that came without a label", self._counts["unlabelled"])
        yield Measurement("clients", "gauge", "Clients on this worker", len(self._members))
        yield Measurement("waiting_samples", "gauge", "Samples that wait for the model", sum(self._waiting.values()))
        yield Measurement(
            "regret", "gauge", "Loss of the predictions minus loss of each client's best kernel, summed over clients", regret
        )
        yield Measurement(
            "regret_per_sample", "gauge", "Regret divided by the labels learnt from", regret / labels if labels else 0.0
        )
        yield Measurement("mse", "gauge", "Mean squared error of all predictions, on the learning scale", self.mean_squared_error())
        windowed = float(np.mean(self._recent)) if self._recent else 0.0
        yield Measurement(
            "mse_windowed", "gauge", "Mean squared error of the last 1000 predictions, on the learning scale", windowed
        )
        best = int(np.argmin(self._kernel_losses().sum(axis=0)))
        yield Measurement("best_kernel", "gauge", "Number of the kernel with the smallest loss over all clients", best)
        yield Measurement("model_version", "gauge", "Version of the model in use", max(self.model.versions))
        yield Measurement(
            "update_bytes", "counter", "Encoded bytes of updates, key and framing included", self._counts["update_bytes"]
        )
        budget = self._counts["update_budget_bytes"]
        yield Measurement("update_budget_bytes", "counter", "Bytes that the budget has allowed so far; 0: no budget", budget)
        yield Measurement("updates", "counter", "Uploads sent", self._counts["updates"])
        yield Measurement("skipped_updates", "counter", "Uploads not made", self._counts["skipped"], (("reason", "budget"),))

    def total_regret(self) -> float:
        """R = sum_t L(f, y) - min_i sum_t L(f_i, y), summed over clients   (POF-MKL, eq. 11)."""
        return float((self._sums()[:, 3] - self._kernel_losses().min(axis=1)).sum())

    def regret(self) -> dict[str, float]:
        """Each client's regret (11), without the regularisation term."""
        regrets = self._sums()[:, 3] - self._kernel_losses().min(axis=1)
        return dict(zip((name for _, name in self._members), regrets.tolist(), strict=True))

    def mean_squared_error(self) -> float:
        _, labels, squared_errors, _ = self._sums().sum(axis=0).tolist()
        return squared_errors / labels if labels else 0.0

    def _sums(self) -> NDArray[np.float64]:
        """Samples, labels, squared errors and losses of every client, added up: (clients, 4)."""
        return self._personal.numbers[[member.row for member in self._members.values()], -4:]

    def _kernel_losses(self) -> NDArray[np.float64]:
        """What each kernel alone would have lost: (clients, kernels)."""
        return self._personal.numbers[[member.row for member in self._members.values()], self.features.kernels : -4]

    def _trace(
        self,
        members: list[_Member],
        starts: list[int],
        counts: NDArray[Any],
        labelled: NDArray[np.bool_],
        inputs: NDArray[Any],
        labels: NDArray[np.float64],
        predictions: NDArray[np.float64],
        kernel_predictions: NDArray[Any],
        orders: dict[int, NDArray[Any]],
        after: NDArray[np.float64],
    ) -> None:
        for member, start, count in zip(members, starts, counts.tolist(), strict=True):
            for index in range(start, start + count):
                window = member.state.window
                if not labelled[index] or window is None or self.trace is None:
                    continue
                sent = np.zeros(self.features.kernels, dtype=np.bool_)
                sent[list(window.kernels)] = True
                self.trace(
                    StepTrace(
                        client=member.state.name,
                        inputs=inputs[index],
                        label=float(labels[index]),
                        prediction=float(predictions[index]),
                        kernel_predictions=kernel_predictions[index],
                        kernel_order=orders.get(index, np.arange(self.features.kernels)),
                        drawn_bin=window.drawn_bin,
                        bin_probability=window.probability,
                        sent=sent,
                        log_weights=after[index] - after[index].max(),
                    )
                )


def _waiting_key(name: bytes, slot: int) -> bytes:
    return b"waiting/" + slot.to_bytes(8, "big") + name
