"""The server of POF-MKL: keeps the shards of the model and passes each shard the updates of its partition."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Measurement, OperatorNotice, PeerError, Received, Rejection, Send, StateChange
from streamfl.encoding.changelog_checks import UNDECODABLE
from streamfl.pofmkl.client.staleness import YOUNG_LABELS
from streamfl.pofmkl.learning.server_steps import AveragedStep, ServerStep
from streamfl.pofmkl.messages import AWAITED
from streamfl.pofmkl.metrics import ServerMetrics
from streamfl.pofmkl.server.shard import Shard
from streamfl.pofmkl.server.shard_model import ShardSettings
from streamfl.pofmkl.server.update_problems import UpdateProblems
from streamfl.pofmkl.signed_model import ModelSigning
from streamfl.state.clock_guard import ClockGuard

__all__ = ["PofmklServer", "ShardSnapshot"]


@dataclass(frozen=True)
class ShardSnapshot:
    """A copy of a shard's state.

    model_version, updates: version of the shard's model, and updates in it.
    parameters (kernels, 2 D): of the shard's kernels.
    members: the clients that the shard knows.
    waiting: updates received in the open round.
    """

    model_version: int
    updates: int
    parameters: NDArray[Any]
    members: frozenset[str]
    waiting: int


class PofmklServer:
    """Applies the clients' updates to the global parameters. Partition p of the updates is shard p: kernels p, p + shards, …

    In lockstep the server makes one step a round, from the round's rows in order of the clients' names. It does so when every
    client's update is there, or ``round_timeout`` seconds after the first. It does not wait for a client that missed a round until
    that takes part again. Otherwise the server applies every update as it comes.

    clients: K, the size of the federation, and the most clients that a shard knows. kernels, features: N and D. dimension: of the
    samples; None: the restored one. A server that has neither raises ConfigurationError at its first batch: the first client to
    send must not decide it. step: from a shard's number of kernels to its
    :class:`~streamfl.pofmkl.learning.server_steps.ServerStep`; None: equation (10), the average of the clients' gradients. shards:
    of the model. lockstep: whether the server makes one step a round. round_timeout: seconds. client_expiry: seconds without an
    update after which a client makes room for another. fingerprint: of the federation's settings. former_fingerprint: the
    federation's fingerprint before its features were named. dtype: of the rows, and of stored and published parameters. signing:
    signs each version; None: members have no keys.
    """

    def __init__(
        self,
        *,
        clients: int,
        kernels: int,
        features: int,
        dimension: int | None = None,
        step: Callable[[int], ServerStep] | None = None,
        shards: int = 1,
        lockstep: bool = True,
        round_timeout: float = 30.0,
        client_expiry: float = 86_400.0,
        fingerprint: int = 0,
        former_fingerprint: int | None = None,
        dtype: Any = np.float32,
        signing: ModelSigning | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self._federation = ShardSettings(
            clients=clients,
            kernels=kernels,
            features=features,
            dimension=dimension,
            shards=shards,
            lockstep=lockstep,
            round_timeout=round_timeout,
            client_expiry=client_expiry,
            fingerprint=fingerprint,
            former_fingerprint=fingerprint if former_fingerprint is None else former_fingerprint,
            dtype=dtype,
            signing=signing,
        )
        self._make_step = step or (lambda kernels: AveragedStep(clients))
        self._clock_guard = ClockGuard()
        self._problems = UpdateProblems()
        self._shards: dict[int, Shard] = {}
        self._awaited = False

    @property
    def wake_at(self) -> float | None:
        times = [shard.round.over_at for shard in self._shards.values()]
        return min([when for when in times if when is not None], default=None)

    @property
    def full(self) -> Collection[int]:
        return ()

    @property
    def waiting(self) -> Mapping[str, int]:
        return {"updates": self._heard} if self._heard else {}

    @property
    def _heard(self) -> int:
        """The updates of all open rounds."""
        return sum(len(shard.round.pending) for shard in self._shards.values())

    @property
    def prompt(self) -> bool:
        # A client that catches up waits for the version with its updates, and a young model changes much with each update.
        young = YOUNG_LABELS * self._federation.clients
        return self._federation.lockstep or self._awaited or any(shard.model.updates < young for shard in self._shards.values())

    @property
    def trouble(self) -> str | None:
        return None

    def notices(self) -> Iterable[OperatorNotice]:
        return self._problems.notices.collect()

    def forget(self, name: str) -> bool:
        known = [shard for shard in self._shards.values() if name in shard.members]
        for shard in known:
            shard.forget(name)
        return bool(known)

    def open(self, partition: int) -> None:
        self._clock_guard.opened()
        kernels = range(partition, self._federation.kernels, self._federation.shards)
        self._shards[partition] = Shard(self._federation, partition, self._make_step(len(kernels)), self._problems)

    def close(self, partition: int) -> None:
        del self._shards[partition]

    def restore(self, change: StateChange) -> None:
        shard, key, value = self._shards[change.partition], change.key, change.value or b""
        if change.channel == "model":
            shard.model.restore_topic(key, value)
            return
        try:
            shard.restore(key, value)
        except UNDECODABLE as error:
            raise PeerError("malformed", f"server state {key!r}: {error}") from None

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        """A tick closes the rounds that have timed out.

        Messages are judged by their own time in the topic. A message written before a round was over belongs to that round, even
        if the server was away and reads it late.
        """
        shards = self._shards
        for shard in shards.values():
            shard.settle()
        if self._clock_guard.pass_to(now, tick=not batch):
            for shard in shards.values():
                shard.set_back(now)
        if not batch:
            for shard in shards.values():
                shard.close_timed_out(now)
            return []
        self._awaited = any(AWAITED[0] in received.record.headers for received in batch)
        rejections: list[Rejection] = []
        by_partition: dict[int, list[Received]] = {}
        for received in batch:
            by_partition.setdefault(received.partition, []).append(received)
        for partition, messages in by_partition.items():
            shards[partition].receive(messages, now, rejections)
        if len(rejections) > 1:
            places = {id(received): place for place, received in enumerate(batch)}
            rejections.sort(key=lambda rejection: places[id(rejection.received)])
        return rejections

    def changed_state(self) -> Iterable[StateChange]:
        for shard in self._shards.values():
            yield from shard.changed_state()

    def snapshot(self) -> dict[int, ShardSnapshot]:
        """A copy of each shard's state, by the shard's number, for checks."""
        return {
            number: ShardSnapshot(
                model_version=shard.model.version,
                updates=shard.model.updates,
                parameters=shard.model.parameters.copy(),
                members=shard.members.names,
                waiting=len(shard.round.pending),
            )
            for number, shard in self._shards.items()
        }

    def measure(self) -> Iterable[Measurement]:
        shards = list(self._shards.values())
        yield ServerMetrics.updates_applied(self._problems.applied)
        version = max((shard.model.version for shard in shards), default=0)
        yield ServerMetrics.model_version(version, known=bool(shards))
        clients = max((len(shard.members) for shard in shards), default=0)
        yield ServerMetrics.clients(clients)
        names = frozenset[str]().union(*(shard.members.names for shard in shards))
        # A client sends to different shards at different times.
        times = [[at for shard in shards if (at := shard.members.silent_from(name)) is not None] for name in names]
        silent = tuple((max(known), math.inf) for known in times if known)
        yield ServerMetrics.silent_clients(0.0, during=silent)
        yield ServerMetrics.round_waiting(self._heard)
        yield from self._problems.measure()
