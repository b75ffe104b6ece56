"""The clients of POF-MKL: what they say and when; how they learn is their learner's.

Ghari and Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022: Algorithm 1, equation (8).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from streamfl.input_watch import InputWatch
from streamfl.join import JoinKey, LabelJoin, Pair
from streamfl.kernels import LOGISTIC
from streamfl.kernels.log_weights import bin_probabilities, heaviest_first, normalised
from streamfl.moments import Moments
from streamfl.pofmkl.agreement import Agreement
from streamfl.pofmkl.bandwidth import TokenBucket, UpdateCost
from streamfl.pofmkl.learner import Batch, Learner, Taken
from streamfl.pofmkl.live_challengers import WINDOW, LiveChallengers, classification_measurements, recent_arrays
from streamfl.pofmkl.messages import (
    LARGEST_STEP,
    UPDATE,
    KernelParameters,
    Prediction,
    ServerSettings,
    ShardVersion,
    SignedVersion,
    Update,
)
from streamfl.pofmkl.model import ModelTable
from streamfl.pofmkl.restored import check_inputs, check_label
from streamfl.pofmkl.rows import Rows
from streamfl.pofmkl.signed_model import ModelSigning
from streamfl.restored import Time, check_name
from streamfl.role import Measurement, Notice, PeerError, Received, Record, Rejection, Send, StateChange
from streamfl.samples import LABEL_RANGE, Label, Sample
from streamfl.seeding import UniformSequence
from streamfl.sequences import epoch_at, is_to_come
from streamfl.silence import Silence
from streamfl.wire import VERSION, Count, Name, decode_array, encode_array, encoded_size

__all__ = ["Pace", "PofmklClient", "StepTrace", "Uplink"]

# So many predictions at a time are looked at for whether most were kept within what labels can be.
JUDGED_AT_ONCE = 50
USELESS = (
    "most of the last predictions were more than a label range beyond samples.label_range and were kept there: the model diverged, "
    "or somebody else wrote updates. Look at samples.label_range and learning.learning_rate, and who may write to the updates; a "
    "model that does not recover begins anew under another federation.name"
)
NO_MODEL = (
    "no server answers: updates go out, and no model newer than version {} has come for {:g} s. Start the pofmkl-server, or look "
    "at what its log says of this client's updates"
)
# Without a budget there is no end of tokens.
Tokens = Annotated[float, msgspec.Meta(ge=0)]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
# Steps are computed this many at a time: with all kernels in a bin, the samples of a poll have hundreds of thousands.
BLOCK_STEPS = 1024
# When a client was seen is remembered so finely: each step of it is a record of the changelog.
STEPS_OF_EXPIRY = 64


@dataclass(frozen=True)
class Pace:
    """How far a client runs ahead of the model.

    samples_per_version: how many labelled samples a client may take on one version of the model: 1 in lockstep, n when bounded,
    None when asynchronous. upload_interval: seconds after which an upload without a new model is sent.
    """

    lockstep: bool = True
    samples_per_version: int | None = 1
    upload_interval: float = 1.0


@dataclass(frozen=True)
class Uplink:
    """What a client may send: ``kernels_per_upload`` M, or as many as ``bytes_per_second`` allow when the upload begins.

    exploration_rate xi in [0, 1]: the share of the bin's draw that is uniform.
    """

    kernels_per_upload: int | None = 1
    bytes_per_second: float | None = None
    exploration_rate: float = 1.0


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
    """What is remembered of an upload while it is gathered: the bin drawn before its labels, and the steps added up so far."""

    opened_at: Time
    versions: tuple[Count, ...]
    probability: Probability = 1.0
    drawn_bin: Count = 0
    kernels: tuple[int, ...] = ()
    samples: Count = 0
    steps: bytes = b""


class _State(msgspec.Struct, array_like=True):
    """What is remembered of one client, as one value. ``numbers``: its row of personal numbers.

    seen_at: the time that the samples of its partition had come to with its latest, in coarse steps.
    """

    name: str
    epoch: Count
    sequence: Count = 0
    taken: Count = 0
    taken_on: tuple[Count, ...] | None = None
    uploads_drawn: Count = 0
    tokens: Tokens = 0.0
    filled_at: Time = 0.0
    window: _Window | None = None
    numbers: bytes = b""
    seen_at: Time = 0.0


@dataclass(slots=True)
class _Member:
    state: _State
    key: tuple[int, str]
    row: int
    draws: UniformSequence
    bucket: TokenBucket | None
    cost: UpdateCost
    waiting: deque[tuple[Sample, bytes | None]] = field(default_factory=deque)
    joined: deque[Pair] = field(default_factory=deque)
    first_slot: int = 0
    slots_written: int = 0


@dataclass(slots=True, eq=False)
class _Upload:
    """An upload from its first label until it is sent. kernels_allowed: M. step_rows: where its kernels' steps are added up."""

    member: _Member
    window: _Window
    kernels_allowed: int = 0
    uniform: float = 0.0
    step_rows: list[int] = field(default_factory=list)


# A sample, its record's key, and the upload that its steps are for, if it has a label.
_Taking = tuple[Sample, bytes | None, _Upload | None]
_Arrived = tuple[Sample | Label, bytes | None]


class PofmklClient:
    """Predicts every sample, learns from its label, and sends the server no more than it may.

    One object serves all clients of its partitions: the samples of a poll go to the learner together. ``encode_prediction``
    makes the user's record; ``original`` takes a prediction or label back to the label's own unit. A client's samples are taken in
    order; those that have to wait for the model are remembered, ``waiting_limit`` a partition and one poll more at most. An upload
    gathers all samples that come while it is open if the learner's steps may be added up, and is one sample's otherwise. At most
    ``clients`` are remembered; one without a sample for ``client_expiry`` seconds makes room for another, by the newest time that
    the samples of any of the partitions have come to.
    ``challengers`` learn beside it and are measured; nothing else depends on them.

    With a ``join``, labels come on a channel of their own: a sample is predicted as soon as it is there, and the pace is that of
    its label.

    Where members have keys: ``signing`` says which versions of the model are the server's, ``seal_bytes`` what a seal adds to an
    update.
    When updates go out, or samples wait for the model, and no new version of it comes for ``patience`` seconds, the role is in
    trouble.
    """

    def __init__(
        self,
        *,
        learner: Learner,
        pace: Pace,
        uplink: Uplink,
        seed: int,
        clients: int,
        client_expiry: float = 86_400.0,
        shards: int = 1,
        fingerprint: int = 0,
        encode_prediction: Callable[[Prediction], bytes] = msgspec.json.encode,
        original: Callable[[float], float] = float,
        waiting_limit: int = 10_000,
        patience: float = math.inf,
        trace: Callable[[StepTrace], None] | None = None,
        challengers: LiveChallengers | None = None,
        join: LabelJoin | None = None,
        signing: ModelSigning | None = None,
        seal_bytes: int = 0,
        agreement: Agreement | None = None,
        watch: InputWatch | None = None,
    ) -> None:
        self.learner = learner
        self.pace = pace
        self.uplink = uplink
        self.seed = seed
        self.clients = clients
        self.client_expiry = client_expiry
        self.shards = shards
        self.fingerprint = fingerprint
        self.encode_prediction = encode_prediction
        self.original = original
        self.waiting_limit = waiting_limit
        self.trace = trace
        self.challengers = challengers
        self.join = join
        self.seal_bytes = seal_bytes
        self.agreement = agreement or Agreement({})
        self.watch = watch or InputWatch(None, LABEL_RANGE, (0.0, 1.0), join is not None, clients)
        self.model = ModelTable(
            learner.kernels, learner.row_length, learner.dimension, shards, fingerprint, learner.dtype, signing
        )
        self._members: dict[tuple[int, str], _Member] = {}
        self._waiting: dict[int, int] = {}
        # The time that each partition's samples have come to. Idleness is measured by the latest of these and not by the clock:
        # nobody is idle because the worker was away, and a partition that falls silent keeps no seats.
        self._reached: dict[int, float] = {}
        # Times at which nobody made room in this batch: strangers may ask for a seat with every sample.
        self._full: set[float] = set()
        self._ready: dict[tuple[int, str], _Member] = {}
        self._open_uploads: dict[tuple[int, str], _Upload] = {}
        self._due: list[tuple[float, tuple[int, str]]] = []
        self._touched: dict[tuple[int, str], _Member] = {}
        self._changed: dict[tuple[int, bytes], bytes | None] = {}
        self._forgotten: dict[tuple[int, bytes], None] = {}
        self._steps = Rows(learner.row_length)
        self._row_bytes = learner.row_length * np.dtype(learner.dtype).itemsize
        self._counts = dict.fromkeys(
            ("samples", "labels", "unlabelled", "update_bytes", "update_budget_bytes", "updates", "skipped", "expired"), 0.0
        )
        self._recent: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._last_now: float | None = None
        self._model_silence = Silence(patience)
        # Updates counted when the model last changed.
        self._updates_answered = 0.0
        self._moments = Moments()
        self._told_bounded = 0
        # Predictions, and those of them that were bounded, when they were judged last; and what was found.
        self._judged, self._useless = (0, 0), False

    @property
    def wake_at(self) -> float | None:
        times = [when for when in map(self._affordable_at, self._ready.values()) if when is not None]
        due = (self._next_upload_due(), None if self.join is None else self.join.wake_at, self._model_silence.wake_at)
        return min([*times, *(when for when in due if when is not None)], default=None)

    @property
    def full(self) -> Collection[int]:
        return [partition for partition, waiting in self._waiting.items() if waiting >= self.waiting_limit]

    @property
    def prompt(self) -> bool:
        return self.pace.lockstep

    @property
    def trouble(self) -> str | None:
        useless = USELESS if self._useless else None
        return self.agreement.trouble or self._model_trouble or useless or self.watch.trouble(self._ever_learnt)

    @property
    def _model_trouble(self) -> str | None:
        if self.model.trouble is not None:
            return f"the model is not in use as it is published: {self.model.trouble}"
        if not self.pace.lockstep and any(self.model.lockstep):
            return (
                'learning.staleness = "lockstep" at the server and not here: most of what is learnt here comes too late and is '
                "ignored; set the same at both"
            )
        silence = self._model_silence
        return NO_MODEL.format(max(self.model.versions), silence.patience) if silence.overdue else None

    def notices(self) -> Iterable[Notice]:
        yield from self.agreement.notices()
        yield from self.watch.notices(self._ever_learnt)
        if self.join is not None:
            yield from self.join.notices()
        bounded = self.learner.bounded - self._told_bounded
        self._told_bounded = self.learner.bounded
        if bounded:
            yield Notice(
                "bounded_predictions",
                f"{bounded} predictions were more than a label range beyond samples.label_range and were kept there: the model "
                "diverged, the labels are not in that range, or somebody else writes into the model topic",
            )

    def _ever_learnt(self) -> bool:
        return bool(self._sums()[:, 1].any())

    def forget(self, name: str) -> bool:
        known = [member for key, member in self._members.items() if key[1] == name]
        for member in known:
            self._forget(member)
        return bool(known)

    def open(self, partition: int) -> None:
        self._moments.opened()
        self._waiting[partition], self._reached[partition] = 0, 0.0
        if self.join is not None:
            self.join.open(partition)

    def close(self, partition: int) -> None:
        del self._waiting[partition], self._reached[partition]
        for key in [key for key in self._members if key[0] == partition]:
            member = self._members.pop(key)
            self.learner.give_back(member.row)
            if key in self._open_uploads:
                self._steps.give_back(self._open_uploads.pop(key).step_rows)
            self._ready.pop(key, None)
            self._touched.pop(key, None)
        if self.challengers is not None:
            self.challengers.close(partition)
        if self.join is not None:
            self.join.close(partition)
        self._changed = {key: value for key, value in self._changed.items() if key[0] != partition}
        self._forgotten = {key: None for key in self._forgotten if key[0] != partition}
        if not self._waiting:
            self._model_silence.answered()

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        versions, sent = self.model.versions, self._counts["updates"]
        replies = self._receive(batch, now)
        self._watch_model(self.model.versions != versions, self._counts["updates"] > sent, bool(batch), now)
        predicted, bounded = self.predicted - self._judged[0], self.learner.bounded - self._judged[1]
        if predicted >= JUDGED_AT_ONCE:
            self._judged, self._useless = (self.predicted, self.learner.bounded), 2 * bounded > predicted
        return replies

    def _watch_model(self, changed: bool, sending: bool, batch: bool, now: float) -> None:
        """Note what the server owes: a new version of the model after updates, and for whoever waits for one."""
        silence, sent = self._model_silence, self._counts["updates"]
        if changed:
            silence.answered()
            self._updates_answered = sent
        # One update may change nothing, as one that came twice: those that go on going out may not.
        if sending or any(self._waiting.values()):
            silence.asked(now)
        if not batch:
            if sent == self._updates_answered and not any(map(self._waits_for_model, self._members.values())):
                # They wait for their byte budget.
                silence.answered()
            silence.look(now)

    def _waits_for_model(self, member: _Member) -> bool:
        return bool(member.waiting or member.joined) and not self._may_learn(member.state)

    def _receive(self, batch: Sequence[Received], now: float) -> list[Send | Rejection]:
        replies: list[Send | Rejection] = []
        if self._moments.pass_to(now, tick=not batch):
            self._set_back(now)
        if self._last_now is not None and self.uplink.bytes_per_second is not None:
            passed = max(0.0, now - self._last_now)
            self._counts["update_budget_bytes"] += passed * self.uplink.bytes_per_second * len(self._members)
        self._last_now = now
        before = self.model.versions
        arrived: dict[tuple[int, str], list[_Arrived]] = {}
        for received in batch:
            try:
                if received.channel == "model":
                    self._hear(received.message, received.partition)
                    continue
                # Before it may be refused: for want of a seat it often is because of how the topic is keyed.
                self._see(received)
                self._check_label(received.message.label)
                key = received.partition, received.message.client
                if self.join is None:
                    self._queue(self._member_of(key, received.record, now), received.message, received.record.key)
                else:
                    if received.channel == "samples":
                        self._member_of(key, received.record, now)
                    elif key not in self._members:
                        self.join.check_room(*key)
                    arrived.setdefault(key, []).append((received.message, received.record.key))
            except PeerError as error:
                replies.append(Rejection(received, error))
        self._full = set()
        if any(now_at < was_at for now_at, was_at in zip(self.model.versions, before, strict=True)):
            # What was taken on it was taken before: whoever wrote it, to wait for the next would be to wait for ever.
            for member in self._members.values():
                if member.state.taken_on == self.model.versions:
                    member.state.taken_on = None
                    self._touched[member.key] = member
        if self.model.versions != before:
            self._ready.update((key, member) for key, member in self._members.items() if member.waiting or member.joined)
        outdated = [upload for upload in self._open_uploads.values() if upload.window.versions != self.model.versions]
        replies += self._upload(outdated, now)
        if not batch:
            replies += self._upload(self._uploads_due(now), now)
        if self.join is None:
            return replies + self._advance(now)
        if not batch:
            self.join.expire(now)
        return replies + self._learn_joined(self.join, now) + self._take_arrived(self.join, list(arrived.items()), now)

    def _hear(self, message: KernelParameters | ShardVersion | SignedVersion | ServerSettings, shard: int) -> None:
        """Take a record of the model's topic."""
        if isinstance(message, ServerSettings):
            self.agreement.told(message.values)
            return
        try:
            self.model.apply(message, shard)
        except PeerError as error:
            if error.reason == "configuration":
                self.agreement.refused(shard, error.text)
            raise
        if not isinstance(message, KernelParameters):
            self.agreement.fits(shard)

    def _see(self, received: Received) -> None:
        message = received.message
        if received.channel == "samples":
            self.watch.sample(received.partition, message.client, message.label)
        else:
            self.watch.label(received.partition, message.client, message.label)

    def _check_label(self, label: float | None) -> None:
        if self.learner.loss is LOGISTIC and label not in (None, 0.0, 1.0):
            raise PeerError("label", f"label {label}, 0 or 1 is expected with the logistic loss (after samples.label_range)")

    def _member_of(self, key: tuple[int, str], record: Record, now: float) -> _Member:
        member = self._members.get(key)
        written_at = min(record.timestamp, now) if record.timestamp > 0 else now
        reached = self._reached[key[0]]
        if not reached or written_at >= reached + self.client_expiry / STEPS_OF_EXPIRY:
            reached = written_at
        if member is None:
            if len(self._members) >= self.clients:
                self._make_room(key, reached)
            # A life of the client's state is told from an earlier one that was lost by when it began.
            member = self._member(key, _State(key[1], epoch=epoch_at(now), tokens=float("inf"), filled_at=now))
            # Even if its first sample has to wait: the epoch must be the same after a restart.
            self._touched[key] = member
        # Not before here: who is refused moves no time on.
        self._reached[key[0]] = reached
        if member.state.seen_at != reached:
            member.state.seen_at = reached
            self._touched[key] = member
        return member

    def _make_room(self, newcomer: tuple[int, str], at: float) -> None:
        """Forget the client that has been idle for longest; PeerError if none has been for long enough.

        Idle by the newest time that samples have come to in any partition, ``at`` being that of the newcomer's.
        """
        longest, idle = None, self.client_expiry
        reached = max(at, *self._reached.values())
        for key, member in self._members.items() if reached not in self._full else ():
            if not member.state.seen_at:
                # As the first releases remembered it.
                member.state.seen_at = reached
                self._touched[key] = member
            busy = member.waiting or member.joined or key in self._open_uploads
            if not busy and reached - member.state.seen_at >= idle:
                longest, idle = member, reached - member.state.seen_at
        if longest is None:
            self._full.add(reached)
            elsewhere = [partition for partition in self._waiting if (partition, newcomer[1]) in self._members]
            if elsewhere:
                remedy = f"its samples come in the partitions {elsewhere} too: write the topic with the client as the key"
            else:
                remedy = self.watch.disorder or (
                    "raise federation.clients, or wait until one has been without a sample for federation.client_expiry_seconds = "
                    f"{self.client_expiry:g}"
                )
            raise PeerError("too_many_clients", f"{newcomer[1]!r} would be client {self.clients + 1}: {remedy}")
        self._counts["expired"] += 1
        self._forget(longest)

    def _forget(self, member: _Member) -> None:
        """Whatever is remembered of a client goes, with what waits."""
        key, name = member.key, member.state.name.encode()
        self._waiting[key[0]] -= len(member.waiting) + len(member.joined)
        slots = range(member.first_slot, member.first_slot + member.slots_written)
        parts = self.learner.part_keys(member.row)
        for remembered in (b"client/" + name, *(_part_key(name, part) for part in parts), *(_waiting_key(name, n) for n in slots)):
            self._forgotten[key[0], remembered] = None
            self._changed.pop((key[0], remembered), None)
        self.learner.give_back(member.row)
        if key in self._open_uploads:
            self._steps.give_back(self._open_uploads.pop(key).step_rows)
        for table in (self._members, self._ready, self._touched):
            table.pop(key, None)
        if self.challengers is not None:
            self.challengers.forget(key)
        if self.join is not None:
            self.join.forget(*key)

    def _queue(self, member: _Member, sample: Sample, record_key: bytes | None) -> None:
        member.waiting.append((sample, record_key))
        self._waiting[member.key[0]] += 1
        self._ready[member.key] = member

    def _take_arrived(
        self, join: LabelJoin, arrived: list[tuple[tuple[int, str], list[_Arrived]]], now: float
    ) -> list[Send | Rejection]:
        """Predict samples and find the samples of labels; of each client what came first goes first."""
        replies: list[Send | Rejection] = []
        for place in range(max((len(own) for _, own in arrived), default=0)):
            wave = [(key, *own[place]) for key, own in arrived if len(own) > place]
            pairs = [
                join.label(JoinKey(key[0], message.client, message.sample), message.label, now)
                for key, message, _ in wave
                if isinstance(message, Label)
            ]
            samples: list[_Taking] = [(message, key, None) for _, message, key in wave if isinstance(message, Sample)]
            if samples:
                members = [self._members[key] for key, message, _ in wave if isinstance(message, Sample)]
                inputs = np.array([sample.features for sample, _, _ in samples], dtype=self.learner.input_dtype)
                forecast = self.learner.predict(np.array([member.row for member in members]), inputs, self.model.parameters)
                replies += self._predict(samples, forecast.predictions)
                self._counts["samples"] += len(samples)
                for member, (sample, _, _), content in zip(members, samples, forecast.encoded(), strict=True):
                    self._touched[member.key] = member
                    pairs.append(join.sample(JoinKey(member.key[0], sample.client, sample.id), content, now))
            for pair in pairs:
                if pair is not None:
                    self._queue_pair(self._members[pair.key[:2]], pair)
            replies += self._learn_joined(join, now)
        return replies

    def _queue_pair(self, member: _Member, pair: Pair) -> None:
        member.joined.append(pair)
        self.watch.pair()
        self._waiting[member.key[0]] += 1
        self._ready[member.key] = member

    def _learn_joined(self, join: LabelJoin, now: float) -> list[Send | Rejection]:
        """Learn every label whose client may learn now, one of each client at a time."""
        replies: list[Send | Rejection] = []
        while True:
            taken = [(member, self._upload_for(member, now)) for member in self._ready.values() if member.joined]
            learning = [(member, member.joined.popleft(), upload) for member, upload in taken if upload is not None]
            if not learning:
                self._rest()
                return replies
            labels = np.array([pair.label for _, pair, _ in learning])
            learnt = self.learner.learn(
                np.array([member.row for member, _, _ in learning]),
                [pair.content for _, pair, _ in learning],
                labels,
                self.model.parameters,
                self.model.squared_norms,
            )
            for member, pair, _ in learning:
                join.learnt(pair.key, now)
                self._waiting[member.key[0]] -= 1
                self._touched[member.key] = member
            uploads = {place: upload for place, (_, _, upload) in enumerate(learning)}
            self._gather(uploads, learnt)
            self._recent.extend(zip(learnt.predictions.tolist(), labels.tolist(), strict=True))
            replies += self._upload_complete(uploads, now)

    def _advance(self, now: float) -> list[Send | Rejection]:
        """Take every sample that its client may take now."""
        members: list[_Member] = []
        samples: list[_Taking] = []
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
        self._rest()
        if not samples:
            return []
        return self._learn(members, samples, starts, now)

    def _take(self, member: _Member, now: float) -> list[_Taking]:
        """The samples that a client may take now."""
        waiting = member.waiting
        taken: list[_Taking] = []
        while waiting:
            sample, key = waiting[0]
            upload = None
            if sample.label is not None:
                upload = self._upload_for(member, now)
                if upload is None:
                    break
            taken.append((sample, key, upload))
            waiting.popleft()
        self._waiting[member.key[0]] -= len(taken)
        return taken

    def _rest(self) -> None:
        """Whoever is not ready now is looked at again with a new version of the model, or when its bucket has filled."""
        if self.uplink.bytes_per_second is None:
            self._ready = {}
        else:
            self._ready = {key: member for key, member in self._ready.items() if self._affordable_at(member) is not None}

    def _upload_for(self, member: _Member, now: float) -> _Upload | None:
        """The upload that the client's next label is for; None: it has to wait."""
        state, versions = member.state, self.model.versions
        upload = None
        if self._may_learn(state):
            upload = self._open_uploads.get(member.key) or self._begin(member, now)
        if upload is not None and self.pace.samples_per_version is not None:
            state.taken = state.taken + 1 if state.taken_on == versions else 1
            state.taken_on = versions
        return upload

    def _may_learn(self, state: _State) -> bool:
        """Whether the client may take another label on this version of the model."""
        per_version = self.pace.samples_per_version
        if per_version is None:
            return True
        if state.taken_on == self.model.versions:
            return state.taken < per_version
        # In lockstep a round is one version of every shard: between two of them the model is of neither round.
        return not self.pace.lockstep or len(set(self.model.versions)) == 1

    def _begin(self, member: _Member, now: float) -> _Upload | None:
        """A new upload; None: the client has to wait for the bytes that it takes.

        Where the model waits for this client, or it for the model, it goes on only when it can send a kernel. To take part in a
        round without sending would cost bytes and teach nothing, and the bucket would never fill.
        """
        bucket, kernels = member.bucket, self.learner.kernels
        allowed = min(self.uplink.kernels_per_upload or kernels, kernels)
        if bucket is not None:
            allowed = member.cost.kernels_within(bucket.available(now), kernels)
            if allowed:
                # Its bytes leave the bucket here, so that sending can never overdraw it.
                bucket.take(member.cost.bytes_for(allowed), now)
            elif self.pace.samples_per_version is not None:
                return None
            else:
                self._counts["skipped"] += 1
        state = member.state
        upload = _Upload(member, _Window(now, self.model.versions), allowed, member.draws[state.uploads_drawn])
        state.uploads_drawn += 1
        if self.learner.summed:
            self._keep_open(upload)
        return upload

    def _keep_open(self, upload: _Upload) -> None:
        self._open_uploads[upload.member.key] = upload
        heapq.heappush(self._due, (upload.window.opened_at + self.pace.upload_interval, upload.member.key))

    def _learn(self, members: list[_Member], samples: list[_Taking], starts: list[int], now: float) -> list[Send | Rejection]:
        given = [sample.label for sample, _, _ in samples]
        batch = Batch(
            rows=np.array([member.row for member in members]),
            starts=np.array(starts),
            counts=np.diff([*starts, len(samples)]),
            inputs=np.array([sample.features for sample, _, _ in samples], dtype=self.learner.input_dtype),
            labels=np.array([0.0 if label is None else label for label in given]),
            labelled=np.array([label is not None for label in given]),
        )
        taken = self.learner.take(batch, self.model.parameters, self.model.squared_norms)
        replies = self._predict(samples, taken.predictions)
        uploads = {place: upload for place, (_, _, upload) in enumerate(samples) if upload is not None}
        orders = self._gather(uploads, taken)
        latest = np.flatnonzero(batch.labelled)[-WINDOW:]
        self._recent.extend(zip(taken.predictions[latest].tolist(), batch.labels[latest].tolist(), strict=True))
        if self.challengers is not None:
            self.challengers.run((upload.member.key, samples[place][0]) for place, upload in uploads.items())
        self._touched.update((member.key, member) for member in members)
        self._counts["samples"] += len(samples)
        self._counts["unlabelled"] += len(samples) - len(uploads)
        if self.trace is not None:
            self._trace(uploads, batch, taken, orders, self.trace)
        return replies + self._upload_complete(uploads, now)

    def _gather(self, uploads: dict[int, _Upload], taken: Taken) -> dict[int, NDArray[Any]]:
        """Add to each upload what the sample at its place taught; returns what ``_draw_bins`` does."""
        orders = self._draw_bins(uploads, taken.log_weights)
        self._add_steps(uploads, taken)
        self._counts["labels"] += len(uploads)
        return orders

    def _upload_complete(self, uploads: dict[int, _Upload], now: float) -> list[Send | Rejection]:
        return self._upload([upload for upload in dict.fromkeys(uploads.values()) if self._is_complete(upload)], now)

    def _is_complete(self, upload: _Upload) -> bool:
        """Nothing more can join it before the model changes, and the model may wait for it."""
        per_version = self.pace.samples_per_version
        return not self.learner.summed or (per_version is not None and upload.member.state.taken >= per_version)

    def _predict(self, samples: list[_Taking], predictions: NDArray[np.float64]) -> list[Send | Rejection]:
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
            for (sample, key, _), prediction in zip(samples, predictions.tolist(), strict=True)
        ]

    def _draw_bins(self, uploads: dict[int, _Upload], log_weights: NDArray[np.float64]) -> dict[int, NDArray[Any]]:
        """Draw the bin of every upload that begins with this batch, from the weights before its first label (Algorithm 1).

        uploads: by the sample, as the kernels in their order of weight that are returned.
        """
        beginning: dict[int, _Upload] = {}
        for place, upload in uploads.items():
            if upload.window.samples == 0:
                beginning[place] = upload
            upload.window.samples += 1
        if not beginning:
            return {}
        drawing, at = list(beginning.values()), list(beginning)
        orders = heaviest_first(log_weights[at])
        weights = np.take_along_axis(normalised(log_weights[at]), orders, axis=1)
        uniforms = np.array([upload.uniform for upload in drawing])
        limits = np.array([upload.kernels_allowed for upload in drawing])
        for limit in np.unique(limits).tolist():
            chosen = np.flatnonzero(limits == limit)
            # (8): q_j = (1 - xi) u_j / sum(u) + xi / m
            probabilities = bin_probabilities(weights[chosen], max(limit, 1), self.uplink.exploration_rate)
            cumulated = np.cumsum(probabilities, axis=1)
            # The sum may end below 1 by rounding: the last bin takes what is left.
            drawn_bins = np.minimum((cumulated <= uniforms[chosen, None]).sum(axis=1), cumulated.shape[1] - 1)
            drawn_probabilities = np.take_along_axis(probabilities, drawn_bins[:, None], axis=1)[:, 0]
            for index, order, drawn, probability in zip(
                chosen.tolist(), orders[chosen].tolist(), drawn_bins.tolist(), drawn_probabilities.tolist(), strict=True
            ):
                window = drawing[index].window
                window.drawn_bin, window.probability = drawn, probability
                window.kernels = tuple(sorted(order[drawn * limit : (drawn + 1) * limit]))
                drawing[index].step_rows = self._steps.borrow(len(window.kernels))
        return dict(zip(at, orders, strict=True))

    def _add_steps(self, uploads: dict[int, _Upload], taken: Taken) -> None:
        """Add each sample's steps for the kernels of its upload's bin to what the upload has gathered."""
        sample_of: list[int] = []
        kernel_of: list[int] = []
        row_of: list[int] = []
        probability_of: list[float] = []
        for place, upload in uploads.items():
            held = len(upload.step_rows)
            sample_of += [place] * held
            kernel_of += upload.window.kernels
            row_of += upload.step_rows
            probability_of += [upload.window.probability] * held
        for start in range(0, len(sample_of), BLOCK_STEPS):
            block = slice(start, start + BLOCK_STEPS)
            rows = np.array(row_of[block])
            with np.errstate(over="ignore", invalid="ignore"):
                steps = taken.steps(np.array(sample_of[block]), np.array(kernel_of[block]), np.array(probability_of[block]))
            if not np.abs(steps).max(initial=0.0) <= LARGEST_STEP:
                # What is gathered is remembered, and what is not finite could not be taken back.
                steps = np.clip(np.nan_to_num(steps), -LARGEST_STEP, LARGEST_STEP)
            if len(set(row_of[block])) < len(rows):
                rows, sum_of = np.unique(rows, return_inverse=True)
                steps = csr_array((np.ones(len(sum_of)), (sum_of, np.arange(len(sum_of))))) @ steps
            self._steps.numbers[rows] += steps

    def _affordable_at(self, member: _Member) -> float | None:
        """When a client that waits only for its byte budget can go on; None: it does not wait for that."""
        bucket, per_version = member.bucket, self.pace.samples_per_version
        waits = member.waiting or member.joined
        if not waits or bucket is None or per_version is None or member.key in self._open_uploads:
            return None
        # It is looked at again with the next version: a time that has passed would only be asked for again and again.
        if not self._may_learn(member.state):
            return None
        lacking = member.cost.bytes_for(1) - bucket.tokens
        # A microsecond more than it takes: times are rounded, and a tick too early would ask for another at the same time.
        return bucket.filled_at + lacking / bucket.rate + 1e-6 if lacking > 0 else None

    def _set_back(self, now: float) -> None:
        """Let everything that was noted after ``now`` have been now: the clock was ahead."""
        for upload in self._open_uploads.values():
            if upload.window.opened_at > now:
                upload.window.opened_at = now
                self._touched[upload.member.key] = upload.member
                self._keep_open(upload)
        for key, member in self._members.items():
            filled = member.bucket or member.state
            if filled.filled_at > now:
                filled.filled_at = now
                self._touched[key] = member
            if member.state.seen_at > now:
                member.state.seen_at = now
                self._touched[key] = member
            self._renew_epoch(member, now)
        self._reached.update({partition: now for partition, reached in self._reached.items() if reached > now})
        if self.join is not None:
            self.join.set_back(now)

    def _renew_epoch(self, member: _Member, now: float) -> None:
        """Give up an epoch that a clock far ahead named: the server would refuse it until that time comes."""
        if is_to_come(member.state.epoch, now):
            member.state.epoch = epoch_at(now)
            self._touched[member.key] = member

    def _uploads_due(self, now: float) -> list[_Upload]:
        """Whose upload has been open for the upload interval."""
        # Two uploads of one client that began at one time leave two equal entries.
        due: dict[tuple[int, str], _Upload] = {}
        while (due_at := self._next_upload_due()) is not None and due_at <= now:
            key = heapq.heappop(self._due)[1]
            due[key] = self._open_uploads[key]
        return list(due.values())

    def _next_upload_due(self) -> float | None:
        # An upload that ended before its time, with a new version of the model, has left its entry behind.
        while self._due:
            due_at, key = self._due[0]
            upload = self._open_uploads.get(key)
            if upload is not None and upload.window.opened_at + self.pace.upload_interval == due_at:
                return due_at
            heapq.heappop(self._due)
        return None

    def _upload(self, uploads: Sequence[_Upload], now: float) -> list[Send | Rejection]:
        """End these uploads and send what they gathered."""
        if not uploads:
            return []
        rows = [row for upload in uploads for row in upload.step_rows]
        content = encode_array(np.clip(self._steps.numbers[rows], -LARGEST_STEP, LARGEST_STEP).astype(self.learner.dtype))
        row_bytes = self._row_bytes
        sends: list[Send | Rejection] = []
        start = 0
        for upload in uploads:
            member, state, window = upload.member, upload.member.state, upload.window
            self._open_uploads.pop(member.key, None)
            self._touched[member.key] = member
            end = start + row_bytes * len(upload.step_rows)
            steps = [content[first : first + row_bytes] for first in range(start, end, row_bytes)]
            start = end
            if not steps:
                continue
            if member.bucket is not None:
                member.bucket.sent(member.cost.bytes_for(len(steps)), now)
            name = state.name.encode()
            # Not at a tick alone: there is none while much lies unread.
            self._renew_epoch(member, now)
            state.sequence += 1
            for shard in range(self.shards):
                chosen = [index for index, kernel in enumerate(window.kernels) if kernel % self.shards == shard]
                if not chosen and not self.pace.lockstep:
                    continue
                update = Update(
                    version=VERSION,
                    fingerprint=self.fingerprint,
                    dimension=self.learner.dimension,
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
                self._counts["update_bytes"] += encoded_size(name, value) + self.seal_bytes
            self._counts["updates"] += 1
        self._steps.give_back(rows)
        return sends

    def _member(self, key: tuple[int, str], state: _State) -> _Member:
        cost = UpdateCost(state.name, self._row_bytes, self.shards, self.pace.lockstep, self.seal_bytes)
        bucket = None
        if self.uplink.bytes_per_second is not None:
            # A second of budget, or one kernel's update where that is more: less could never send anything.
            depth = max(self.uplink.bytes_per_second, float(cost.bytes_for(1)))
            bucket = TokenBucket(self.uplink.bytes_per_second, depth, min(state.tokens, depth), state.filled_at)
            self._counts["update_budget_bytes"] += depth
        member = _Member(state, key, self.learner.borrow(), UniformSequence(self.seed, "bin", state.name), bucket, cost)
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
        # First: a client that was forgotten may be back.
        for partition, state_key in self._forgotten:
            yield StateChange("state", partition, state_key, None)
        self._forgotten = {}
        remembered = self.learner.remember([member.row for member in self._touched.values()])
        for (key, member), numbers in zip(self._touched.items(), remembered, strict=True):
            state, upload = member.state, self._open_uploads.get(key)
            if member.bucket is not None:
                state.tokens, state.filled_at = member.bucket.tokens, member.bucket.filled_at
            state.numbers = numbers
            if upload is not None:
                state.window = upload.window
                state.window.steps = encode_array(self._steps.numbers[upload.step_rows])
            name = state.name.encode()
            yield StateChange("state", key[0], b"client/" + name, encode(state))
            state.numbers, state.window = b"", None
            for part, content in self.learner.parts(member.row):
                yield StateChange("state", key[0], _part_key(name, part), content)
        self._touched = {}
        for (partition, state_key), value in self._changed.items():
            yield StateChange("state", partition, state_key, value)
        self._changed = {}
        if self.join is not None:
            for partition, name, value in self.join.changed_state():
                yield StateChange("state", partition, b"join/" + name, value)

    def restore(self, change: StateChange) -> None:
        try:
            self._restore(change)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PeerError("malformed", f"a client's state: {error}") from None

    def _restore(self, change: StateChange) -> None:
        kind, _, rest = change.key.partition(b"/")
        value = change.value or b""
        if kind == b"client":
            self._restore_client((change.partition, check_name(rest)), msgspec.msgpack.decode(value, type=_State))
        elif kind == b"part":
            end = 2 + int.from_bytes(rest[:2], "big")
            member = self._known((change.partition, check_name(rest[2:end])))
            self.learner.restore_part(member.row, rest[end:], value)
        elif kind not in (b"join", b"waiting"):
            raise PeerError("malformed", f"{change.key!r} is nothing that a client remembers")
        elif (kind == b"join") != (self.join is not None):
            raise PeerError("malformed", "it was remembered with labels that came another way: with [labels], or without it")
        elif self.join is not None:
            pair = self.join.restore(change.partition, rest, value, self.learner.check_forecast)
            if pair is not None:
                self._check_remembered_label(pair.label)
                self._queue_pair(self._known(pair.key[:2]), pair)
        else:
            self._restore_waiting((change.partition, check_name(rest[8:])), int.from_bytes(rest[:8], "big"), value)

    def _known(self, key: tuple[int, str]) -> _Member:
        """The client that is being restored: what is remembered of it comes in any order."""
        return self._members.get(key) or self._member(key, _State(key[1], epoch=0))

    def _restore_client(self, key: tuple[int, str], state: _State) -> None:
        if state.name != key[1]:
            raise PeerError("malformed", f"it is the state of client {state.name!r}")
        self._check_versions(state.taken_on)
        member = self._known(key)
        self._reached[key[0]] = max(self._reached[key[0]], state.seen_at)
        self.learner.restore(member.row, state.numbers)
        member.state = state
        if member.bucket is not None:
            member.bucket.tokens, member.bucket.filled_at = min(state.tokens, member.bucket.depth), state.filled_at
        if state.window is not None:
            steps = self._remembered_steps(state.window)
            rows = self._steps.borrow(len(state.window.kernels))
            self._steps.numbers[rows] = steps
            self._keep_open(_Upload(member, state.window, step_rows=rows))
        state.numbers, state.window = b"", None

    def _remembered_steps(self, window: _Window) -> NDArray[np.float64]:
        self._check_versions(window.versions)
        kernels = window.kernels
        if list(kernels) != sorted(set(kernels)) or not set(kernels) <= set(range(self.learner.kernels)):
            raise PeerError("kernel", f"an upload of kernels {kernels[:5]} is remembered, there are {self.learner.kernels}")
        shape = (len(kernels), self.learner.row_length)
        return decode_array(window.steps, np.float64, shape, "the steps of a client")

    def _check_versions(self, versions: tuple[int, ...] | None) -> None:
        if versions is not None and len(versions) != self.shards:
            raise PeerError("malformed", f"versions {versions[:5]} of the model are remembered, federation.shards is {self.shards}")

    def _check_remembered_label(self, label: float | None) -> None:
        if label is not None:
            check_label(label, self.learner.loss is LOGISTIC)

    def _restore_waiting(self, key: tuple[int, str], slot: int, value: bytes) -> None:
        # A compacted topic keeps the last record of each slot, in the order written: slots come and go first in, first out.
        identifier, features, label, record_key = msgspec.msgpack.decode(
            value, type=tuple[Name, tuple[float, ...], float | None, bytes | None]
        )
        check_inputs(np.array(features), self.learner.dimension)
        self._check_remembered_label(label)
        member = self._known(key)
        if not member.waiting:
            member.first_slot = slot
        if slot != member.first_slot + len(member.waiting):
            raise PeerError("malformed", f"a sample waits as number {slot}, those before it begin at {member.first_slot}")
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
        yield Measurement("samples", "counter", "Samples predicted", self._counts["samples"], (), True)
        yield Measurement("predictions", "counter", "Predictions published", self._counts["samples"], (), True)
        yield Measurement("labels", "counter", "Labels learnt from", self._counts["labels"], (), True)
        yield Measurement("unlabelled_samples", "counter", "Samples that came without a label", self._counts["unlabelled"])
        yield Measurement("drifts", "counter", "Rises of a client's error that were found and reacted to", self.learner.drifts)
        yield Measurement("clients", "gauge", "Clients on this worker", len(self._members), (), True)
        waiting = sum(1 for member in self._members.values() if member.waiting or member.joined)
        yield Measurement("waiting_clients", "gauge", "Clients whose samples or labels wait for the model", waiting, (), True)
        yield Measurement(
            "waiting_samples", "gauge", "Samples, or labels of [labels], that wait for the model", sum(self._waiting.values())
        )
        yield Measurement("expired_clients", "counter", "Clients forgotten to make room for others", self._counts["expired"])
        text = "Predictions kept at one label range beyond samples.label_range"
        yield Measurement("bounded_predictions", "counter", text, self.learner.bounded)
        yield Measurement(
            "regret", "gauge", "Loss of the predictions minus loss of each client's best kernel, summed over clients", regret
        )
        yield Measurement(
            "regret_per_sample", "gauge", "Regret divided by the labels learnt from", regret / labels if labels else 0.0
        )
        yield Measurement("mse", "gauge", "Mean squared error of all predictions, on the learning scale", self.mean_squared_error())
        predictions, recent_labels = recent_arrays(self._recent)
        windowed = float(np.square(predictions - recent_labels).mean()) if self._recent else 0.0
        yield Measurement(
            "mse_windowed", "gauge", "Mean squared error of the last 1000 predictions, on the learning scale", windowed, (), True
        )
        if self.learner.loss is LOGISTIC:
            yield from classification_measurements(predictions, recent_labels)
        if self.challengers is not None:
            yield from self.challengers.measure()
        yield from self.watch.measure()
        if self.join is not None:
            yield from self.join.measure()
        best = int(np.argmin(self._kernel_losses().sum(axis=0)))
        yield Measurement("best_kernel", "gauge", "Number of the kernel with the smallest loss over all clients", best)
        yield Measurement("model_version", "gauge", "Version of the model in use", max(self.model.versions), (), True)
        text = "Kernels' parameters in the model topic that belong to no version that the server signed"
        yield Measurement("unsigned_parameters", "counter", text, self.model.unsigned)
        yield Measurement(
            "update_bytes", "counter", "Encoded bytes of updates, key and framing included", self._counts["update_bytes"]
        )
        budget = self._counts["update_budget_bytes"]
        yield Measurement("update_budget_bytes", "counter", "Bytes that the budget has allowed so far; 0: no budget", budget)
        yield Measurement("updates", "counter", "Uploads sent", self._counts["updates"], (), True)
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
        return self.learner.sums([member.row for member in self._members.values()])

    def _kernel_losses(self) -> NDArray[np.float64]:
        return self.learner.kernel_losses([member.row for member in self._members.values()])

    def _trace(
        self,
        uploads: dict[int, _Upload],
        batch: Batch,
        taken: Taken,
        orders: dict[int, NDArray[Any]],
        trace: Callable[[StepTrace], None],
    ) -> None:
        after = taken.log_weights_after
        for place, upload in uploads.items():
            sent = np.zeros(self.learner.kernels, dtype=np.bool_)
            sent[list(upload.window.kernels)] = True
            trace(
                StepTrace(
                    client=upload.member.state.name,
                    inputs=batch.inputs[place],
                    label=float(batch.labels[place]),
                    prediction=float(taken.scores[place]),
                    kernel_predictions=taken.kernel_predictions[place],
                    kernel_order=orders.get(place, np.arange(self.learner.kernels)),
                    drawn_bin=upload.window.drawn_bin,
                    bin_probability=upload.window.probability,
                    sent=sent,
                    log_weights=after[place] - after[place].max(),
                )
            )


def _part_key(name: bytes, part: bytes) -> bytes:
    return b"part/" + len(name).to_bytes(2, "big") + name + part


def _waiting_key(name: bytes, slot: int) -> bytes:
    return b"waiting/" + slot.to_bytes(8, "big") + name
