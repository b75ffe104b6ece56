"""The server of POF-MKL: equation (10), by kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.pofmkl.messages import (
    KERNEL_PARAMETERS,
    MARKER_KEY,
    SHARD_VERSION,
    UPDATE,
    KernelParameters,
    ShardVersion,
    Update,
    kernel_key,
)
from streamfl.role import Measurement, PeerError, Received, Rejection, Send, StateChange
from streamfl.wire import VERSION, decode_array, encode_array

__all__ = ["PofmklServer"]


class _Member(msgspec.Struct, array_like=True):
    """What the server remembers of a client. ``awaited``: the round does not close without it before its timeout."""

    epoch: int
    sequence: int
    seen_at: float
    awaited: bool


class _Round(msgspec.Struct, array_like=True):
    opened_at: float | None
    ever_timed_out: bool


@dataclass
class _Shard:
    kernels: tuple[int, ...]
    parameters: NDArray[Any]
    model_version: int = 0
    updates: int = 0
    members: dict[str, _Member] = field(default_factory=dict)
    pending: dict[str, Update] = field(default_factory=dict)
    round: _Round = field(default_factory=lambda: _Round(None, False))
    changed: dict[bytes, bytes | None] = field(default_factory=dict)
    changed_kernels: set[int] = field(default_factory=set)
    published: bool = True


class PofmklServer:
    """Adds the clients' steps to the global parameters; partition p of the updates is shard p: kernels p, p + shards, …

        theta_i <- theta_i - (1/K) sum over clients k that sent kernel i of delta_ik     (POF-MKL, eq. 10)

    clients: K, the size of the federation. lockstep: a step a round, when every client was heard or ``round_timeout`` seconds
    after the first; otherwise every update is applied as it comes. A client that missed a round is not waited for until it is
    heard again. At most K clients are remembered; one unseen for ``client_expiry`` seconds makes room.
    """

    def __init__(
        self,
        *,
        clients: int,
        kernels: int,
        features: int,
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
        self.shards = shards
        self.lockstep = lockstep
        self.round_timeout = round_timeout
        self.client_expiry = client_expiry
        self.fingerprint = fingerprint
        self.dtype = dtype
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

    def open(self, partition: int) -> None:
        kernels = tuple(range(partition, self.kernels, self.shards))
        self._open[partition] = _Shard(kernels, np.zeros((len(kernels), 2 * self.features), self.dtype))

    def close(self, partition: int) -> None:
        del self._open[partition]

    def restore(self, change: StateChange) -> None:
        shard = self._open[change.partition]
        if change.channel == "model":
            if change.key == MARKER_KEY:
                marker = SHARD_VERSION.decode(change.value)
                self._check_fingerprint(marker.fingerprint)
                shard.model_version, shard.updates = marker.model_version, marker.updates
            else:
                kernel = KERNEL_PARAMETERS.decode(change.value)
                if kernel.kernel not in shard.kernels:
                    raise PeerError("kernel", f"kernel {kernel.kernel} does not belong to shard {change.partition}")
                shard.parameters[kernel.kernel // self.shards] = decode_array(
                    kernel.parameters, self.dtype, (2 * self.features,), "parameters"
                )
            return
        kind, _, name = change.key.partition(b"/")
        if kind == b"round" and change.value is not None:
            shard.round = msgspec.msgpack.decode(change.value, type=_Round)
        elif kind == b"client":
            _put(shard.members, name.decode(), change.value, _Member)
        else:
            _put(shard.pending, name.decode(), change.value, Update)

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        # Before the messages, so that a round ends at the same one however they are cut into batches.
        self._close_timed_out(now)
        rejections: list[Send | Rejection] = []
        for received in batch:
            try:
                self._take(self._open[received.partition], received, now)
            except PeerError as error:
                rejections.append(Rejection(received, error))
        return rejections

    def changed_state(self) -> Iterable[StateChange]:
        for partition, shard in self._open.items():
            for key, value in shard.changed.items():
                yield StateChange("state", partition, key, value)
            shard.changed = {}
            for kernel in sorted(shard.changed_kernels):
                row = encode_array(shard.parameters[kernel // self.shards])
                yield StateChange(
                    "model", partition, kernel_key(kernel), KERNEL_PARAMETERS.encode(KernelParameters(VERSION, kernel, row))
                )
            shard.changed_kernels = set()
            if not shard.published:
                marker = ShardVersion(VERSION, self.fingerprint, partition, shard.model_version, shard.updates)
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

    def _take(self, shard: _Shard, received: Received, now: float) -> None:
        update: Update = received.message
        steps = self._checked(shard, update, received)
        member = shard.members.get(update.client)
        if member is not None and (update.epoch, update.sequence) <= (member.epoch, member.sequence):
            self._counts["duplicate"] += 1
            return
        rows = np.array(update.kernels, dtype=np.intp) // self.shards
        with np.errstate(over="ignore"):
            changed = shard.parameters[rows] - (steps / self.clients).astype(self.dtype)
        if not np.isfinite(changed).all():
            raise PeerError("not_finite", "with this update the parameters would not be finite")
        if member is None:
            self._make_room(shard, update.client, now)
        shard.members[update.client] = _Member(update.epoch, update.sequence, now, True)
        self._remember_member(shard, update.client)
        self._staleness = float(shard.model_version - update.model_version)
        if not self.lockstep:
            shard.parameters[rows] = changed
            shard.changed_kernels.update(update.kernels)
            shard.updates += 1
            self._counts["applied"] += 1
            shard.model_version = shard.updates
            shard.published = False
        elif update.model_version != shard.model_version:
            self._counts["late"] += 1
        else:
            shard.pending[update.client] = update
            shard.changed[b"pending/" + update.client.encode()] = UPDATE.encode(update)
            if shard.round.opened_at is None:
                shard.round.opened_at = now
                shard.changed[b"round"] = msgspec.msgpack.encode(shard.round)
            awaited = sum(m.awaited for m in shard.members.values()) if shard.round.ever_timed_out else self.clients
            if len(shard.pending) >= awaited:
                self._close_round(shard)

    def _close_round(self, shard: _Shard) -> None:
        # Clients in order of name, so that the sum does not depend on who was heard first.
        total = np.zeros(shard.parameters.shape, np.float64)
        for name in sorted(shard.pending):
            update = shard.pending[name]
            rows = np.array(update.kernels, dtype=np.intp) // self.shards
            steps = np.frombuffer(update.steps, np.dtype(self.dtype).newbyteorder("<"))
            total[rows] += steps.reshape(len(rows), 2 * self.features)
            shard.changed_kernels.update(update.kernels)
            shard.changed[b"pending/" + name.encode()] = None
        with np.errstate(over="ignore"):
            changed = (shard.parameters - total / self.clients).astype(self.dtype)
        # A kernel that has diverged keeps its parameters: nothing that is not a number may be published or remembered.
        shard.parameters = np.where(np.isfinite(changed).all(axis=1, keepdims=True), changed, shard.parameters)
        shard.updates += len(shard.pending)
        self._counts["applied"] += len(shard.pending)
        shard.model_version += 1
        shard.pending = {}
        shard.round.opened_at = None
        shard.changed[b"round"] = msgspec.msgpack.encode(shard.round)
        shard.published = False

    def _close_timed_out(self, now: float) -> None:
        for shard in self._open.values():
            opened_at = shard.round.opened_at
            if opened_at is not None and now >= opened_at + self.round_timeout:
                self._counts["timed_out_rounds"] += 1
                for name, member in shard.members.items():
                    member.awaited = name in shard.pending
                    self._remember_member(shard, name)
                shard.round.ever_timed_out = True
                self._close_round(shard)

    def _checked(self, shard: _Shard, update: Update, received: Received) -> NDArray[Any]:
        if received.record.key != update.client.encode():
            raise PeerError("forged", f"update of client {update.client!r} under the key {received.record.key!r}")
        self._check_fingerprint(update.fingerprint)
        if update.epoch < 0 or update.sequence < 0 or not 0 <= update.model_version <= shard.model_version:
            raise PeerError("malformed", f"update names version {update.model_version}, the model is at {shard.model_version}")
        if list(update.kernels) != sorted(set(update.kernels)) or not set(update.kernels) <= set(shard.kernels):
            raise PeerError("kernel", f"kernels {update.kernels[:5]} are not an ascending subset of shard {received.partition}")
        return decode_array(update.steps, self.dtype, (len(update.kernels), 2 * self.features), "steps")

    def _check_fingerprint(self, fingerprint: int) -> None:
        if fingerprint != self.fingerprint:
            raise PeerError(
                "configuration",
                "another federation name, seed, kernel dictionary, features_per_kernel or precision was used to make it",
            )

    def _make_room(self, shard: _Shard, newcomer: str, now: float) -> None:
        if len(shard.members) < self.clients:
            return
        longest = min(shard.members, key=lambda name: shard.members[name].seen_at)
        if now - shard.members[longest].seen_at < self.client_expiry:
            raise PeerError("too_many_clients", f"{newcomer!r} would be client {self.clients + 1}: raise federation.clients")
        del shard.members[longest]
        shard.changed[b"client/" + longest.encode()] = None
        self._counts["expired_clients"] += 1

    def _remember_member(self, shard: _Shard, name: str) -> None:
        shard.changed[b"client/" + name.encode()] = msgspec.msgpack.encode(shard.members[name])


def _put(table: dict[str, Any], name: str, value: bytes | None, kind: type[Any]) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = msgspec.msgpack.decode(value, type=kind)
