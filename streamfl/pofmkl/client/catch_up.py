"""Lets a client with a backlog learn in step with the model.

A client is *behind* while more of its labels are in hand than it may learn on one version of the model, or
more than that for each client of its partition lie unread in the topic. It then learns up to n labels on one
version, sends its updates, and goes on when the model holds them. A client that is not behind never waits. No
client waits for another client.

A model that has seen little changes much with each version. So a client begins with one label a version, and
gets one more after every 8 uploads (labels, with the default learner), up to n. A client that is behind may
also learn its share of the records that came meanwhile, so that its backlog shrinks with each version,
however fast the records come.

When no server answers for the patience, no client waits any longer
(:mod:`streamfl.pofmkl.client.server_silence`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamfl.contract.role import Measurement, OperatorNotice
from streamfl.pofmkl.client.client_record import ClientRecord
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.registered_client import Client
from streamfl.pofmkl.client.server_silence import ALONE, ServerSilence
from streamfl.pofmkl.client.staleness import YOUNG_LABELS, StalenessPolicy
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.metrics import UplinkMetrics

__all__ = ["CatchUp"]

# How many samples to read ahead: few if they serve every client, more if only few clients find something to
# learn.
LEAST_IN_HAND, MOST_IN_HAND = 64, 4096
# A model that has seen little changes fast: a client begins with one label a version, and gets one more after
# this many uploads.
LABELS_A_GRANT = 8
# The server publishes at once what it has read. An update that is in no version this long after the last one
# was refused, or comes later.
PAUSE_SECONDS = 0.25
BEHIND = (
    "partition {} holds {} unread records: its clients learn the backlog in step with the model, {} labels a "
    "client on each version"
)
BACKLOG = (
    "a backlog is learnt in step with the model: {} records are unread, and {} {} of {} clients wait for a "
    "version of the model after {}"
)


@dataclass(slots=True)
class _Partition:
    """An open partition.

    unread: records by input behind those that were read; None: not known yet.
    arrived: records that came into the topic since the partition was opened.
    in_hand: the most samples to read ahead.
    told: its backlog was reported to the operator.
    """

    unread: Mapping[str, int] | None = None
    arrived: int = 0
    in_hand: int = LEAST_IN_HAND
    told: bool = False

    @property
    def total(self) -> int:
        """All unread records, as far as is known."""
        return sum((self.unread or {}).values())


@dataclass(slots=True)
class _Shard:
    """The versions of a shard of the model that hold this worker's updates.

    since: when its newest version came; infinite if an update was sent after it.
    full: the version that holds all of this worker's updates, if the server refuses none and no other worker
        sends any: a version counts updates.
    """

    since: float = math.inf
    full: int = 0


class CatchUp:
    """Decides which clients are behind, what a client may learn before the model has advanced, and how much
    to read ahead.

    samples: n, the most labels of a client on one version while it is behind; 0: no client ever waits.
    silence: of the server. Clients that are alone do not wait.
    registry: the clients.
    """

    def __init__(self, settings: PofmklSettings, silence: ServerSilence, registry: ClientRegistry) -> None:
        learning = settings.learning
        self.samples = learning.catch_up_samples if learning.staleness == "async" else 0
        self._labels_a_version = StalenessPolicy(learning).samples_per_version or self.samples
        self._silence = silence
        self.granted_more = self._learnt_behind = 0
        self._registry = registry
        self._partitions: dict[int, _Partition] = {}
        self._notices: list[OperatorNotice] = []
        # The model's versions at the last step; below, ``_learnt_on``: those on which a label was learnt
        # last.
        self._versions: tuple[int, ...] = ()
        self._shards = [_Shard() for _ in range(settings.federation.shards)]
        self._learnt_on: tuple[int, ...] | None = None
        # By partition, whether it is behind in this step, as far as it was asked.
        self._behind_now: dict[int, bool] = {}
        # How many clients were granted labels in this step.
        self._granted = 0
        # The partitions that had enough samples in hand when the model advanced in this step.
        self._enough: list[_Partition] = []

    def open(self, partition: int) -> None:
        self._partitions[partition] = _Partition()

    def close(self, partition: int) -> None:
        del self._partitions[partition]

    # ---- how much there is

    def note_unread(self, records: Mapping[int, Mapping[str, int]], received: Mapping[int, int]) -> None:
        """Note how many records lie unread in each partition, by input, behind those that were received
        now."""
        for number, unread in records.items():
            partition = self._partitions.get(number)
            if partition is None:
                continue
            total = sum(unread.values())
            if partition.unread is not None:
                partition.arrived += max(0, total - partition.total + received.get(number, 0))
            partition.unread = unread
            # Before the partition's clients are known, the records of all of them look like the backlog of
            # one.
            if not partition.told and self._registry.count(number) and self._is_behind(number):
                partition.told = True
                self._notices.append(OperatorNotice("behind", BEHIND.format(number, total, self.samples)))

    def unread(self, number: int) -> Mapping[str, int] | None:
        """The unread records of a partition by input; None: not known yet."""
        return self._partitions[number].unread

    def pace(self, number: int) -> int:
        """The labels that a partition's clients together learn on one version while they are behind; 0: any
        number."""
        # As :meth:`_grant` for a client, but by the model's age.
        labels = min(self._versions, default=0) // (LABELS_A_GRANT * self._registry.limit)
        return min(self._labels_a_version, 1 + labels) * max(1, self._registry.count(number))

    def _is_behind(self, number: int) -> bool:
        return self.samples > 0 and self.pace(number) < self._partitions[number].total

    def _room(self, number: int) -> int:
        return max(self._partitions[number].in_hand, 2 * self.samples * self._registry.count(number))

    def most_records(self, waiting: Mapping[int, int]) -> int | None:
        """The most records to read at a time; None: no limit, no partition is behind. waiting: samples in
        hand, by partition."""
        unknown = any(one.unread is None for one in self._partitions.values())
        if not self.samples or not (unknown or self._behind):
            return None
        return max(1, sum(max(0, self._room(number) - waiting[number]) for number in self._partitions))

    @property
    def _behind(self) -> bool:
        return self.samples > 0 and any(map(self._is_behind, self._partitions))

    def is_urgent(self, versions: tuple[int, ...], waiting: int) -> bool:
        """Whether sending an update late costs accuracy or time. waiting: labels in hand."""
        if waiting:
            return True
        if self._behind:
            # What is learnt together is gathered first: clients that begin together go on together.
            return self._learnt_on == versions
        return min(versions) < YOUNG_LABELS * self._registry.limit

    def begin_step(self, versions: tuple[int, ...], waiting: Mapping[int, int], now: float) -> bool:
        """Note the versions of the model. Returns whether the pause ended in which clients wait for updates
        that are in no version.

        waiting: labels in hand, by partition.
        """
        before = self._versions or (0,) * len(versions)
        if versions != self._versions:
            self._versions = versions
            self._enough = [self._partitions[number] for number in self.full(waiting)]
        over = False
        for shard, earlier, version in zip(self._shards, before, versions, strict=True):
            if version != earlier:
                # A lower version comes from a server that began anew.
                shard.full = shard.full if version > earlier else version
                shard.since = now
            elif version < shard.full and now >= shard.since + PAUSE_SECONDS:
                shard.full, over = version, True
        return over

    @property
    def wake_at(self) -> float | None:
        """When clients stop waiting for updates that are in no version."""
        missing = (
            shard
            for shard, version in zip(self._shards, self._versions, strict=False)
            if version < shard.full
        )
        return min((shard.since + PAUSE_SECONDS for shard in missing if shard.since < math.inf), default=None)

    def set_back(self, now: float) -> None:
        """Replace every remembered time after ``now`` with ``now``: the clock was ahead."""
        for shard in self._shards:
            if shard.since < math.inf:
                shard.since = min(shard.since, now)

    def end_step(self, learnt: int) -> None:
        """End a step in which ``learnt`` labels were learnt."""
        if learnt:
            self._learnt_on = self._versions
        if 4 * self._granted < self._registry.limit:
            # If a topic holds one client's records after another's, few clients have samples in hand: read
            # further ahead.
            for partition in self._enough:
                partition.in_hand = min(MOST_IN_HAND, 2 * partition.in_hand)
        self._enough, self._granted, self._behind_now = [], 0, {}

    def full(self, waiting: Mapping[int, int]) -> list[int]:
        """The partitions with enough samples in hand. waiting: samples in hand, by partition."""
        if not self.samples:
            return []
        return [number for number, count in waiting.items() if count >= self._room(number)]

    # ---- who may learn

    def limit(self, client: Client, in_hand: int, waiting: Mapping[int, int], *, waited: bool) -> None:
        """Note whether the client is behind.

        in_hand: its labels that could be learnt.
        waiting: those of all clients, by partition.
        waited: some of its own had to wait before.
        """
        number = client.key[0]
        client.share = in_hand / max(1, in_hand, waiting[number])
        if not self.samples:
            client.limited = client.record.behind = False
            return
        behind = waited or in_hand > self._grant(client.record) or self._partition_is_behind(number)
        # A client that was behind stays behind until the model holds its last updates.
        behind = behind or (client.record.behind and not self._is_answered(client))
        client.limited = client.record.behind = behind and not self._silence.is_alone(number)

    def _partition_is_behind(self, number: int) -> bool:
        """:meth:`_is_behind`, computed once in a step: what it depends on stays the same while clients
        learn."""
        behind = self._behind_now.get(number)
        if behind is None:
            behind = self._behind_now[number] = self._is_behind(number)
        return behind

    def _grant(self, record: ClientRecord) -> int:
        """The labels that a client may learn on one version."""
        drawn = record.uploads_drawn
        granted = 1 + (drawn - 1) // LABELS_A_GRANT if drawn else 1
        return granted if granted < self.samples else self.samples

    def may_learn(self, client: Client) -> bool:
        """Whether the client may learn another label."""
        record = client.record
        return not client.limited or record.labels_learnt < record.granted or self._is_answered(client)

    def count(self, client: Client) -> None:
        """Note that the client learns a label."""
        if not self.samples:
            return
        record = client.record
        partition = self._partitions[client.key[0]]
        if self._is_answered(client):
            record.learnt_on, record.labels_learnt, record.awaited = self._versions, 0, ()
            record.granted = self._grant(record)
            self._granted += 1
            if client.limited:
                # Its share of what came since its last grant.
                more = round((partition.arrived - client.arrived) * client.share)
                record.granted += more
                self.granted_more += more
            client.arrived = partition.arrived
        record.labels_learnt += 1
        self._learnt_behind += client.limited

    def sent(self, client: Client, shard: int) -> None:
        """Note that an update of the client goes to a shard."""
        if not self.samples:
            return
        record = client.record
        if shard not in record.awaited:
            record.awaited = (*record.awaited, shard)
        known, version = self._shards[shard], self._versions[shard]
        known.since = math.inf
        known.full = client.in_version[shard] = (known.full if known.full > version else version) + 1

    def is_used_up(self, client: Client) -> bool:
        """Whether the client may learn no more labels before the model advances."""
        return client.limited and client.record.labels_learnt >= client.record.granted

    def _is_answered(self, client: Client) -> bool:
        """Whether every shard that the client's last updates went to holds them. True if no updates are under
        way.

        After a restart the version that holds them is not known: then any other version of the shard counts.
        """
        if client.uploading:
            return False
        learnt_on, versions = client.record.learnt_on, self._versions
        if learnt_on is not None:
            for shard in client.record.awaited:
                version = versions[shard]
                if (
                    version == learnt_on[shard]
                    or min(client.in_version.get(shard, 0), self._shards[shard].full) > version
                ):
                    return False
        return True

    # ---- what is reported

    def backlog(self, kind: str, waiting: int, clients: int) -> str | None:
        """A text on the backlog and what clients wait for; None: no backlog.

        kind: "samples" or "labels".
        waiting: how many of these wait in hand.
        clients: how many clients they belong to.
        """
        if self._silence.alone:
            return ALONE.format(self._silence.patience)
        if not (self._behind or (self.samples and waiting)):
            return None
        unread = sum(partition.total for partition in self._partitions.values())
        after = ", ".join(map(str, self._versions))
        return BACKLOG.format(unread, waiting, kind, clients, after or 0)

    def notices(self) -> Iterable[OperatorNotice]:
        notices, self._notices = self._notices, []
        return notices

    def measure(self) -> Iterable[Measurement]:
        behind = sum(map(self._is_behind, self._partitions)) if self.samples else 0
        yield UplinkMetrics.behind_partitions(behind)
        yield UplinkMetrics.catch_up_labels(self._learnt_behind)
        yield UplinkMetrics.catch_up_extra_labels(self.granted_more)
