"""A join of two streams by key that waits for the later side, bounded in size and time: samples and their
labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal, NamedTuple

import msgspec

from streamfl.contract.measurement import counter, gauge
from streamfl.contract.role import BadRecord, Measurement, OperatorNotice
from streamfl.encoding.changelog_checks import Time, check_name
from streamfl.state.clock_guard import overdue, set_back
from streamfl.state.table import named_key, split_name

__all__ = ["JoinKey", "JoinMetrics", "LabelJoin", "Pair"]


class JoinMetrics:
    """Metrics of samples and labels that are joined."""

    samples_without_label = gauge("Samples whose label has not come yet")
    labels_without_sample = gauge("Labels whose sample has not come yet")
    duplicate_labels = counter("Labels for a sample that already had one; the first one counts")
    repeated_samples = counter("Samples repeated under the same name; the first one is learnt from")
    unlearnt_samples = counter(
        "Samples forgotten without a label: labels.expiry_seconds or labels.limit",
        reason=("expired", "displaced"),
    )
    unused_labels = counter(
        "Labels forgotten without a sample: labels.expiry_seconds or labels.limit",
        reason=("expired", "displaced"),
    )


class JoinKey(NamedTuple):
    """The partition, client and name of a sample."""

    partition: int
    client: str
    sample: str


class Pair(NamedTuple):
    """A sample and its label.

    content: what the role that predicted the sample keeps of it.
    """

    key: JoinKey
    content: bytes
    label: float


class _Stage(IntEnum):
    SAMPLE, LABEL, JOINED, LEARNT = range(4)


Side = Literal["samples", "labels"]
STAGES: Final[dict[Side, _Stage]] = {"samples": _Stage.SAMPLE, "labels": _Stage.LABEL}


class _Entry(msgspec.Struct, array_like=True):
    """A sample, a label, or both.

    since: when it came to this stage, in seconds.
    """

    stage: _Stage
    since: Time
    content: bytes = b""
    label: float = 0.0


@dataclass
class _Partition:
    """The samples and labels of one partition.

    waiting: entries that may expire, oldest first.
    by_client: keys of these, oldest first.
    counts: how many of these are in each stage.
    kept: entries of this stage make room after all others.
    left_out_until: samples and labels that came until then are left out.
    labels: how many labels wait for their sample, by client, without those that are left out.
    left_out: how many entries are left out, by client.
    joined: pairs that wait to be learnt.
    """

    waiting: dict[JoinKey, _Entry] = field(default_factory=dict)
    by_client: dict[str, dict[JoinKey, None]] = field(default_factory=dict)
    counts: Counter[_Stage] = field(default_factory=Counter)
    kept: _Stage | None = None
    left_out_until: dict[_Stage, float] = field(default_factory=dict)
    labels: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    joined: dict[JoinKey, _Entry] = field(default_factory=dict)

    def put(self, key: JoinKey, entry: _Entry) -> None:
        self.waiting[key] = entry
        self.counts[entry.stage] += 1
        self._count(key, entry, 1)
        self.by_client.setdefault(key.client, {})[key] = None

    def take(self, key: JoinKey) -> _Entry:
        own = self.by_client[key.client]
        del own[key]
        if not own:
            del self.by_client[key.client]
        entry = self.waiting.pop(key)
        self.counts[entry.stage] -= 1
        self._count(key, entry, -1)
        return entry

    def _count(self, key: JoinKey, entry: _Entry, change: int) -> None:
        if self._is_left_out(entry):
            counts = self.left_out
        elif entry.stage is _Stage.LABEL:
            counts = self.labels
        else:
            return
        counts[key.client] += change
        if not counts[key.client]:
            del counts[key.client]

    def _is_left_out(self, entry: _Entry) -> bool:
        return entry.since <= self.left_out_until.get(entry.stage, -math.inf)

    def leave_out(self, until: Mapping[_Stage, float]) -> None:
        self.left_out_until = dict(until)
        self.labels.clear()
        self.left_out.clear()
        for key, entry in self.waiting.items():
            self._count(key, entry, 1)

    def makes_room(self, client: str) -> JoinKey:
        """The client's entry that is forgotten first."""
        own = self.by_client[client]
        oldest = next(iter(own))
        if self.waiting[oldest].stage is _Stage.LEARNT:
            return oldest
        if self.left_out[client]:
            return next(key for key in own if self._is_left_out(self.waiting[key]))
        return next((key for key in own if self.waiting[key].stage is not self.kept), oldest)


class LabelJoin:
    """Joins each sample and its label, whichever comes first, and reports samples and labels whose
    counterpart never comes.

    A pair that was joined stays until :meth:`learnt`. A label for a sample that has one already, or that was
    learnt, is a duplicate and changes nothing: the first one counts.

    expiry: seconds after which a sample without a label, a label without a sample, or the memory of a learnt
    pair is forgotten.
    limit: most of these per client. When it is full the client's oldest is forgotten, unless :meth:`keep`
        says otherwise.
    clients: most clients that may have something here. Above that, a label of a client that has nothing here
    is refused."""

    def __init__(self, expiry: float, limit: int, clients: int) -> None:
        self.expiry = expiry
        self.limit = limit
        self.clients = clients
        self._partitions: dict[int, _Partition] = {}
        self._changed: dict[JoinKey, _Entry | None] = {}
        self._duplicates = self._repeated = 0
        self._given_up = {
            (stage, why): 0 for stage in (_Stage.SAMPLE, _Stage.LABEL) for why in ("expired", "displaced")
        }
        self._told = dict(self._given_up)

    def open(self, partition: int) -> None:
        self._partitions[partition] = _Partition()

    def close(self, partition: int) -> None:
        del self._partitions[partition]
        self._changed = {key: entry for key, entry in self._changed.items() if key.partition != partition}

    def sample(self, key: JoinKey, content: bytes, now: float) -> Pair | None:
        """Take a sample that was predicted; returns the pair if its label was here first."""
        held = self._partitions[key.partition]
        entry = held.waiting.get(key) or held.joined.get(key)
        if entry is None:
            self._wait(key, _Entry(_Stage.SAMPLE, now, content))
        elif entry.stage is _Stage.LABEL:
            return self._join(key, content, entry.label, now)
        else:
            self._repeated += 1
        return None

    def check_room(self, partition: int, client: str) -> None:
        """BadRecord if there is no room for a label of a client that has nothing here yet."""
        if client in self._partitions[partition].by_client:
            return
        if sum(len(held.by_client) for held in self._partitions.values()) >= self.clients:
            raise BadRecord(
                "labels_keyed_otherwise",
                f"a label of {client!r}, which has sent no sample here: use the same keys for both topics, "
                "or let `streamfl rekey CONFIG` rekey one of them ([labels.rekey])",
            )

    def labels_without_sample(self, partition: int) -> Counter[str]:
        """How many labels wait for their sample, by client, without those that were left out."""
        return self._partitions[partition].labels

    def samples_without_label(self, partition: int) -> int:
        """How many samples wait for their label."""
        return self._partitions[partition].counts[_Stage.SAMPLE]

    def knows_samples(self, partition: int) -> bool:
        """Whether anything is remembered of a sample, with its label or without."""
        held = self._partitions[partition]
        return bool(held.joined or held.counts[_Stage.SAMPLE] or held.counts[_Stage.LEARNT])

    def largest(self, partition: int) -> int:
        """The most that a client has here: samples, labels, and the memory of pairs that were learnt."""
        return max(map(len, self._partitions[partition].by_client.values()), default=0)

    def leave_out(self, partition: int, what: Side, until: float) -> None:
        """Let the samples without a label, or the labels without a sample, that came until then make room
        first. :meth:`labels_without_sample` does not count them."""
        held, stage = self._partitions[partition], STAGES[what]
        if held.left_out_until.get(stage, -math.inf) < until:
            held.leave_out({**held.left_out_until, stage: until})

    def keep(self, partition: int, what: Side | None) -> None:
        """Let samples without a label make room after all else, or labels without a sample; None: the oldest
        makes room."""
        self._partitions[partition].kept = None if what is None else STAGES[what]

    def waits_since(self, key: JoinKey, what: Side) -> float | None:
        """When the sample came that waits for its label, or the label that waits for its sample; None: there
        is none."""
        entry = self._partitions[key.partition].waiting.get(key)
        return entry.since if entry is not None and entry.stage is STAGES[what] else None

    def label(self, key: JoinKey, label: float, now: float) -> Pair | None:
        """Take a label; returns the pair if its sample was predicted before."""
        held = self._partitions[key.partition]
        entry = held.waiting.get(key) or held.joined.get(key)
        if entry is None:
            self._wait(key, _Entry(_Stage.LABEL, now, label=label))
        elif entry.stage is _Stage.SAMPLE:
            return self._join(key, entry.content, label, now)
        else:
            self._duplicates += 1
        return None

    def learnt(self, key: JoinKey, now: float) -> None:
        """The pair was learnt. Only this fact is kept, so that its label is recognised when it comes
        again."""
        del self._partitions[key.partition].joined[key]
        self._wait(key, _Entry(_Stage.LEARNT, now))

    def set_back(self, now: float) -> None:
        """The clock was ahead: entries dated after ``now`` are dated ``now``."""
        for held in self._partitions.values():
            for entries in (held.waiting, held.joined):
                for key in set_back(entries, now):
                    self._remember(key, entries[key])
                    if entries is held.waiting:
                        own = held.by_client[key.client]
                        own[key] = own.pop(key)
            held.leave_out({})

    def forget(self, partition: int, client: str) -> None:
        """Forget everything about a client."""
        held = self._partitions[partition]
        for key in [*held.by_client.get(client, ())]:
            held.take(key)
            self._remember(key, None)
        for key in [key for key in held.joined if key.client == client]:
            del held.joined[key]
            self._remember(key, None)

    def expire(self, now: float) -> None:
        """Forget what has waited for too long."""
        for held in self._partitions.values():
            for key in overdue(held.waiting, self.expiry, now):
                self._give_up(held, key, "expired")

    @property
    def wake_at(self) -> float | None:
        """When something expires next."""
        oldest = [
            next(iter(held.waiting.values())).since for held in self._partitions.values() if held.waiting
        ]
        return min(oldest) + self.expiry if oldest else None

    def changed_state(self) -> Iterable[tuple[int, bytes, bytes | None]]:
        """Partition, key and value of what has changed since the last call, in the order of the changes."""
        for key, entry in self._changed.items():
            name = named_key(b"", key.client.encode(), key.sample.encode())
            yield key.partition, name, None if entry is None else msgspec.msgpack.encode(entry)
        self._changed = {}

    def restore(
        self, partition: int, name: bytes, value: bytes, check: Callable[[bytes], None]
    ) -> Pair | None:
        """Restore one value; values come in the order in which they were written. Returns the pair if it
        waits to be learnt.

        check: raises BadRecord for content that cannot be a sample's.
        """
        client, sample = split_name(name)
        key = JoinKey(partition, client, check_name(sample))
        entry = msgspec.msgpack.decode(value, type=_Entry)
        if entry.stage in (_Stage.SAMPLE, _Stage.JOINED):
            check(entry.content)
        elif entry.content:
            raise BadRecord(
                "shape", f"of a label, or of what was learnt, {len(entry.content)} bytes are kept"
            )
        held = self._partitions[partition]
        if entry.stage is _Stage.JOINED:
            held.joined[key] = entry
            return Pair(key, entry.content, entry.label)
        held.put(key, entry)
        return None

    def notices(self) -> Iterable[OperatorNotice]:
        """Samples and labels given up since the last call. Nothing is learnt from them."""
        for (stage, why), count in self._given_up.items():
            if count > self._told[stage, why]:
                came = count - self._told[stage, why]
                self._told[stage, why] = count
                reason = "samples_without_label" if stage is _Stage.SAMPLE else "labels_without_sample"
                one, _, other = reason.split("_")
                expired = why == "expired"
                cause, remedy = (
                    (f"after {self.expiry:g} s (labels.expiry_seconds)", "")
                    if expired
                    else (f"for labels.limit = {self.limit}", ", or raise labels.limit")
                )
                yield OperatorNotice(
                    reason,
                    f"{came} {one} were forgotten {cause} without their {other}: check that both topics have "
                    "the same keys, and that samples.sample_id and labels.sample_id give a sample the same "
                    f"name{remedy}",
                )

    def measure(self) -> Iterable[Measurement]:
        """Counters and gauges, labelled by side and reason only."""
        samples, labels = (
            sum(held.counts[stage] for held in self._partitions.values())
            for stage in (_Stage.SAMPLE, _Stage.LABEL)
        )
        yield JoinMetrics.samples_without_label(samples)
        yield JoinMetrics.labels_without_sample(labels)
        yield JoinMetrics.duplicate_labels(self._duplicates)
        yield JoinMetrics.repeated_samples(self._repeated)
        for stage, metric in (
            (_Stage.SAMPLE, JoinMetrics.unlearnt_samples),
            (_Stage.LABEL, JoinMetrics.unused_labels),
        ):
            for why in ("expired", "displaced"):
                yield metric(self._given_up[stage, why], why)

    def _join(self, key: JoinKey, content: bytes, label: float, now: float) -> Pair:
        held = self._partitions[key.partition]
        held.take(key)
        held.joined[key] = entry = _Entry(_Stage.JOINED, now, content, label)
        self._remember(key, entry)
        return Pair(key, content, label)

    def _wait(self, key: JoinKey, entry: _Entry) -> None:
        held = self._partitions[key.partition]
        held.put(key, entry)
        self._remember(key, entry)
        own = held.by_client[key.client]
        # Several are given up if the limit was lowered since they were stored.
        while len(own) > self.limit:
            self._give_up(held, held.makes_room(key.client), "displaced")

    def _give_up(self, held: _Partition, key: JoinKey, why: str) -> None:
        stage = held.take(key).stage
        if stage is not _Stage.LEARNT:
            self._given_up[stage, why] += 1
        self._remember(key, None)

    def _remember(self, key: JoinKey, entry: _Entry | None) -> None:
        # The changelog keeps the order in which keys were last written: the order of age.
        self._changed.pop(key, None)
        self._changed[key] = entry
