"""Reads the samples and the labels of a history in step, where labels have a topic of their own.

Kafka gives no order between topics. If the samples of a history were read first, all of them would be
predicted by a model that has learnt nothing. So while many samples and many labels of theirs are unread, the
labels are read first, and only as many samples are read as the clients may learn on one version of the model.
Samples do not wait for labels of earlier samples that come late, such as yesterday's in one batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from streamfl.contract.role import Record
from streamfl.pofmkl.client.catch_up import CatchUp
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.partition_reading import LABELS, MISSES, MODEL, SAMPLES, PartitionReading, Wait
from streamfl.pofmkl.client.registered_client import Client
from streamfl.records.join import JoinKey, LabelJoin
from streamfl.records.labels import Label
from streamfl.records.samples import Sample

__all__ = ["ReadingOrder"]

# The most labels of a partition that wait for their samples, and the part of labels.limit that those of one
# client may take. The rest of that remembers what the client has learnt: its oldest entry is forgotten first,
# and that must not be a label whose sample comes next.
MOST_LABELS, LABELS_SHARE = 10_000, 4
# Each ten samples in a row without a label in hand raise the number that is read at a time by one: a year
# without labels takes minutes, and few of the samples behind it are read too early.
MISSES_A_SAMPLE = 10
# If one client has most of the labels in hand, fewer samples are read, but at least this part of the pace:
# those of that client may never come.
FEWER = 16
# While no sample in hand has its label, nobody knows which of the two lack their counterpart. Labels are read
# until a client has LABELS_ON of labels.limit, then samples until it has SAMPLES_ON of it, so that nothing is
# displaced. Then the input that has more records is read on, and what is in hand of the other one is kept.
LABELS_ON, SAMPLES_ON = 0.5, 0.9
# Labels are late if more samples wait for them than clients learn on this many versions. Fewer can be waited
# for.
LATE = 4


class ReadingOrder:
    """Decides for each partition which of samples and labels is read first.

    catch_up: says how much is unread, and how many labels the clients learn on one version.
    join: has the labels whose sample has not come.
    patience: seconds after which an input waits no longer for what does not come.
    takes_part: in lockstep, whether the open round waits for a client; None: there are no rounds.
    """

    def __init__(
        self,
        catch_up: CatchUp,
        join: LabelJoin,
        registry: ClientRegistry,
        patience: float,
        takes_part: Callable[[Client], bool] | None,
    ) -> None:
        self._catch_up = catch_up
        self._join = join
        self._registry = registry
        self._patience = patience
        self._takes_part = takes_part
        self._share = max(1, join.limit // LABELS_SHARE)
        self._partitions: dict[int, PartitionReading] = {}
        self._last_now = 0.0
        self._was_full = False  # the last poll with samples or labels

    def open(self, partition: int) -> None:
        self._partitions[partition] = PartitionReading()

    def close(self, partition: int) -> None:
        del self._partitions[partition]

    def received(self, message: Sample | Label, record: Record) -> bool:
        """Note that a sample or a label came. Returns whether its label is in hand."""
        partition = self._partitions[record.partition]
        if isinstance(message, Sample):
            channel = SAMPLES
            if not partition.received[SAMPLES] and self._join.knows_samples(record.partition):
                partition.next_offset = None
            met = self._join.waits_since(JoinKey(record.partition, message.client, message.id), LABELS)
            if met is not None and partition.misses >= MISSES:
                # None of the samples before this one has a label in hand.
                self._join.leave_out(record.partition, SAMPLES, self._last_now)
            partition.note_sample(record.offset, met)
            partition.sample_came = self._last_now
            has_label = met is not None
        else:
            channel, has_label = LABELS, True
            came = self._join.waits_since(JoinKey(record.partition, message.client, message.sample), SAMPLES)
            partition.note_label(came, self._last_now)
        partition.received[channel] += 1
        partition.written_at[channel] = record.timestamp
        return has_label

    def learnt(self, partition: int) -> None:
        """Note that a label was learnt."""
        self._partitions[partition].learnt += 1

    def look(self, pairs: Mapping[int, int], now: float, *, full: bool | None) -> None:
        """Decide which inputs wait from now on.

        pairs: samples with a label that wait for the model, by partition.
        full: whether as many records came as were asked for; None: the model alone came. While poll after
            poll is full, more may lie there for those that wait, and their patience does not run.
        """
        crowded = now - self._last_now if full and self._was_full else 0.0
        self._was_full = self._was_full if full is None else full
        self._last_now = now
        for number, partition in self._partitions.items():
            waiting = set(self._waiting(number, partition, pairs[number]))
            for channel, progress in partition.awaited.items():
                wait = partition.waits.get(channel)
                if channel not in waiting:
                    partition.waits.pop(channel, None)
                elif wait is None or wait.progress != progress:
                    partition.waits[channel] = Wait(progress, now)
                elif self._is_held(wait):
                    wait.since += crowded
        if any(map(self._wants_labels, self._partitions.values())):
            # Many labels are read at a time, and few samples. So samples wait for the labels of all
            # partitions: read together, labels would be as few at a time as samples.
            for partition in self._partitions.values():
                if LABELS in partition.waits:
                    partition.waits.setdefault(SAMPLES, Wait(partition.awaited[SAMPLES], now))
            return
        # Samples without labels are read many at a time. Other backlogs wait meanwhile: with them, samples
        # would be read few at a time.
        lacking = filter(self._lacks_labels, self._partitions.values())
        first = max(lacking, key=lambda partition: partition.misses, default=None)
        for partition in self._partitions.values():
            if first is not None and partition is not first and partition.is_history:
                for channel, progress in partition.awaited.items():
                    partition.waits.setdefault(channel, Wait(progress, now))

    def _waiting(self, number: int, partition: PartitionReading, pairs: int) -> Iterable[str]:
        """The inputs that have to wait."""
        self._join.keep(number, None)
        pace, unread = self._catch_up.pace(number), self._catch_up.unread(number)
        if not pace or unread is None:
            return
        if partition.late or partition.early:
            partition.labels_are_late = partition.late > partition.early
            partition.late = partition.early = 0
        are_late = partition.labels_are_late and self._join.samples_without_label(number) > LATE * pace
        if unread[SAMPLES] <= pace or are_late:
            partition.is_history = False
        elif unread[LABELS] > pace:
            partition.is_history = True
        if partition.is_history:
            # Labels are read first, so samples without a label make room for labels.
            self._join.keep(number, LABELS)
            enough = unread[LABELS] <= pace or self._has_enough_labels(number, partition)
            if not self._samples_wanted(number, pairs):
                yield MODEL
            if not enough:
                yield SAMPLES
            elif unread[SAMPLES]:
                yield LABELS

    def _samples_wanted(self, number: int, pairs: int) -> int:
        """How many samples may be read before the model advances. pairs: those in hand that wait for it.

        Where only some samples have a label, more are read: as many labels are learnt as if all had.
        """
        wanted = self._labels_wanted(number, pairs)
        in_hand = self._join.labels_without_sample(number).total()
        return max(wanted, min(wanted, in_hand) * self._partitions[number].samples_a_label)

    def _labels_wanted(self, number: int, pairs: int) -> int:
        """How many samples with a label may be read before the model advances."""
        known, others = self._labels_in_hand(number)
        if self._takes_part is None or not (known or others):
            return max(0, self._most_samples(number, [count for _, count in known]) - pairs)
        # A round waits for every client. Whatever comes before a client's next sample has to be read.
        lacking = sum(self._takes_part(client) for client, _ in known)
        # Clients without any sample may have none at all: few samples are read for them.
        ahead = max(LATE, self._registry.count(number)) - pairs
        return lacking + max(0, min(len(others), ahead))

    def _most_samples(self, number: int, labels: Sequence[int]) -> int:
        """The most samples to read on one version of the model. labels: in hand, of each client with samples.

        What is read is predicted at once: a sample beyond what its client may learn is predicted without what
        the labels before it teach. The labels in hand tell whose samples come next. If most are of one
        client, fewer samples are read.
        """
        pace = self._catch_up.pace(number)
        if not labels:
            return pace
        fewer = pace * sum(labels) // (self._registry.count(number) * max(labels))
        return max(1, min(pace, max(fewer, pace // FEWER)))

    def _labels_in_hand(self, number: int) -> tuple[list[tuple[Client, int]], dict[str, int]]:
        """How many labels wait for their samples: of clients that have samples, and of others by name, which
        may wait for ever."""
        known: list[tuple[Client, int]] = []
        others: dict[str, int] = {}
        for name, count in self._join.labels_without_sample(number).items():
            client = self._registry.find((number, name))
            if client is None:
                others[name] = count
            else:
                known.append((client, count))
        return known, others

    def _has_enough_labels(self, number: int, partition: PartitionReading) -> bool:
        """Whether so many labels are in hand that their samples have to be read first."""
        labels, (known, others) = self._join.labels_without_sample(number), self._labels_in_hand(number)
        most = max((count for _, count in known), default=0)
        if partition.misses >= MISSES:
            partition.without_samples.intersection_update(labels)
            partition.without_samples.update(others)
            reads_samples = self._may_read_samples(number, partition, most)
            self._join.keep(number, LABELS if reads_samples else SAMPLES)
            if not reads_samples:
                return False
        if not self._registry.count(number):
            return labels.total() >= self._share
        # A client may be new, and its samples come next. If they do not come, its labels may wait for ever.
        new = max((others[name] for name in others.keys() - partition.without_samples), default=0)
        return most >= self._share or new > self._join.limit - self._share or labels.total() >= MOST_LABELS

    def _may_read_samples(self, number: int, partition: PartitionReading, most: int) -> bool:
        """Whether samples are read on, many of which came without a label in hand; else labels are.

        most: labels in hand of a client that has samples."""
        if partition.met > -math.inf:
            # Whatever came before the label that was met last is of earlier samples. What came in the same
            # step may be of later ones.
            self._join.leave_out(number, LABELS, math.nextafter(partition.met, -math.inf))
            return True
        if not partition.deleted:
            if self._room(number):
                in_all = self._join.labels_without_sample(number).total()
                return most >= LABELS_ON * self._join.limit or in_all >= MOST_LABELS
            if partition.written_at[LABELS] >= partition.written_at[SAMPLES]:
                # A label is written after its sample: these are of later ones.
                return True
            # They are of earlier samples. Or the topics were filled one after the other, as from two files,
            # and their times say nothing.
            unread = self._catch_up.unread(number) or {}
            records = {
                channel: count + unread.get(channel, 0) for channel, count in partition.received.items()
            }
            if records[LABELS] < records[SAMPLES]:
                return True
        self._join.leave_out(number, LABELS, self._last_now)
        return False

    def _room(self, number: int) -> int:
        """How many more labels every client may have in hand before labels and samples displace one another;
        0: too few to read on without knowing which lack their counterpart."""
        largest, limit = self._join.largest(number), self._join.limit
        return limit - largest if largest < SAMPLES_ON * limit else 0

    def _is_held(self, wait: Wait | None) -> bool:
        return wait is not None and self._last_now < wait.since + self._patience

    def _is_paused(self, partition: PartitionReading, channel: str) -> bool:
        waits_for = (SAMPLES, MODEL) if channel == SAMPLES else (channel,)
        return any(self._is_held(partition.waits.get(one)) for one in waits_for)

    def _wants_labels(self, partition: PartitionReading) -> bool:
        """Whether its labels are read, and its samples wait."""
        return self._is_paused(partition, SAMPLES) and LABELS not in partition.waits

    def _lacks_labels(self, partition: PartitionReading) -> bool:
        """Whether its samples are read, and the last ones came without a label in hand."""
        return (
            partition.is_history
            and partition.misses >= MISSES
            and not partition.waits.keys() & {SAMPLES, MODEL}
            and self._last_now < partition.sample_came + self._patience
        )

    @property
    def paused(self) -> list[tuple[str, int]]:
        """The inputs that wait, by channel and partition."""
        return [
            (channel, number)
            for number, partition in self._partitions.items()
            for channel in (SAMPLES, LABELS)
            if self._is_paused(partition, channel)
        ]

    def most_records(self, pairs: Mapping[int, int]) -> int | None:
        """The most records to read at a time; None: any number. pairs: as in :meth:`look`.

        The least of all partitions that are read, because a poll may bring the records of one partition
        alone."""
        limits = []
        for number, partition in self._partitions.items():
            pace = self._catch_up.pace(number)
            if self._is_paused(partition, SAMPLES) and self._is_paused(partition, LABELS):
                continue
            if pace and (partition.is_history or self._catch_up.unread(number) is None):
                labels, samples = self._share, self._samples_wanted(number, pairs[number])
                if partition.misses >= MISSES:
                    labels = min(labels, self._room(number) or labels)
                    samples = max(samples, partition.misses // MISSES_A_SAMPLE)
                limits.append(max(1, labels if self._wants_labels(partition) else samples))
        return min(limits, default=None)

    @property
    def wake_at(self) -> float | None:
        """When an input waits no longer."""
        waits = [wait for partition in self._partitions.values() for wait in partition.waits.values()]
        return min((wait.since + self._patience for wait in waits if self._is_held(wait)), default=None)

    def set_back(self, now: float) -> None:
        """Replace every remembered time after ``now`` with ``now``: the clock was ahead."""
        self._last_now = min(self._last_now, now)
        for partition in self._partitions.values():
            partition.held_until = min(partition.held_until, now)
            partition.sample_came = min(partition.sample_came, now)
            # Labels that came later than this one have its time now.
            partition.met = -math.inf if partition.met > now else partition.met
            for wait in partition.waits.values():
                wait.since = min(wait.since, now)
