"""The bus: what a worker needs of Kafka, and all that streamfl knows of it.

A :class:`Bus` is a client of a cluster; a :class:`Session` is one worker's membership in a consumer group on
it. A worker polls, processes, and commits. If a rebalance took a partition away meanwhile, the whole commit
is refused (:class:`CommitRefused`).

Connectors are found by the scheme of the URL through the entry-point group ``streamfl.connectors``. Each is a
function ``connect(url, options) -> Bus``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol, cast, runtime_checkable

import msgspec

from streamfl.configuration.urls import check_url, scheme_of
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError, Record

__all__ = [
    "HOW_TO_CREATE",
    "Bus",
    "BusUnavailable",
    "CommitRefused",
    "Moved",
    "Outgoing",
    "Polled",
    "Session",
    "Step",
    "Subscription",
    "TopicPartition",
    "TopicSpec",
    "TopicState",
    "Unreadable",
    "connect",
    "new_transactional_id",
    "transactional_prefix",
]

HOW_TO_CREATE = "for instance with 'streamfl topics CONFIG --create', or with --create-inputs if it is yours"

TopicPartition = tuple[str, int]
Guarantee = Literal["exactly_once", "at_least_once"]


class BusUnavailable(Exception):
    """The cluster cannot be reached or does not answer. Trying again may help; the text names the cause."""


class CommitRefused(Exception):
    """The step was not committed and stays invisible, and the session has to restore its partitions.

    The next poll reports every partition as revoked, and those that the session still has as assigned.
    """


class Unreadable(Exception):
    """A batch of a topic cannot be read, now or later: it is damaged, or written in a format that this
    process does not know.

    offset: the first record that cannot be read.
    content: the bytes of the batch, empty if they are not available.
    following: the offset from which reading can go on; None if it is not known.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        cause: str,
        content: bytes = b"",
        following: int | None = None,
    ) -> None:
        super().__init__(f"{topic}-{partition}-{offset} cannot be read: {cause}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.cause = cause
        self.content = content
        self.following = following


@dataclass(frozen=True)
class TopicState:
    """A topic as it is. ``error`` is why it cannot be used ('not authorised', …). ``hidden`` is why
    ``compacted`` and ``options`` are not known, though it can be read.

    identity: changes when a topic is deleted and made again under its name; empty if it is not known.
    """

    name: str
    partitions: int
    compacted: bool
    options: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    identity: str = ""
    hidden: str | None = None


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A record to be written. timestamp: in seconds; None, a value that is no time, or one ahead of now: the
    time of writing."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: float | None = None

    def written_at(self, now: float) -> float:
        """The time that it gets, in seconds. A cluster would refuse a time too far ahead, and with it the
        whole step."""
        return now if self.timestamp is None or self.timestamp <= 0 else min(self.timestamp, now)


def transactional_prefix(group: str) -> str:
    """The prefix of the transactional ids of this group's workers, and of no other's: no federation's or
    party's name has a colon.

    With a hyphen the rights of a party p would hold for a party p-x too, and p could fence its workers.
    """
    return f"{group}:"


def new_transactional_id(group: str) -> str:
    """A transactional id that is new at every start of a worker. One right for the prefix covers all ids of
    the group."""
    return f"{transactional_prefix(group)}{uuid.uuid4()}"


@dataclass(frozen=True)
class Subscription:
    """What a worker joins: a group's co-partitioned inputs, tables that are read whole, and the guarantee of
    its commits.

    ``transactional_id`` begins with :func:`transactional_prefix` and may differ at every start.
    ``auto_offset_reset`` says where a group without offsets begins. If records are gone before they were
    read, "error" raises ConfigurationError; otherwise reading goes on at the first record that is left, and
    :class:`Moved` reports it.

    placed: inputs that may have more partitions than the role reads: nobody writes to these.
    partitions: how many partitions of each input are read; None: as many as inputs have that are not
    ``placed``, or as all have.
    """

    group: str
    inputs: tuple[str, ...]
    tables: tuple[str, ...] = ()
    guarantee: Guarantee = "exactly_once"
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    transactional_id: str = ""
    placed: frozenset[str] = frozenset()
    partitions: int | None = None

    def check(self, moved: Moved) -> None:
        """ConfigurationError if the group must not go on behind records that are gone."""
        if self.auto_offset_reset == "error":
            raise ConfigurationError(
                f"the record at offset {moved.position} of {moved.topic!r} partition {moved.partition}, "
                f"which the group {self.group!r} was to read next, is gone, and bus.auto_offset_reset = "
                f"'error': set 'earliest' to go on at offset {moved.following}"
            )


@dataclass(frozen=True)
class Moved:
    """The next record of an input partition is gone, so that reading goes on elsewhere.

    position: the offset that was to be read next.
    following: the offset where reading goes on. If it is after ``position``, the records between were deleted
    before they were read: by retention, or by hand. If it is before, the cluster has lost records that had
    been read.
    """

    topic: str
    partition: int
    position: int
    following: int


@dataclass
class Polled:
    """The result of a poll, to be handled in this order: revoked, assigned, tables, records, moved.

    revoked, assigned: partition numbers (inputs are co-partitioned: partition p of all of them).
    tables: records of the tables, in order within a partition.
    records: records of the inputs, in order within a partition.
    moved: input partitions whose next records were gone; the records that follow come with a later poll.
    epochs: by input partition of which records came, the epoch of the leader that wrote the last of them, as
    far as the bus knows.
    """

    revoked: list[int] = field(default_factory=list)
    assigned: list[int] = field(default_factory=list)
    tables: list[Record] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    epochs: dict[TopicPartition, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.revoked or self.assigned or self.tables or self.records or self.moved)

    def then(self, later: Polled) -> Polled:
        """This poll and a later one as one, without records of partitions that the later one revoked."""
        assigned = [partition for partition in self.assigned if partition not in later.revoked]
        records = [record for record in self.records if record.partition not in later.revoked]
        epochs = {place: epoch for place, epoch in self.epochs.items() if place[1] not in later.revoked}
        return Polled(
            self.revoked + later.revoked,
            assigned + later.assigned,
            self.tables + later.tables,
            records + later.records,
            self.moved + later.moved,
            epochs | later.epochs,
        )


@dataclass
class Step:
    """All that becomes visible together or not at all.

    positions: the offset after the last consumed record, by input partition.
    outputs: messages.
    changelog: changed state. Under at_least_once outputs are durable before the changelog is, and the
    changelog before the positions.
    """

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    outputs: list[Outgoing] = field(default_factory=list)
    changelog: list[Outgoing] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.positions or self.outputs or self.changelog)


class Session(Protocol):
    """One worker's membership. Not thread-safe, except :meth:`lag`."""

    def poll(self, timeout: float, max_records: int) -> Polled:
        """Wait at most ``timeout`` seconds for anything; never more than ``max_records`` input records.

        The first poll brings the tables whole, as they were when it was called. It may leave out all records
        of a key but the last, as compaction does. A poll that reports an assignment brings the tables up to
        date, because the earlier owner may have used their newest records. No records come from a partition
        before the poll after the one that reported it as assigned, so that the caller can restore and
        :meth:`seek` first.
        BusUnavailable if the cluster is away; ConfigurationError if a right or a topic is missing; Unreadable
        at a batch that cannot be read, once all records before it in its partition were returned. A later
        poll meets the batch again.
        """

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        """All committed records of a partition from its beginning to its present end. Unreadable at a batch
        that cannot be read."""

    def attend(self) -> None:
        """Take part in the group between two polls, if it drops a member that is silent for long. It may be
        called thousands of times a second."""

    def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset; waits while a commit of an earlier owner is undecided."""

    def seek(self, topic: str, partition: int, offset: int, epoch: int = -1) -> None:
        """Go on reading an assigned input partition at ``offset``.

        epoch: of the leader that wrote the record before, if it is known. A poll reports if the log was cut
        back behind that."""

    def commit(self, step: Step) -> None:
        """Make the step visible. After CommitRefused, BusUnavailable or ConfigurationError it is not visible
        and never will be."""

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Bring no more records of exactly these input partitions until told otherwise."""

    def lag(self) -> Mapping[TopicPartition, int]:
        """Records between the position and the end of each assigned input partition (control records may
        count).

        Below 0: the topic ends before the position, so it is not the one that was read.
        """

    def unread(self) -> Mapping[TopicPartition, int]:
        """The same as :meth:`lag`, as known from the last polls: it never asks the cluster. Unknown
        partitions are left out."""

    def close(self) -> None:
        """Leave the group. What was not committed stays invisible."""


@runtime_checkable
class Bus(Protocol):
    """A cluster. Any thread may call ``describe``, ``members``, ``committed``, ``offsets`` and
    ``undecided``."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name."""

    def members(self, group: str) -> int:
        """The number of members of a consumer group. A member that died counts until its session times
        out."""

    def committed(self, group: str) -> Mapping[TopicPartition, int]:
        """The committed offsets of a consumer group, without joining it; empty if it never committed."""

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet."""

    def partition_of(self, key: bytes, partitions: int) -> int:
        """The partition that this bus's own writers choose for a record with this key, in a topic of
        ``partitions`` partitions."""

    def session(self, subscription: Subscription) -> Session:
        """Join a group."""

    def write(self, records: Sequence[Outgoing]) -> None:
        """Write records outside any session and wait until they are durable."""

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        """Committed records from the beginning of every partition to the present end, at most ``limit``.

        Unreadable at a batch that cannot be read.
        """

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end; if ``offset`` is gone, from
        the first record left.

        Unreadable at a batch that cannot be read, with all that is available of the batch.
        """

    def offsets(self, topic: str, at: float) -> Mapping[int, int]:
        """By partition, the offset of the first record of that time or later; if there is none, the offset
        after the last record.

        at: in seconds. Minus infinity: the first record that is left. Infinity: the present end.
        """

    def undecided(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """Partitions with open transactions: the offset at which the first of these began, and the end
        offset.

        No reader of committed records gets records from there on until the transaction ends. A bus without
        open transactions returns none.
        """

    def codecs(self) -> Sequence[str]:
        """The compressions that batches may have here, each tested by decompressing an example; empty on a
        bus without compression.

        ConfigurationError names those that cannot be read, and what to install.
        """

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        """The first and the last ``count`` committed records of each of these partitions, in order, each
        once.

        The time does not grow with the size of a partition. After short transactions there may be fewer than
        ``count``."""

    def close(self) -> None:
        """Free the bus's resources."""


def connect(url: str, options: Mapping[str, Any] | None = None) -> Bus:
    """The bus at ``url``. ConfigurationError if no connector is installed for its scheme, or the URL holds
    more than a place."""
    try:
        scheme = scheme_of(check_url(url))
    except ValueError as error:
        raise ConfigurationError(f"bus.url: {error}") from None
    for found in entry_points(group="streamfl.connectors", name=scheme):
        return cast(Bus, found.load()(url, dict(options or {})))
    known = sorted({point.name for point in entry_points(group="streamfl.connectors")})
    raise ConfigurationError(
        f"bus.url: no connector for {scheme!r} is installed (known: {', '.join(known)}). "
        f"Install a package that offers the entry point {scheme!r} in the group 'streamfl.connectors'."
    )
