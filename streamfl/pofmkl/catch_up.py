"""How a client that is behind learns in step with the model, and how long it waits for a server that is silent.

A client is *behind* while more than n of its labels lie unlearnt in hand, or more than n for each client of its partition lie
unread in the topic. It then learns n labels on one version of the model, sends its updates, and goes on when the model holds
them. A client that is not behind never waits. Nobody waits for another client.

A model that has seen little changes much with each version. So a client begins with one label a version, and gets one more after
every 8 labels, up to n. A client that is behind and gets new records all the same is granted as many more as came meanwhile, so
that its backlog shrinks with each version, however fast the records come.

When no server answers for the patience nobody waits any longer (:mod:`streamfl.pofmkl.server_silence`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamfl.pofmkl.client_record import ClientRecord
from streamfl.pofmkl.client_registry import Client, ClientRegistry
from streamfl.pofmkl.server_silence import ALONE, ServerSilence
from streamfl.pofmkl.staleness import YOUNG_LABELS
from streamfl.role import Measurement, OperatorNotice

__all__ = ["CatchUp"]

# Samples in hand: fewer where that is enough to serve every client, more where only few clients find something to learn.
LEAST_IN_HAND, MOST_IN_HAND = 64, 4096
# A model that has seen little changes fast: a client begins with one label a version, and gets one more after so many.
LABELS_A_GRANT = 8
# The server publishes at once what it has read. What is in no version so long after the last one was refused, or comes later.
PAUSE_SECONDS = 0.25
BEHIND = (
    "partition {} holds {} records that were not read yet: its clients learn the backlog in step with the model, {} labels a "
    "client on each version"
)
BACKLOG = (
    "a backlog is learnt in step with the model: {} records lie unread, and {} {} of {} clients in hand wait for a version of the "
    "model after {}"
)


@dataclass(slots=True)
class _Partition:
    """A partition that is open.

    unread: records behind those that were taken; None: not known yet.
    arrived: records that came into the topic since it was opened.
    in_hand: the most samples that are taken ahead.
    told: the operator was told of its backlog.
    """

    unread: int | None = None
    arrived: int = 0
    in_hand: int = LEAST_IN_HAND
    told: bool = False


@dataclass(slots=True)
class _Shard:
    """A shard of the model, as far as updates from here are in it.

    since: when its newest version came; infinite while there is an update that it came before.
    full: the version that holds all of them, if the server refuses none and nobody else sends any: a version counts updates.
    """

    since: float = math.inf
    full: int = 0


class CatchUp:
    """Says who is behind, what a client may learn before the model has advanced, and how much is read ahead.

    samples: n, the labels of a client on one version while it is behind; 0: no client ever waits.
    silence: of the server; who is alone does not wait.
    registry: the clients.
    shards: of the model.
    """

    def __init__(self, samples: int, silence: ServerSilence, registry: ClientRegistry, shards: int) -> None:
        self.samples = samples
        self._silence = silence
        self.granted_more = self._learnt_behind = 0
        self._registry = registry
        self._partitions: dict[int, _Partition] = {}
        self._notices: list[OperatorNotice] = []
        # As they were last, and as they were when a label was learnt last.
        self._versions: tuple[int, ...] = ()
        self._shards = [_Shard() for _ in range(shards)]
        self._learnt_on: tuple[int, ...] | None = None
        # Clients that were granted labels in this step.
        self._granted = 0
        # The partitions of which enough was in hand when the model advanced in this step.
        self._enough: list[_Partition] = []

    def open(self, partition: int) -> None:
        self._partitions[partition] = _Partition()

    def close(self, partition: int) -> None:
        del self._partitions[partition]

    # ---- how much there is

    def note_unread(self, records: Mapping[int, int], received: Mapping[int, int]) -> None:
        """So many records lie unread in each partition behind those that were received now."""
        for number, unread in records.items():
            partition = self._partitions.get(number)
            if partition is None:
                continue
            if partition.unread is not None:
                partition.arrived += max(0, unread - partition.unread + received.get(number, 0))
            partition.unread = unread
            # Before a client is known there, records of all of them look like a backlog of one.
            if not partition.told and self._registry.count(number) and self._is_behind(number):
                partition.told = True
                self._notices.append(OperatorNotice("behind", BEHIND.format(number, unread, self.samples)))

    def _is_behind(self, number: int) -> bool:
        unread = self._partitions[number].unread or 0
        # By the model's age, as a client's own.
        labels = min(self._versions, default=0) // (LABELS_A_GRANT * self._registry.limit)
        return 0 < min(self.samples, 1 + labels) * max(1, self._registry.count(number)) < unread

    def _room(self, number: int) -> int:
        return max(self._partitions[number].in_hand, 2 * self.samples * self._registry.count(number))

    def most_records(self, waiting: Mapping[int, int]) -> int | None:
        """The most records to take at a time; None: no partition is behind. waiting: samples in hand, by partition."""
        unknown = any(one.unread is None for one in self._partitions.values())
        if not self.samples or not (unknown or self._behind):
            return None
        return max(1, sum(max(0, self._room(number) - waiting[number]) for number in self._partitions))

    @property
    def _behind(self) -> bool:
        return self.samples > 0 and any(map(self._is_behind, self._partitions))

    def is_urgent(self, versions: tuple[int, ...], waiting: int) -> bool:
        """Whether an update that goes out late costs accuracy, or time. waiting: labels in hand."""
        if waiting:
            return True
        if self._behind:
            # What is learnt together is gathered first: clients that begin together go on together.
            return self._learnt_on == versions
        return min(versions) < YOUNG_LABELS * self._registry.limit

    def begin_step(self, versions: tuple[int, ...], waiting: Mapping[int, int], now: float) -> bool:
        """These are the versions of the model. Returns whether updates are waited for no longer, since time has passed.

        waiting: labels in hand, by partition.
        """
        before = self._versions or (0,) * len(versions)
        if versions != self._versions:
            self._versions = versions
            self._enough = [self._partitions[number] for number in self.full(waiting)]
        over = False
        for shard, earlier, version in zip(self._shards, before, versions, strict=True):
            if version != earlier:
                # A lower one is of a server that began anew.
                shard.full = shard.full if version > earlier else version
                shard.since = now
            elif version < shard.full and now >= shard.since + PAUSE_SECONDS:
                shard.full, over = version, True
        return over

    @property
    def wake_at(self) -> float | None:
        """When updates that are in no version are waited for no longer."""
        missing = (shard for shard, version in zip(self._shards, self._versions, strict=False) if version < shard.full)
        return min((shard.since + PAUSE_SECONDS for shard in missing if shard.since < math.inf), default=None)

    def set_back(self, now: float) -> None:
        """The clock was ahead."""
        for shard in self._shards:
            if shard.since < math.inf:
                shard.since = min(shard.since, now)

    def end_step(self, learnt: int) -> None:
        """So many labels were learnt in this step."""
        if learnt:
            self._learnt_on = self._versions
        if 4 * self._granted < self._registry.limit:
            # Where a topic holds one client's records after the other's, few clients have something in hand: read further ahead.
            for partition in self._enough:
                partition.in_hand = min(MOST_IN_HAND, 2 * partition.in_hand)
        self._enough, self._granted = [], 0

    def full(self, waiting: Mapping[int, int]) -> list[int]:
        """The partitions of which enough is in hand. waiting: samples in hand, by partition."""
        if not self.samples:
            return []
        return [number for number, count in waiting.items() if count >= self._room(number)]

    # ---- who may learn

    def limit(self, client: Client, in_hand: int, waiting: Mapping[int, int], *, waited: bool) -> None:
        """Note whether the client is behind.

        in_hand: its labels that could be learnt. waiting: those of all clients, by partition. waited: some of its own could not
        before.
        """
        number = client.key[0]
        client.share = in_hand / max(1, in_hand, waiting[number])
        behind = waited or in_hand > self._grant(client.record) or self._is_behind(number)
        # Whoever was behind is not before the model holds its last updates.
        behind = behind or (client.record.behind and not self._is_answered(client))
        client.limited = client.record.behind = self.samples > 0 and behind and not self._silence.is_alone(number)

    def _grant(self, record: ClientRecord) -> int:
        """The labels that a client may learn on one version."""
        return min(self.samples, 1 + max(0, record.uploads_drawn - 1) // LABELS_A_GRANT)

    def may_learn(self, client: Client) -> bool:
        """Whether the client may learn another label."""
        record = client.record
        return not client.limited or record.labels_learnt < record.granted or self._is_answered(client)

    def count(self, client: Client) -> None:
        """The client learns a label."""
        if not self.samples:
            return
        record = client.record
        partition = self._partitions[client.key[0]]
        if self._is_answered(client):
            record.learnt_on, record.labels_learnt, record.awaited = self._versions, 0, ()
            record.granted = self._grant(record)
            self._granted += 1
            if client.limited:
                # Its share of what came since it was granted the last ones.
                more = round((partition.arrived - client.arrived) * client.share)
                record.granted += more
                self.granted_more += more
            client.arrived = partition.arrived
        record.labels_learnt += 1
        self._learnt_behind += client.limited

    def sent(self, client: Client, shard: int) -> None:
        """An update of the client goes to a shard."""
        if not self.samples:
            return
        if shard not in client.record.awaited:
            client.record.awaited = (*client.record.awaited, shard)
        known = self._shards[shard]
        known.since = math.inf
        known.full = client.in_version[shard] = max(known.full, self._versions[shard]) + 1

    def is_used_up(self, client: Client) -> bool:
        """Whether the client may learn no more labels before the model advances."""
        return client.limited and client.record.labels_learnt >= client.record.granted

    def _is_answered(self, client: Client) -> bool:
        """Whether every shard that the client's last updates went to holds them; also if nothing of it is under way.

        After a restart it is not known which version does: then a shard that has advanced counts.
        """
        learnt_on, awaited = client.record.learnt_on, client.record.awaited
        if client.uploading:
            return False
        return learnt_on is None or all(
            self._versions[shard] != learnt_on[shard]
            and min(client.in_version.get(shard, 0), self._shards[shard].full) <= self._versions[shard]
            for shard in awaited
        )

    # ---- what is told

    def backlog(self, kind: str, waiting: int, clients: int) -> str | None:
        """What of a backlog is there, and what is waited for; None: there is none.

        kind: of what waits. waiting: how much is in hand. clients: of so many.
        """
        if self._silence.alone:
            return ALONE.format(self._silence.patience)
        if not (self._behind or (self.samples and waiting)):
            return None
        unread = sum(partition.unread or 0 for partition in self._partitions.values())
        after = ", ".join(map(str, self._versions))
        return BACKLOG.format(unread, waiting, kind, clients, after or 0)

    def notices(self) -> Iterable[OperatorNotice]:
        notices, self._notices = self._notices, []
        return notices

    def measure(self) -> Iterable[Measurement]:
        behind = sum(map(self._is_behind, self._partitions)) if self.samples else 0
        text = "Partitions with a backlog, which is learnt in step with the model"
        yield Measurement("behind_partitions", "gauge", text, behind)
        text = "Labels learnt by clients that were behind"
        yield Measurement("catch_up_labels", "counter", text, self._learnt_behind)
        text = "Labels learnt beyond learning.catch_up_samples on one version, because as many came meanwhile"
        yield Measurement("catch_up_extra_labels", "counter", text, self.granted_more)
