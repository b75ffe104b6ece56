"""How a client that is behind learns in step with the model, and how long it waits for a server that is silent.

A client is *behind* while more than n of its labels lie unlearnt in hand, or more than n for each client of its partition lie
unread in the topic. It then learns n labels on one version of the model, sends its updates, and goes on when the model has advanced.
A client that is not behind never waits. Nobody waits for another client.

A client that is behind and gets new records all the same is granted as many labels more as came meanwhile, so that its backlog
shrinks by n with each version, however fast the records come.

When no new version comes for the patience while somebody waits, the clients of the partition go on alone, until one comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from streamfl.pofmkl.seats import Client, Seats
from streamfl.restored import Time
from streamfl.role import Measurement, Notice, StateChange
from streamfl.wire import Count

__all__ = ["CATCH_UP", "CatchUp"]

CATCH_UP = b"catch-up"
# Samples in hand: fewer where that is enough to serve every client, more where only few clients find something to learn.
LEAST_IN_HAND, MOST_IN_HAND = 64, 4096
# A model that has seen little changes fast: a client begins with one label a version, and gets one more after so many.
LABELS_A_STEP = 8
ALONE = (
    "no new version of the model has come for learning.catch_up_patience_seconds = {:g} while samples of a backlog waited for one: "
    "clients learn alone until one comes. Start the pofmkl-server, or look at what its log says of this client's updates"
)
BEHIND = (
    "partition {} holds {} records that were not read yet: its clients learn the backlog in step with the model, {} labels a "
    "client on each version"
)


class _Silence(msgspec.Struct, array_like=True):
    """What is remembered of a partition.

    versions: of the model's shards when somebody began to wait for the next; None: nobody waits.
    since: when that was.
    alone: the patience was spent before a new version came.
    """

    versions: tuple[Count, ...] | None = None
    since: Time = 0.0
    alone: bool = False


@dataclass(slots=True)
class _Partition:
    """A partition that is open.

    unread: records behind those that were taken; None: not known yet.
    arrived: records that came into the topic since it was opened.
    in_hand: the most samples that are taken ahead.
    """

    silence: _Silence = field(default_factory=_Silence)
    changed: bool = False
    unread: int | None = None
    arrived: int = 0
    in_hand: int = LEAST_IN_HAND
    told: bool = False

    def end_silence(self) -> None:
        self.silence.versions, self.silence.alone, self.changed = None, False, True


class CatchUp:
    """Says who is behind, what a client may learn before the model has advanced, and how much is read ahead.

    samples: n, the labels of a client on one version while it is behind; 0: no client ever waits.
    patience: seconds without a new version after which those who wait go on alone.
    seats: the clients.
    """

    def __init__(self, samples: int, patience: float, seats: Seats) -> None:
        self.samples = samples
        self.patience = patience
        self.learnt_alone = self.granted_more = 0
        self._seats = seats
        self._partitions: dict[int, _Partition] = {}
        self._notices: list[Notice] = []

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
            if not partition.told and self._is_behind(number):
                partition.told = True
                self._notices.append(Notice("behind", BEHIND.format(number, unread, self.samples)))

    def _is_behind(self, number: int) -> bool:
        unread = self._partitions[number].unread
        return unread is not None and unread > self.samples * max(1, self._seats.count(number))

    def _room(self, number: int) -> int:
        return max(self._partitions[number].in_hand, 2 * self.samples * self._seats.count(number))

    def most_records(self, waiting: Mapping[int, int]) -> int | None:
        """The most records to take at a time; None: no partition is behind. waiting: samples in hand, by partition."""
        unknown = any(one.unread is None for one in self._partitions.values())
        if not self.samples or not (unknown or self.behind):
            return None
        return max(1, sum(max(0, self._room(number) - waiting[number]) for number in self._partitions))

    @property
    def behind(self) -> bool:
        """Whether a partition holds a backlog."""
        return self.samples > 0 and any(map(self._is_behind, self._partitions))

    def full(self, waiting: Mapping[int, int]) -> list[int]:
        """The partitions of which enough is in hand. waiting: samples in hand, by partition."""
        if not self.samples:
            return []
        return [number for number, count in waiting.items() if count >= self._room(number)]

    def look_further(self, learnt: int, waiting: Mapping[int, int]) -> None:
        """The model has advanced, and so many labels could be learnt.

        Where a topic holds one client's records after the other's, few clients have something in hand. Then more is read ahead.
        """
        for number in self.full(waiting):
            partition = self._partitions[number]
            if 4 * learnt < partition.in_hand:
                partition.in_hand = min(MOST_IN_HAND, 2 * partition.in_hand)

    # ---- who may learn

    def limit(self, client: Client, in_hand: int, waiting: Mapping[int, int], *, waited: bool) -> None:
        """Note whether the client is behind.

        in_hand: its labels that could be learnt. waiting: those of all clients, by partition. waited: some of its own could not
        before.
        """
        number = client.key[0]
        client.share = in_hand / max(1, in_hand, waiting[number])
        client.limited = (
            self.samples > 0
            and (waited or in_hand > self.samples or self._is_behind(number))
            and not self._partitions[number].silence.alone
        )

    def may_learn(self, client: Client, versions: tuple[int, ...]) -> bool:
        """Whether the client may learn another label."""
        record = client.record
        return not client.limited or record.labels_learnt < record.granted or _is_answered(client, versions)

    def count(self, client: Client, versions: tuple[int, ...]) -> None:
        """The client learns a label on these versions."""
        if not self.samples:
            return
        record = client.record
        partition = self._partitions[client.key[0]]
        if _is_answered(client, versions):
            record.learnt_on, record.labels_learnt, record.awaited = versions, 0, ()
            record.granted = min(self.samples, 1 + record.uploads_drawn // LABELS_A_STEP)
            if client.limited:
                # Its share of what came since it was granted the last ones.
                more = round((partition.arrived - client.arrived) * client.share)
                record.granted += more
                self.granted_more += more
            client.arrived = partition.arrived
        record.labels_learnt += 1
        if partition.silence.alone:
            self.learnt_alone += 1

    def sent(self, client: Client, shard: int) -> None:
        """An update of the client goes to a shard."""
        if self.samples and shard not in client.record.awaited:
            client.record.awaited = (*client.record.awaited, shard)

    def is_used_up(self, client: Client) -> bool:
        """Whether the client may learn no more labels before the model advances."""
        return client.limited and client.record.labels_learnt >= client.record.granted

    # ---- who waits in vain

    @property
    def wake_at(self) -> float | None:
        waiting = [one.silence for one in self._partitions.values() if one.silence.versions is not None and not one.silence.alone]
        return min((silence.since + self.patience for silence in waiting), default=None)

    def hear(self, versions: tuple[int, ...]) -> None:
        """These are the versions of the model: whoever waited for others waits no longer, and is not alone."""
        for partition in self._partitions.values():
            if partition.silence.versions not in (None, versions):
                partition.end_silence()

    def look(self, versions: tuple[int, ...], waiting: Mapping[int, int], now: float, *, tick: bool) -> bool:
        """Note in which partitions labels wait for the model; True if the patience with it was spent just now.

        waiting: how many, by partition.
        """
        spent = False
        for number, partition in self._partitions.items() if self.samples else ():
            silence = partition.silence
            if not waiting[number] and silence.versions is not None and not silence.alone:
                partition.end_silence()
            if waiting[number] and silence.versions is None:
                silence.versions, silence.since, partition.changed = versions, now, True
            if tick and silence.versions is not None and not silence.alone and now >= silence.since + self.patience:
                silence.alone = partition.changed = spent = True
        if spent:
            self._notices.append(Notice("alone", ALONE.format(self.patience)))
        return spent

    @property
    def alone(self) -> bool:
        """Whether clients learn without the server."""
        return any(one.silence.alone for one in self._partitions.values())

    def set_back(self, now: float) -> None:
        """Let a wait that began after ``now`` have begun now: the clock was ahead."""
        for partition in self._partitions.values():
            if partition.silence.since > now:
                partition.silence.since, partition.changed = now, True

    # ---- what is remembered and told

    def changed_state(self) -> Iterable[StateChange]:
        for number, partition in self._partitions.items():
            if partition.changed:
                partition.changed = False
                yield StateChange("state", number, CATCH_UP, msgspec.msgpack.encode(partition.silence))

    def restore(self, partition: int, value: bytes) -> None:
        """Take back what a partition waits for."""
        self._partitions[partition].silence = msgspec.msgpack.decode(value, type=_Silence)

    def notices(self) -> Iterable[Notice]:
        notices, self._notices = self._notices, []
        return notices

    def measure(self) -> Iterable[Measurement]:
        behind = sum(map(self._is_behind, self._partitions)) if self.samples else 0
        text = "Partitions with a backlog, which is learnt in step with the model"
        yield Measurement("behind_partitions", "gauge", text, behind)
        text = "1 while clients learn without the server, which did not answer for learning.catch_up_patience_seconds"
        yield Measurement("alone", "gauge", text, float(self.alone))
        yield Measurement("labels_learnt_alone", "counter", "Labels learnt in that time", self.learnt_alone)
        text = "Labels learnt beyond learning.catch_up_samples on one version, because as many came meanwhile"
        yield Measurement("catch_up_extra_labels", "counter", text, self.granted_more)


def _is_answered(client: Client, versions: tuple[int, ...]) -> bool:
    """Whether every shard that the client's last updates went to has advanced since; also if nothing of it is under way."""
    learnt_on, awaited = client.record.learnt_on, client.record.awaited
    if client.uploading:
        return False
    return learnt_on is None or all(versions[shard] != learnt_on[shard] for shard in awaited)
