"""The clients of POF-MKL: personal kernel weights over shared parameters, every prediction before its label.

Ghari and Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022:
equations (4), (6) to (9), Algorithm 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
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

# Gradients are computed for this many samples at a time: those of a sample take up to 80 kB, and a poll has thousands of samples.
BLOCK_SAMPLES = 256


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


class _Client(msgspec.Struct, array_like=True):
    """The scalars of one client, remembered as one value."""

    name: str
    epoch: int
    sequence: int = 0
    samples: int = 0
    labels: int = 0
    squared_error: float = 0.0
    loss: float = 0.0
    taken: int = 0
    taken_on: tuple[int, ...] | None = None
    uploads_drawn: int = 0
    tokens: float = 0.0
    filled_at: float = 0.0


class _Window(msgspec.Struct, array_like=True):
    """An upload being gathered: the bin drawn before its labels, and the steps added up so far."""

    opened_at: float
    versions: tuple[int, ...]
    probability: float
    drawn_bin: int
    kernels: tuple[int, ...]
    samples: int
    steps: bytes


@dataclass
class _Member:
    state: _Client
    partition: int
    row: int
    draws: UniformSequence
    bucket: TokenBucket | None
    cost: UpdateCost
    waiting: deque[tuple[Sample, bytes | None]] = field(default_factory=deque)
    first_slot: int = 0
    slots_written: int = 0
    window: _Window | None = None
    steps: NDArray[np.float64] | None = None
    window_written: bool = False


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
        self.model = ModelTable(
            features.kernels, features.count, features.dimension, shards, fingerprint, self.dtype
        )
        self._members: dict[tuple[int, str], _Member] = {}
        self._waiting: dict[int, int] = {}
        self._ready: dict[tuple[int, str], None] = {}
        self._windows: dict[tuple[int, str], None] = {}
        self._changed: dict[tuple[int, bytes], bytes | None] = {}
        self._touched: dict[tuple[int, str], None] = {}
        self._log_weights = np.zeros((0, features.kernels))
        self._kernel_losses = np.zeros((0, features.kernels))
        self._free: list[int] = []
        self._counts = dict.fromkeys(
            ("samples", "labels", "unlabelled", "update_bytes", "update_budget_bytes", "updates", "skipped"), 0.0
        )
        self._recent: deque[float] = deque(maxlen=1000)
        self._last_now: float | None = None

    @property
    def wake_at(self) -> float | None:
        times = [self._members[key].window.opened_at + self.learning.upload_interval for key in self._windows]  # type: ignore[union-attr]
        times += [when for when in (self._affordable_at(self._members[key]) for key in self._ready) if when is not None]
        return min(times, default=None)

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
            self._free.append(self._members.pop(key).row)
            for table in (self._ready, self._windows, self._touched):
                table.pop(key, None)
        self._changed = {key: value for key, value in self._changed.items() if key[0] != partition}

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        sends: list[Send | Rejection] = []
        if self._last_now is not None and self.uplink.bytes_per_second is not None:
            passed = max(0.0, now - self._last_now)
            self._counts["update_budget_bytes"] += passed * self.uplink.bytes_per_second * len(self._members)
        self._last_now = now
        for received in batch:
            try:
                if received.channel == "model":
                    self.model.apply(received.message, received.partition)
                else:
                    self._queue(received, now)
            except PeerError as error:
                sends.append(Rejection(received, error))
        if any(received.channel == "model" for received in batch):
            self._ready.update((key, None) for key, member in self._members.items() if member.waiting)
        for key in list(self._windows):
            window = self._members[key].window
            if window is not None and (
                window.versions != self.model.versions or now >= window.opened_at + self.learning.upload_interval
            ):
                sends += self._upload(key, now)
        sends += self._advance(now)
        return sends

    def _queue(self, received: Received, now: float) -> None:
        sample: Sample = received.message
        if self.learning.loss is LOGISTIC and sample.label not in (None, 0.0, 1.0):
            raise PeerError("label", f"label {sample.label}, 0 or 1 is expected with the logistic loss (after samples.label_range)")
        key = (received.partition, sample.client)
        member = self._members.get(key)
        if member is None:
            if len(self._members) >= self.clients:
                raise PeerError(
                    "too_many_clients", f"{sample.client!r} would be client {self.clients + 1}: raise federation.clients"
                )
            # A life of the client's state is told from an earlier one that was lost by when it began.
            member = self._member(key, _Client(sample.client, epoch=int(now * 1e6), tokens=float("inf"), filled_at=now))
            # Even if its first sample has to wait: the epoch must be the same after a restart.
            self._touched[key] = None
        member.waiting.append((sample, received.record.key))
        self._waiting[received.partition] += 1
        self._ready[key] = None

    def _advance(self, now: float) -> list[Send | Rejection]:
        """Take every sample that its client may take now."""
        members: list[_Member] = []
        samples: list[tuple[Sample, bytes | None]] = []
        starts: list[int] = []
        for key in self._ready:
            member = self._members[key]
            taken = self._take(member, now)
            if taken:
                members.append(member)
                starts.append(len(samples))
                samples += taken
            if member.waiting or member.slots_written:
                self._remember_waiting(member, len(taken))
            else:
                member.first_slot += len(taken)
        self._ready = {key: None for key in self._ready if self._affordable_at(self._members[key]) is not None}
        if not samples:
            return []
        return self._learn(members, samples, starts, now)

    def _take(self, member: _Member, now: float) -> list[tuple[Sample, bytes | None]]:
        taken: list[tuple[Sample, bytes | None]] = []
        state, waiting = member.state, member.waiting
        if state.taken_on != self.model.versions:
            # In lockstep a round is one version of every shard: between two of them the model is of neither round.
            settled = not self.learning.lockstep or len(set(self.model.versions)) == 1
            allowance = self.learning.samples_per_version if settled else 0
        else:
            allowance = None if self.learning.samples_per_version is None else self.learning.samples_per_version - state.taken
        if allowance and not self._affords_update(member, now):
            allowance = 0
        while waiting:
            if waiting[0][0].label is not None:
                if allowance is not None:
                    if allowance == 0:
                        break
                    allowance -= 1
                if state.taken_on != self.model.versions:
                    state.taken_on, state.taken = self.model.versions, 0
                state.taken += 1
            taken.append(waiting.popleft())
        self._waiting[member.partition] -= len(taken)
        return taken

    def _learn(
        self, members: list[_Member], samples: list[tuple[Sample, bytes | None]], starts: list[int], now: float
    ) -> list[Send | Rejection]:
        learning, theta = self.learning, self.model.parameters
        rows = np.array([member.row for member in members])
        counts = np.diff([*starts, len(samples)])
        inputs = np.array([sample.features for sample, _ in samples], dtype=self.dtype)
        labelled = np.array([sample.label is not None for sample, _ in samples])
        labels = np.array([0.0 if sample.label is None else sample.label for sample, _ in samples])

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
        before = np.empty_like(steps)
        before[starts] = self._log_weights[rows]
        for first in np.flatnonzero(counts > 1).tolist():
            start, end = starts[first], starts[first] + int(counts[first])
            before[start + 1 : end] = before[start] + np.cumsum(steps[start : end - 1], axis=0)
        weights = normalised(before)
        # (6): f = sum_i w_bar_i f_i
        predictions = np.einsum("bn,bn->b", weights, kernel_predictions, dtype=np.float64)

        # With the logistic loss f is the log-odds of label 1, and what a user reads is its probability.
        published = expit(predictions) if learning.loss is LOGISTIC else predictions
        sends = self._predict(samples, published)
        orders = self._open_windows(members, starts, counts, labelled, before, now)
        self._accumulate(members, counts, labelled, inputs, kernel_predictions, labels)

        last = np.array(starts) + counts - 1
        self._log_weights[rows] = before[last] + steps[last]
        self._kernel_losses[rows] += np.add.reduceat(plain_losses, starts, axis=0)
        errors = np.where(labelled, np.square(published - labels), 0.0)
        own_losses = learning.loss.value(predictions, labels) * labelled
        self._recent.extend(errors[labelled])
        for member, squared, loss, count, taken in zip(
            members,
            np.add.reduceat(errors, starts).tolist(),
            np.add.reduceat(own_losses, starts).tolist(),
            counts.tolist(),
            np.add.reduceat(labelled.astype(np.int64), starts).tolist(),
            strict=True,
        ):
            state = member.state
            state.samples += count
            state.labels += taken
            state.squared_error += squared
            state.loss += loss
            self._touched[member.partition, state.name] = None
        self._counts["samples"] += len(samples)
        self._counts["labels"] += int(labelled.sum())
        self._counts["unlabelled"] += len(samples) - int(labelled.sum())
        if self.trace is not None:
            self._trace(members, starts, counts, labelled, inputs, labels, predictions, kernel_predictions, orders, before + steps)
        if learning.samples_per_version is not None:
            for member in members:
                # Nothing more can join this upload before the model changes, and the model may wait for it.
                if member.window is not None and member.state.taken >= learning.samples_per_version:
                    sends += self._upload((member.partition, member.state.name), now)
        return sends

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
        starts: list[int],
        counts: NDArray[Any],
        labelled: NDArray[np.bool_],
        before: NDArray[np.float64],
        now: float,
    ) -> dict[int, NDArray[Any]]:
        """Draw the bin of every upload that begins with this batch, from the weights before its first label (Algorithm 1)."""
        opening: list[tuple[_Member, int]] = []
        for member, start, count in zip(members, starts, counts.tolist(), strict=True):
            if member.window is None and labelled[start : start + count].any():
                opening.append((member, start + int(labelled[start : start + count].argmax())))
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
                member.window = _Window(now, self.model.versions, probability, drawn, kernels, 0, b"")
                member.steps = np.zeros((len(kernels), 2 * self.features.count))
                self._windows[member.partition, member.state.name] = None
        return dict(zip(at, orders, strict=True))

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
        scale_of: list[float] = []
        ends: list[int] = []
        gathering: list[_Member] = []
        index = 0
        has_label = labelled.tolist()
        for member, count in zip(members, counts.tolist(), strict=True):
            window = member.window
            if window is not None:
                held = len(window.kernels)
                scale = self.learning.learning_rate / window.probability
                for position in range(index, index + count):
                    if has_label[position]:
                        window.samples += 1
                        sample_of += [position] * held
                        kernel_of += window.kernels
                        scale_of += [scale] * held
                        gathering.append(member)
                        ends.append(len(sample_of))
            index += count
        start = 0
        for first in range(0, len(ends), BLOCK_SAMPLES):
            block = ends[first : first + BLOCK_SAMPLES]
            rows = slice(start, block[-1])
            samples, kernels = np.array(sample_of[rows], dtype=np.intp), np.array(kernel_of[rows], dtype=np.intp)
            slopes = self.learning.loss.gradient(kernel_predictions[samples, kernels], labels[samples])
            gradients = slopes[:, None] * self.features.rows(inputs[samples], kernels)
            gradients += 2.0 * self.learning.regularisation * self.model.parameters[kernels]
            gradients *= np.array(scale_of[rows])[:, None]
            offset = start
            for member, end in zip(gathering[first : first + BLOCK_SAMPLES], block, strict=True):
                if member.steps is not None:
                    member.steps += gradients[start - offset : end - offset]
                start = end

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
        return bucket is None or member.window is not None or bucket.available(now) >= member.cost.bytes_for(1)

    def _affordable_at(self, member: _Member) -> float | None:
        """When a client that waits only for its byte budget can go on; None: it does not wait for that."""
        bucket, per_version = member.bucket, self.learning.samples_per_version
        if not member.waiting or bucket is None or per_version is None or member.window is not None:
            return None
        if member.state.taken_on == self.model.versions and member.state.taken >= per_version:
            return None
        lacking = member.cost.bytes_for(1) - bucket.tokens
        return bucket.filled_at + lacking / bucket.rate if lacking > 0 else None

    def _upload(self, key: tuple[int, str], now: float) -> list[Send]:
        member = self._members[key]
        window, steps, state = member.window, member.steps, member.state
        del self._windows[key]
        member.window = member.steps = None
        self._touched[key] = None
        if window is None or steps is None or not (window.kernels or self.learning.lockstep):
            return []
        if member.bucket is not None:
            member.bucket.sent(member.cost.bytes_for(len(window.kernels)), now)
        name = state.name.encode()
        state.sequence += 1
        sends = []
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
                kernels=tuple(window.kernels[index] for index in chosen),
                steps=encode_array(np.clip(steps[chosen], -LARGEST_STEP, LARGEST_STEP).astype(self.dtype)),
            )
            sends.append(Send("updates", name, UPDATE.encode(update), partition=shard))
            self._counts["update_bytes"] += encoded_size(name, sends[-1].value)
        self._counts["updates"] += 1
        return sends

    def _member(self, key: tuple[int, str], state: _Client) -> _Member:
        if not self._free:
            more = max(64, len(self._log_weights))
            self._free = list(range(len(self._log_weights) + more - 1, len(self._log_weights) - 1, -1))
            self._log_weights = np.concatenate([self._log_weights, np.zeros((more, self.features.kernels))])
            self._kernel_losses = np.concatenate([self._kernel_losses, np.zeros((more, self.features.kernels))])
        row = self._free.pop()
        self._log_weights[row] = 0.0
        self._kernel_losses[row] = 0.0
        row_bytes = 2 * self.features.count * np.dtype(self.dtype).itemsize
        cost = UpdateCost(state.name, row_bytes, self.shards, self.learning.lockstep)
        bucket = None
        if self.uplink.bytes_per_second is not None:
            # A second of budget, or one kernel's update where that is more: less could never send anything.
            depth = max(self.uplink.bytes_per_second, float(cost.bytes_for(1)))
            bucket = TokenBucket(self.uplink.bytes_per_second, depth, min(state.tokens, depth), state.filled_at)
            self._counts["update_budget_bytes"] += depth
        member = _Member(state, key[0], row, UniformSequence(self.seed, "bin", state.name), bucket, cost)
        self._members[key] = member
        return member

    def _remember_waiting(self, member: _Member, taken: int) -> None:
        """Forget the slots of the samples just taken and give each one that stays behind a slot: one write a waiting sample."""
        name = member.state.name.encode()
        for slot in range(member.first_slot, member.first_slot + min(taken, member.slots_written)):
            self._changed[member.partition, _waiting_key(name, slot)] = None
        member.first_slot += taken
        member.slots_written = max(0, member.slots_written - taken)
        for index in range(member.slots_written, len(member.waiting)):
            sample, key = member.waiting[index]
            value = msgspec.msgpack.encode((sample.id, sample.features, sample.label, key))
            self._changed[member.partition, _waiting_key(name, member.first_slot + index)] = value
        member.slots_written = len(member.waiting)

    def changed_state(self) -> Iterable[StateChange]:
        for key in self._touched:
            member = self._members[key]
            name = member.state.name.encode()
            if member.bucket is not None:
                member.state.tokens, member.state.filled_at = member.bucket.tokens, member.bucket.filled_at
            yield StateChange("state", member.partition, b"client/" + name, msgspec.msgpack.encode(member.state))
            weights = encode_array(np.stack([self._log_weights[member.row], self._kernel_losses[member.row]]))
            yield StateChange("state", member.partition, b"weights/" + name, weights)
            if member.window is not None and member.steps is not None:
                member.window.steps = encode_array(member.steps)
                yield StateChange("state", member.partition, b"window/" + name, msgspec.msgpack.encode(member.window))
                member.window_written = True
            elif member.window_written:
                yield StateChange("state", member.partition, b"window/" + name, None)
                member.window_written = False
        self._touched = {}
        for (partition, state_key), value in self._changed.items():
            yield StateChange("state", partition, state_key, value)
        self._changed = {}

    def restore(self, change: StateChange) -> None:
        kind, _, rest = change.key.partition(b"/")
        slot = int.from_bytes(rest[:8], "big") if kind == b"waiting" else 0
        name = (rest[8:] if kind == b"waiting" else rest).decode()
        key = (change.partition, name)
        member = self._members.get(key) or self._member(key, _Client(name, epoch=0))
        if kind == b"client" and change.value is not None:
            member.state = msgspec.msgpack.decode(change.value, type=_Client)
            if member.bucket is not None:
                member.bucket.tokens = min(member.state.tokens, member.bucket.depth)
                member.bucket.filled_at = member.state.filled_at
        elif kind == b"weights" and change.value is not None:
            stored = decode_array(change.value, np.float64, (2, self.features.kernels), "weights")
            self._log_weights[member.row], self._kernel_losses[member.row] = stored
        elif kind == b"window":
            self._restore_window(key, member, change.value)
        elif kind == b"waiting":
            self._restore_waiting(key, member, slot, change.value)

    def _restore_window(self, key: tuple[int, str], member: _Member, value: bytes | None) -> None:
        member.window_written = value is not None
        if value is None:
            member.window = member.steps = None
            self._windows.pop(key, None)
        else:
            member.window = msgspec.msgpack.decode(value, type=_Window)
            shape = (len(member.window.kernels), 2 * self.features.count)
            member.steps = decode_array(member.window.steps, np.float64, shape, "steps").copy()
            self._windows[key] = None

    def _restore_waiting(self, key: tuple[int, str], member: _Member, slot: int, value: bytes | None) -> None:
        # A compacted topic keeps the last record of each slot, in the order written: slots come and go first in, first out.
        if value is None:
            if member.waiting and slot == member.first_slot:
                member.waiting.popleft()
                member.first_slot += 1
                member.slots_written -= 1
                self._waiting[key[0]] -= 1
            return
        if not member.waiting:
            member.first_slot = slot
        identifier, features, label, record_key = msgspec.msgpack.decode(
            value, type=tuple[str, tuple[float, ...], float | None, bytes | None]
        )
        member.waiting.append((Sample(key[1], identifier, features, label), record_key))
        member.slots_written += 1
        self._waiting[key[0]] += 1
        self._ready[key] = None

    @property
    def predicted(self) -> int:
        """Samples predicted by this object since it was made."""
        return int(self._counts["samples"])

    def measure(self) -> Iterable[Measurement]:
        states = [member.state for member in self._members.values()]
        labels = sum(state.labels for state in states)
        regret = self.total_regret()
        yield Measurement("samples", "counter", "Samples predicted", self._counts["samples"])
        yield Measurement("predictions", "counter", "Predictions published", self._counts["samples"])
        yield Measurement("labels", "counter", "Labels learnt from", self._counts["labels"])
        yield Measurement("unlabelled_samples", "counter", "Samples that came without a label", self._counts["unlabelled"])
        yield Measurement("clients", "gauge", "Clients on this worker", len(states))
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
        rows = [member.row for member in self._members.values() if member.state.labels]
        best = int(np.argmin(self._kernel_losses[rows].sum(axis=0))) if rows else 0
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
        return sum(self.regret().values())

    def regret(self) -> dict[str, float]:
        """Each client's regret (11), without the regularisation term."""
        return {m.state.name: m.state.loss - float(self._kernel_losses[m.row].min()) for m in self._members.values()}

    def mean_squared_error(self) -> float:
        labels = sum(member.state.labels for member in self._members.values())
        return sum(member.state.squared_error for member in self._members.values()) / labels if labels else 0.0

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
                if not labelled[index] or member.window is None or self.trace is None:
                    continue
                sent = np.zeros(self.features.kernels, dtype=np.bool_)
                sent[list(member.window.kernels)] = True
                self.trace(
                    StepTrace(
                        client=member.state.name,
                        inputs=inputs[index],
                        label=float(labels[index]),
                        prediction=float(predictions[index]),
                        kernel_predictions=kernel_predictions[index],
                        kernel_order=orders.get(index, np.arange(self.features.kernels)),
                        drawn_bin=member.window.drawn_bin,
                        bin_probability=member.window.probability,
                        sent=sent,
                        log_weights=after[index] - after[index].max(),
                    )
                )


def _waiting_key(name: bytes, slot: int) -> bytes:
    return b"waiting/" + slot.to_bytes(8, "big") + name
