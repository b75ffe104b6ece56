"""The server of POF-MKL: keeps the shards of the model and passes each shard the updates of its partition."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from streamfl.contract.role import (
    BadRecord,
    Measurement,
    OperatorNotice,
    Received,
    Rejection,
    Send,
    StateChange,
)
from streamfl.encoding.changelog_checks import UNDECODABLE
from streamfl.pofmkl.client.staleness import YOUNG_LABELS
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import AWAITED
from streamfl.pofmkl.metrics import ServerMetrics
from streamfl.pofmkl.server.given import ServerGiven
from streamfl.pofmkl.server.shard import Shard
from streamfl.pofmkl.server.update_problems import UpdateProblems
from streamfl.state.clock_guard import ClockGuard, earliest

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
    """Applies the clients' updates to the global parameters. Partition p of the updates is shard p: kernels
    p, p + shards, …

    In lockstep the server makes one step a round, from the round's rows in order of the clients' names. It
    does so when every client's update is there, or ``round_timeout`` seconds after the first. It does not
    wait for a client that missed a round until that takes part again. Otherwise the server applies every
    update as it comes.

    Without federation.features the number of inputs is the restored one. A server that has neither raises
    ConfigurationError at its first batch: the first client to send must not decide it.
    """

    def __init__(self, settings: PofmklSettings, given: ServerGiven) -> None:
        self.fingerprint = given.fingerprints[0]
        self._settings = settings
        self._given = given
        self._lockstep = settings.learning.lockstep
        self._young = YOUNG_LABELS * settings.federation.clients
        self._clock_guard = ClockGuard()
        self._problems = UpdateProblems()
        self._shards: dict[int, Shard] = {}
        self._awaited = False
        # Partitions whose updates were deleted unread.
        self._lost: set[int] = set()

    @property
    def wake_at(self) -> float | None:
        if self._lost:
            return -math.inf
        return earliest(*(shard.round.over_at for shard in self._shards.values()))

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
        # A client that catches up waits for the version with its updates, and a young model changes much with
        # each update.
        return (
            self._lockstep
            or self._awaited
            or any(shard.model.updates < self._young for shard in self._shards.values())
        )

    @property
    def trouble(self) -> str | None:
        return None

    def notices(self) -> Iterable[OperatorNotice]:
        return self._problems.notices.collect()

    def lost(self, partition: int) -> None:
        self._lost.add(partition)

    def _take_lost(self) -> list[int]:
        """The partitions whose shards have to note that updates are lost."""
        lost, self._lost = self._lost, set()
        if not self._lockstep:
            return sorted(lost)
        if len(self._shards) < self._settings.federation.shards:
            return []
        # Clients wait until all shards have one version, so shards pass a lost round together.
        versions = {self._shards[number].model.version for number in lost}
        return [number for number, shard in self._shards.items() if shard.model.version in versions]

    def forget(self, name: str) -> bool:
        known = [shard for shard in self._shards.values() if name in shard.members]
        for shard in known:
            shard.forget(name)
        return bool(known)

    def open(self, partition: int) -> None:
        self._clock_guard.opened()
        self._shards[partition] = Shard(self._settings, self._given, partition, self._problems)

    def close(self, partition: int) -> None:
        del self._shards[partition]
        self._lost.discard(partition)

    def restore(self, change: StateChange) -> None:
        shard, key, value = self._shards[change.partition], change.key, change.value or b""
        if change.channel == "model":
            shard.model.restore_topic(key, value)
            return
        try:
            shard.restore(key, value)
        except UNDECODABLE as error:
            raise BadRecord("malformed", f"server state {key!r}: {error}") from None

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        """A tick closes the rounds that have timed out.

        Messages are judged by their own time in the topic. A message written before a round was over belongs
        to that round, even if the server was away and reads it late.
        """
        shards = self._shards
        for shard in shards.values():
            shard.settle()
        if self._clock_guard.pass_to(now, tick=not batch):
            for shard in shards.values():
                shard.set_back(now)
        for number in self._take_lost():
            shards[number].lose_updates(now)
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

    def silent_from(self) -> dict[str, float]:
        """By client, the time on the worker's clock from which a pause of its updates is unusual."""
        shards = list(self._shards.values())
        # A client sends to different shards at different times.
        times = {
            name: [at for shard in shards if (at := shard.members.silent_from(name)) is not None]
            for name in frozenset[str]().union(*(shard.members.names for shard in shards))
        }
        return {name: max(known) for name, known in times.items() if known}

    def measure(self) -> Iterable[Measurement]:
        shards = list(self._shards.values())
        yield ServerMetrics.updates_applied(self._problems.applied)
        version = max((shard.model.version for shard in shards), default=0)
        yield ServerMetrics.model_version(version, known=bool(shards))
        clients = max((len(shard.members) for shard in shards), default=0)
        yield ServerMetrics.clients(clients)
        silent = tuple((at, math.inf) for at in self.silent_from().values())
        yield ServerMetrics.silent_clients(0.0, during=silent)
        yield ServerMetrics.round_waiting(self._heard)
        yield from self._problems.measure()
