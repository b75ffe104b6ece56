"""The server of POF-MKL: whose updates count, and when a step is made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.moments import Moments
from streamfl.pofmkl.messages import (
    KERNEL_PARAMETERS,
    LARGEST_STEP,
    LARGEST_TARGET,
    MARKER_KEY,
    SHARD_VERSION,
    UPDATE,
    KernelParameters,
    ShardVersion,
    Update,
    kernel_key,
)
from streamfl.pofmkl.server_steps import AveragedStep, ServerStep
from streamfl.role import Measurement, Notice, PeerError, Received, Rejection, Send, StateChange
from streamfl.wire import VERSION, decode_array, encode_array

__all__ = ["PofmklServer"]

# Steps are taken this many raw bytes at a time, for they grow in double precision: a poll may hold hundreds of megabytes.
BLOCK_BYTES = 4_000_000
# Of the model: finite in single precision.
LARGEST_PARAMETER = 1e30


class _Member(msgspec.Struct, array_like=True):
    """What the server remembers of a client. ``awaited``: the round does not close without it before its timeout."""

    epoch: int
    sequence: int
    seen_at: float
    awaited: bool


class _Round(msgspec.Struct, array_like=True):
    """``opened_at``: when the first update of the open round was written to its topic. ``dimension``: of the clients' inputs."""

    opened_at: float | None
    ever_timed_out: bool
    dimension: int


@dataclass
class _Shard:
    kernels: frozenset[int]
    parameters: NDArray[Any]
    step: ServerStep
    model_version: int = 0
    updates: int = 0
    round: _Round = field(default_factory=lambda: _Round(None, False, 0))
    round_changed: bool = False
    members: dict[str, _Member] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)
    awaited: int = 0
    pending: dict[str, Update] = field(default_factory=dict)
    pending_changed: dict[str, None] = field(default_factory=dict)
    changed_kernels: set[int] = field(default_factory=set)
    published: bool = True


class PofmklServer:
    """Moves the global parameters by what clients send; partition p of the updates is shard p: kernels p, p + shards, …

    clients: K, the size of the federation. step: makes a shard's :class:`~streamfl.pofmkl.server_steps.ServerStep`, given how many
    kernels it has; None: equation (10), the average of the clients' gradients. lockstep: a step a round, on its rows in order of
    the clients' names, when every client was heard or ``round_timeout`` seconds after the first; otherwise every update is applied
    as it comes. A client that missed a round is not waited for until it is heard again. At most K clients are remembered; one
    unseen for ``client_expiry`` seconds makes room. dtype: of the rows, and of the parameters as remembered and published.
    """

    def __init__(
        self,
        *,
        clients: int,
        kernels: int,
        features: int,
        step: Callable[[int], ServerStep] | None = None,
        shards: int = 1,
        lockstep: bool = True,
        round_timeout: float = 30.0,
        client_expiry: float = 86_400.0,
        fingerprint: int = 0,
        dtype: Any = np.float32,
    ) -> None:
        self.clients = clients
        self.kernels = kernels
        self.features = features
        self._make_step = step or (lambda kernels: AveragedStep(clients))
        self.shards = shards
        self.lockstep = lockstep
        self.round_timeout = round_timeout
        self.client_expiry = client_expiry
        self.fingerprint = fingerprint
        self.dtype = dtype
        self._moments = Moments()
        self._open: dict[int, _Shard] = {}
        self._counts = {"applied": 0, "late": 0, "duplicate": 0, "timed_out_rounds": 0, "expired_clients": 0}
        self._staleness = 0.0

    @property
    def wake_at(self) -> float | None:
        opened = [shard.round.opened_at for shard in self._open.values() if shard.round.opened_at is not None]
        return min(opened) + self.round_timeout if opened else None

    @property
    def full(self) -> Collection[int]:
        return ()

    @property
    def prompt(self) -> bool:
        return self.lockstep

    @property
    def trouble(self) -> str | None:
        return None

    def notices(self) -> Iterable[Notice]:
        return ()

    def forget(self, name: str) -> bool:
        return False

    def open(self, partition: int) -> None:
        self._moments.opened()
        kernels = range(partition, self.kernels, self.shards)
        parameters = np.zeros((len(kernels), 2 * self.features), self.dtype)
        self._open[partition] = _Shard(frozenset(kernels), parameters, self._make_step(len(kernels)))

    def close(self, partition: int) -> None:
        del self._open[partition]

    def restore(self, change: StateChange) -> None:
        shard, value = self._open[change.partition], change.value or b""
        if change.channel == "model":
            if change.key == MARKER_KEY:
                marker = SHARD_VERSION.decode(value)
                self._check_fingerprint(marker.fingerprint)
                shard.model_version, shard.updates = marker.model_version, marker.updates
            else:
                kernel = KERNEL_PARAMETERS.decode(value)
                if kernel.kernel not in shard.kernels:
                    raise PeerError("kernel", f"kernel {kernel.kernel} does not belong to shard {change.partition}")
                shard.parameters[kernel.kernel // self.shards] = decode_array(
                    kernel.parameters, self.dtype, (2 * self.features,), "parameters"
                )
            return
        kind, _, name = change.key.partition(b"/")
        try:
            if kind == b"round":
                shard.round = msgspec.msgpack.decode(value, type=_Round)
            elif kind == b"client":
                shard.members[name.decode()] = member = msgspec.msgpack.decode(value, type=_Member)
                shard.awaited += member.awaited
            elif kind == b"step":
                shard.step.restore(name, value)
            else:
                shard.pending[name.decode()] = UPDATE.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PeerError("malformed", f"server state {change.key!r}: {error}") from None

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        """A tick closes the rounds that have waited long enough.

        Among messages it is their own time in the topic that counts: what lay there before a round was over belongs to it, however
        late a server that was away reads it.
        """
        if self._moments.pass_to(now, tick=not batch):
            for shard in self._open.values():
                _set_back(shard, now)
        if not batch:
            for shard in self._open.values():
                self._close_timed_out(shard, now)
            return []
        rejections: list[Rejection] = []
        by_partition: dict[int, list[Received]] = {}
        for received in batch:
            by_partition.setdefault(received.partition, []).append(received)
        for partition, messages in by_partition.items():
            shard = self._open[partition]
            for block in _blocks(messages):
                self._take(shard, block, now, rejections)
        if len(rejections) > 1:
            places = {id(received): place for place, received in enumerate(batch)}
            rejections.sort(key=lambda rejection: places[id(rejection.received)])
        return rejections

    def changed_state(self) -> Iterable[StateChange]:
        encode = msgspec.msgpack.encode
        for partition, shard in self._open.items():
            for name in shard.touched:
                member = shard.members.get(name)
                yield StateChange("state", partition, b"client/" + name.encode(), None if member is None else encode(member))
            for name in shard.pending_changed:
                update = shard.pending.get(name)
                yield StateChange(
                    "state", partition, b"pending/" + name.encode(), None if update is None else UPDATE.encode(update)
                )
            if shard.round_changed:
                yield StateChange("state", partition, b"round", encode(shard.round))
            shard.touched, shard.pending_changed, shard.round_changed = {}, {}, False
            for key, value in shard.step.changed_state():
                yield StateChange("state", partition, b"step/" + key, value)
            for kernel in sorted(shard.changed_kernels):
                row = encode_array(shard.parameters[kernel // self.shards])
                yield StateChange(
                    "model", partition, kernel_key(kernel), KERNEL_PARAMETERS.encode(KernelParameters(VERSION, kernel, row))
                )
            shard.changed_kernels = set()
            if not shard.published:
                marker = ShardVersion(
                    VERSION, self.fingerprint, shard.round.dimension, partition, shard.model_version, shard.updates
                )
                # Last in the step: readers take the parameters before it as one version.
                yield StateChange("model", partition, MARKER_KEY, SHARD_VERSION.encode(marker))
                shard.published = True

    def measure(self) -> Iterable[Measurement]:
        shards = list(self._open.values())
        yield Measurement("updates_applied", "counter", "Uploads added to the model", self._counts["applied"])
        yield Measurement(
            "model_version", "gauge", "Newest version of the model", max((s.model_version for s in shards), default=0)
        )
        yield Measurement("clients", "gauge", "Clients heard of", max((len(s.members) for s in shards), default=0))
        yield Measurement("round_waiting", "gauge", "Clients heard in the open round", sum(len(s.pending) for s in shards))
        yield Measurement("staleness", "gauge", "Versions between an update's model and the newest, last update", self._staleness)
        for reason in ("late", "duplicate"):
            yield Measurement(
                "ignored_updates", "counter", "Updates that changed nothing", self._counts[reason], (("reason", reason),)
            )
        yield Measurement("timed_out_rounds", "counter", "Rounds closed without every client", self._counts["timed_out_rounds"])
        yield Measurement("expired_clients", "counter", "Clients forgotten to make room", self._counts["expired_clients"])

    def _take(self, shard: _Shard, messages: Sequence[Received], now: float, rejections: list[Rejection]) -> None:
        """Some messages of one shard, in order; their numbers are checked and added up together."""
        sound: list[Received] = []
        for received in messages:
            try:
                self._check(shard, received)
                sound.append(received)
            except PeerError as error:
                rejections.append(Rejection(received, error))
        steps = self._steps([received.message for received in sound])
        # One comparison for all: it is False for a NaN, too.
        bounded = np.abs(steps).max(axis=1, initial=0.0) <= LARGEST_STEP
        short = bounded if shard.step.largest_norm is None else _norms(steps) <= shard.step.largest_norm
        all_sound = bool((bounded & short).all())
        applied: list[Update] = []
        row = 0
        for received in sound:
            update: Update = received.message
            rows = slice(row, row := row + len(update.kernels))
            try:
                if not (all_sound or bounded[rows].all()):
                    raise PeerError("not_finite", f"a step holds a NaN, an infinity or a number above {LARGEST_STEP:g}")
                if not (all_sound or short[rows].all()):
                    raise PeerError("too_large", f"a target row is longer than {LARGEST_TARGET:g}: is its label clipped?")
                written_at = received.record.timestamp
                # Whoever wrote the time may have a clock that is ahead.
                if self._hear(shard, update, min(written_at, now) if written_at > 0 else now):
                    applied.append(update)
            except PeerError as error:
                rejections.append(Rejection(received, error))
        if applied:
            self._apply(shard, applied)

    def _hear(self, shard: _Shard, update: Update, at: float) -> bool:
        """Remember who was heard; whether the update is to be applied at once."""
        # What may be refused comes first: a message that is refused closes no round by its time, either.
        if update.model_version > shard.model_version:
            raise PeerError("malformed", f"update names version {update.model_version}, the model is at {shard.model_version}")
        if shard.round.dimension not in (0, update.dimension):
            raise PeerError(
                "configuration", f"made from samples of {update.dimension} features; the federation's have {shard.round.dimension}"
            )
        member = shard.members.get(update.client)
        if member is None:
            self._make_room(shard, update.client, at)
        elif update.epoch < member.epoch:
            raise PeerError(
                "superseded",
                f"client {update.client!r} has begun anew since, or its samples come in two partitions: key them by client",
            )
        elif (update.epoch, update.sequence) <= (member.epoch, member.sequence) and not self._made_again(shard, update, member):
            self._counts["duplicate"] += 1
            return False
        if self.lockstep:
            self._close_timed_out(shard, at)
        if member is None:
            shard.members[update.client] = _Member(update.epoch, update.sequence, at, True)
            shard.awaited += 1
        else:
            shard.awaited += not member.awaited
            member.sequence = update.sequence if update.epoch > member.epoch else max(update.sequence, member.sequence)
            member.epoch, member.seen_at, member.awaited = update.epoch, at, True
        shard.touched[update.client] = None
        self._staleness = float(shard.model_version - update.model_version)
        if shard.round.dimension != update.dimension:
            shard.round.dimension, shard.round_changed = update.dimension, True
        if not self.lockstep:
            shard.updates += 1
            shard.model_version = shard.updates
            return True
        if update.model_version < shard.model_version:
            self._counts["late"] += 1
            return False
        shard.pending[update.client] = update
        shard.pending_changed[update.client] = None
        if shard.round.opened_at is None:
            shard.round.opened_at, shard.round_changed = at, True
        if len(shard.pending) >= (shard.awaited if shard.round.ever_timed_out else self.clients):
            self._close_round(shard)
        return False

    def _made_again(self, shard: _Shard, update: Update, member: _Member) -> bool:
        """Whether a client's number comes again on a version that has not heard it yet.

        Under at_least_once a client may be killed with its update out and its state not. It says something under the same number
        once more, on the next version; not to hear it would leave the round waiting for ever.
        """
        current = update.model_version == shard.model_version and update.client not in shard.pending
        return self.lockstep and update.epoch == member.epoch and current

    def _close_timed_out(self, shard: _Shard, at: float) -> None:
        opened_at = shard.round.opened_at
        if opened_at is None or at < opened_at + self.round_timeout:
            return
        self._counts["timed_out_rounds"] += 1
        for name, member in shard.members.items():
            if member.awaited != (name in shard.pending):
                member.awaited = name in shard.pending
                shard.touched[name] = None
        shard.awaited = len(shard.pending)
        shard.round.ever_timed_out = True
        self._close_round(shard)

    def _close_round(self, shard: _Shard) -> None:
        # Clients in order of name, so that the sum does not depend on who was heard first.
        self._apply(shard, [shard.pending[name] for name in sorted(shard.pending)])
        shard.pending_changed.update(dict.fromkeys(shard.pending))
        shard.updates += len(shard.pending)
        shard.model_version += 1
        shard.pending = {}
        shard.round.opened_at, shard.round_changed = None, True

    def _apply(self, shard: _Shard, updates: Sequence[Update]) -> None:
        parameters = shard.parameters
        for block in _blocks(updates):
            kernels = list(chain.from_iterable(update.kernels for update in block))
            with np.errstate(over="ignore", invalid="ignore"):
                parameters = shard.step.apply(parameters, np.array(kernels, dtype=np.intp) // self.shards, self._steps(block))
            shard.changed_kernels.update(kernels)
        # A learning rate that is far too large makes them grow without end, and what is not finite could not be taken back.
        shard.parameters = np.clip(np.nan_to_num(parameters), -LARGEST_PARAMETER, LARGEST_PARAMETER).astype(self.dtype)
        shard.published = False
        self._counts["applied"] += len(updates)

    def _steps(self, updates: Sequence[Update]) -> NDArray[Any]:
        """The steps of all kernels of all updates, in order: (kernels sent, 2 D)."""
        numbers = np.frombuffer(b"".join(update.steps for update in updates), np.dtype(self.dtype).newbyteorder("<"))
        return numbers.reshape(-1, 2 * self.features)

    def _check(self, shard: _Shard, received: Received) -> None:
        update: Update = received.message
        if received.record.key != update.client.encode():
            raise PeerError("forged", f"update of client {update.client!r} under the key {received.record.key!r}")
        self._check_fingerprint(update.fingerprint)
        kernels = update.kernels
        if not shard.kernels.issuperset(kernels) or (len(kernels) > 1 and list(kernels) != sorted(set(kernels))):
            raise PeerError("kernel", f"kernels {kernels[:5]} are not an ascending subset of shard {received.partition}")
        expected = len(kernels) * 2 * self.features * np.dtype(self.dtype).itemsize
        if len(update.steps) != expected:
            raise PeerError("shape", f"steps of {len(kernels)} kernels have {len(update.steps)} bytes, expected {expected}")

    def _check_fingerprint(self, fingerprint: int) -> None:
        if fingerprint != self.fingerprint:
            raise PeerError(
                "configuration",
                "another federation name, seed, preset, loss, kernel dictionary (an uplink.kernels_per_upload of 1 or 2 has its "
                "own), features_per_kernel or precision was used to make it",
            )

    def _make_room(self, shard: _Shard, newcomer: str, at: float) -> None:
        if len(shard.members) < self.clients:
            return
        longest = min(shard.members, key=lambda name: shard.members[name].seen_at)
        if at - shard.members[longest].seen_at < self.client_expiry:
            raise PeerError("too_many_clients", f"{newcomer!r} would be client {self.clients + 1}: raise federation.clients")
        shard.awaited -= shard.members.pop(longest).awaited
        shard.touched[longest] = None
        self._counts["expired_clients"] += 1


def _set_back(shard: _Shard, now: float) -> None:
    """Let whatever was noted after ``now`` have been now: the clock was ahead."""
    if shard.round.opened_at is not None and shard.round.opened_at > now:
        shard.round.opened_at, shard.round_changed = now, True
    for name, member in shard.members.items():
        if member.seen_at > now:
            member.seen_at = now
            shard.touched[name] = None


def _norms(steps: NDArray[Any]) -> NDArray[Any]:
    # A number whose square is infinite is longer than any bound.
    with np.errstate(over="ignore", invalid="ignore"):
        norms: NDArray[Any] = np.sqrt(np.einsum("ij,ij->i", steps, steps))
        return norms


def _blocks(messages: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The messages in order, cut where their steps would exceed ``BLOCK_BYTES``."""
    start = size = 0
    for index, message in enumerate(messages):
        steps = len(message.message.steps if isinstance(message, Received) else message.steps)
        if size + steps > BLOCK_BYTES and index > start:
            yield messages[start:index]
            start, size = index, 0
        size += steps
    yield messages[start:]
