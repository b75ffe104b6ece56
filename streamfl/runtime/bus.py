"""The bus: what a worker needs of Kafka, and all that streamfl knows of it.

A :class:`Bus` is a cluster that one is allowed to talk to; a :class:`Session` is one worker's membership in a consumer group on it.
Nothing is processed between two polls that a rebalance could take away: a worker polls, processes, and commits, and a commit that
comes too late is refused whole (:class:`CommitRefused`).

Connectors are found by the scheme of the URL through the entry-point group ``streamfl.connectors``, each a function
``connect(url, options) -> Bus``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol, cast, runtime_checkable

import msgspec

from streamfl.role import ConfigurationError, Record, TopicSpec
from streamfl.urls import check_url, scheme_of

__all__ = [
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

TopicPartition = tuple[str, int]
Guarantee = Literal["exactly_once", "at_least_once"]


class BusUnavailable(Exception):
    """The cluster cannot be reached or does not answer. Trying again may help; the text names the cause."""


class CommitRefused(Exception):
    """The step was not committed, nothing of it will be seen, and the session has to restore its partitions.

    The next poll reports every partition as revoked and the ones still assigned as assigned.
    """


class Unreadable(Exception):
    """What lies in a topic cannot be read, now or later: damaged, or written in a way that this process does not know.

    offset: of the first record that cannot be read. content: the batch as it lies there, empty where it cannot be had. following:
    the offset from which reading can go on; None where that is not known.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, cause: str, content: bytes = b"", following: int | None = None
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
    """A topic as it is. ``error`` is why it cannot be used ('not authorised', …).

    identity: a topic that was deleted and made again under its name has another one; empty where it is not known.
    """

    name: str
    partitions: int
    compacted: bool
    options: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    identity: str = ""


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A record to be written. timestamp: in seconds; None, and one that is no time or ahead of now: that of its writing."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: float | None = None

    def written_at(self, now: float) -> float:
        """The time that it gets, in seconds. A cluster refuses what is too far ahead, and with it the whole step."""
        return now if self.timestamp is None or self.timestamp <= 0 else min(self.timestamp, now)


def transactional_prefix(group: str) -> str:
    """What the transactional ids of this group's workers begin with, and of no other: no name of a federation or party has a colon.

    After a hyphen the right of a party p would hold for a party p-x too, and p could have its workers fenced.
    """
    return f"{group}:"


def new_transactional_id(group: str) -> str:
    """A name that no other start of a worker of this group has; the prefix lets one right cover all of them."""
    return f"{transactional_prefix(group)}{uuid.uuid4()}"


@dataclass(frozen=True)
class Subscription:
    """What a worker joins: co-partitioned inputs in a group, tables read whole, and how commits are guaranteed.

    ``transactional_id`` begins with :func:`transactional_prefix` and may differ at every start. ``auto_offset_reset`` says where a
    group without offsets begins. Where records are gone before they were read, "error" raises ConfigurationError; otherwise reading
    goes on at the first record that is left, and :class:`Moved` says so.
    """

    group: str
    inputs: tuple[str, ...]
    tables: tuple[str, ...] = ()
    guarantee: Guarantee = "exactly_once"
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    transactional_id: str = ""

    def check(self, moved: Moved) -> None:
        """ConfigurationError if the group is not to go on behind records that are gone."""
        if self.auto_offset_reset == "error":
            raise ConfigurationError(
                f"the record at offset {moved.position} of {moved.topic!r} partition {moved.partition}, which the group "
                f"{self.group!r} was to read next, is gone, and bus.auto_offset_reset = 'error': set 'earliest' to go on at offset "
                f"{moved.following}"
            )


@dataclass(frozen=True)
class Moved:
    """What was to be read next of an input partition is gone, so that reading goes on elsewhere.

    position: the offset that was to be read next. following: where reading goes on. If that is further on, the records between were
    deleted before they were read: by retention, or by hand. If it is before, the cluster has lost records that had been read.
    """

    topic: str
    partition: int
    position: int
    following: int


@dataclass
class Polled:
    """What a poll brought, to be handled in this order: revoked, assigned, tables, records, moved.

    revoked, assigned: partition numbers (inputs are co-partitioned: partition p of all of them). tables: records of the tables, in
    order within a partition. records: records of the inputs, in order within a partition. moved: input partitions whose next
    records were gone; those that follow come with a later poll. epochs: by input partition, which leader wrote the last record that
    came, as far as the bus knows.
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
        """This poll and a later one as one. What came of a partition that is gone by then is another worker's."""
        assigned = [partition for partition in self.assigned if partition not in later.revoked]
        records = [record for record in self.records if record.partition not in later.revoked]
        return Polled(
            self.revoked + later.revoked,
            assigned + later.assigned,
            self.tables + later.tables,
            records + later.records,
            self.moved + later.moved,
            self.epochs | later.epochs,
        )


@dataclass
class Step:
    """What becomes visible together or not at all.

    positions: the offset after the last consumed record, by input partition. outputs: messages. changelog: what is remembered.
    Under at_least_once outputs are durable before the changelog is, and the changelog before the positions.
    """

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    outputs: list[Outgoing] = field(default_factory=list)
    changelog: list[Outgoing] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.positions or self.outputs or self.changelog)


class Session(Protocol):
    """One worker's membership. Not thread-safe, but for :meth:`lag`."""

    def poll(self, timeout: float, max_records: int) -> Polled:
        """Wait at most ``timeout`` seconds for anything; never more than ``max_records`` input records.

        The first poll brings the tables whole, as they were when it was called; of a key's records it may leave out all but the
        last, as compaction does. A poll that reports an assignment brings them up to date, for whoever had the partition before
        may have used what lies in them. No records come from a partition before the poll after the one that reported it as
        assigned, so that the caller can restore and :meth:`seek` first.
        BusUnavailable if the cluster is away; ConfigurationError if a right or a topic is missing; Unreadable at a batch that
        cannot be read, once all before it in its partition was given. A later poll meets it again.
        """

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        """All committed records of a partition from its beginning to its present end. Unreadable at a batch that cannot be read."""

    def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset; waits until no earlier owner's commit is still undecided."""

    def seek(self, topic: str, partition: int, offset: int, epoch: int = -1) -> None:
        """Go on reading an assigned input partition at ``offset``.

        epoch: of the leader that wrote the record before, if it is known. Where the log was cut back behind that, a poll says so.
        """

    def commit(self, step: Step) -> None:
        """Make the step visible. CommitRefused, BusUnavailable or ConfigurationError mean that it is not and never will be."""

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Bring no more records of exactly these input partitions until told otherwise."""

    def lag(self) -> Mapping[TopicPartition, int]:
        """Records between the position and the end of each assigned input partition (control records may count).

        Below 0: the topic ends before the position, so it is not the one that was read.
        """

    def unread(self) -> Mapping[TopicPartition, int]:
        """The same as :meth:`lag`, as far as the last polls told: it never asks the cluster. What is not known is left out."""

    def close(self) -> None:
        """Leave the group. What was not committed is not seen."""


@runtime_checkable
class Bus(Protocol):
    """A cluster. ``describe`` and ``members`` may be called from any thread."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name."""

    def members(self, group: str) -> int:
        """The members of a consumer group at present; those that died unnoticed count until their session is over."""

    def committed(self, group: str) -> Mapping[TopicPartition, int]:
        """The committed offsets of a consumer group, without joining it; of a group that never committed there are none."""

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet."""

    def partition_of(self, key: bytes, partitions: int) -> int:
        """The partition, of so many, that this bus's own writers choose for a record of this key."""

    def session(self, subscription: Subscription) -> Session:
        """Join a group."""

    def write(self, records: Sequence[Outgoing]) -> None:
        """Write records outside any session and wait until they are durable."""

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        """Committed records from the beginning of every partition to the present end, at most ``limit``.

        Unreadable at a batch that cannot be read.
        """

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end; if that is gone, from the first that is left.

        Unreadable, with all that can be had of it, at a batch that cannot be read.
        """

    def offsets(self, topic: str, at: float) -> Mapping[int, int]:
        """By partition, the offset of the first record of that time or later; where there is none, the one after the last record.

        at: in seconds. Minus infinity: the first record that is left. Infinity: the present end.
        """

    def undecided(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """The partitions with a transaction that is neither committed nor aborted: where the first of them began, and the end.

        Records from there on are not given to anybody before it is. A bus on which that takes no time has none.
        """

    def codecs(self) -> Sequence[str]:
        """The compressions that batches may have here, each tried on something compressed; none where nothing is compressed.

        ConfigurationError names those that cannot be read, and what to install.
        """

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        """The first and the last committed records of each of these partitions, ``count`` of either at most, in order, each once.

        It takes as long on a partition of millions as on one of hundreds. Where transactions were short there may be fewer.
        """

    def close(self) -> None:
        """Give back what the bus holds."""


def connect(url: str, options: Mapping[str, Any] | None = None) -> Bus:
    """The bus at ``url``; ConfigurationError if nothing is installed for its scheme, or more than a place is in it."""
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
