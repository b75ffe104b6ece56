"""The channels of a role: which topics it reads and writes, and how."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from streamfl.contract.dealt import Dealt
from streamfl.contract.role import Headers, Record

__all__ = ["Channels", "Decode", "DecodesRuns", "Input", "Receiver", "Seal", "Sender", "TopicSpec"]

Decode = Callable[[Record], Any]


@runtime_checkable
class DecodesRuns(Protocol):
    """The further interface of a decoder that decodes records in a row in less time than one by one."""

    def __call__(self, record: Record) -> Any:
        """The message in a record; errors as in :class:`Input`."""

    def run(self, records: Sequence[Record]) -> Sequence[Any] | None:
        """What ``__call__`` gives for records of one partition; None if it raises an error for one."""


Seal = Callable[[bytes | None, bytes | None, int | None], Headers]
"""From a record's key, value and partition to the headers that prove who wrote it."""


@dataclass(frozen=True)
class Sender:
    """Who writes an input: workers of the role ``kind``. claimed_sender: the member for whom a message
    speaks, if any."""

    kind: str
    claimed_sender: Callable[[Any], str | None]


@dataclass(frozen=True)
class Receiver:
    """Who reads an output: workers of the role ``kind``; of the party ``name``, if there are several
    parties."""

    kind: str
    name: str | None = None


@dataclass(frozen=True)
class Input:
    """A topic that a role reads and how its records become messages.

    ``decode`` raises BadRecord, IgnoredRecord or NotYetReadable. It may be one that decodes records in a row
    together (:class:`DecodesRuns`).

    makes_room: whether waiting messages in the role wait for these. Then this input is read even while a
    partition is full.
    keyed_by: gives a name in a message. The message has to be in the bus's own partition for this name as
    key. None: in any.
    sender: the peers that write the topic; None: the user writes it.
    client: gives the client in whose name the role speaks because of a message.
    signed: where members have keys, each record, or the message it is a part of, has a signature that the
    system itself checks.
    signed_for_all: where members have keys, each record has a signature, which is checked before the record
    is decoded.
    placed: its writers name the partition of every message. So further partitions of the topic stay empty.
    strict: decoders that each refuse what the role accepts silently, such as unreadable values. `streamfl
    check` reports each of them that refuses all records.
    """

    topic: str
    decode: Decode
    makes_room: bool = False
    keyed_by: Callable[[Any], str] | None = None
    sender: Sender | None = None
    client: Callable[[Any], str] | None = None
    strict: Sequence[Decode] = ()
    signed: bool = False
    signed_for_all: bool = False
    placed: bool = False


@dataclass(frozen=True)
class TopicSpec:
    """A topic as the federation needs it. ``partitions`` None: any number will do.

    options: settings that it must have (numbers: at least).
    preferred: settings that a topic made by streamfl gets besides.
    users: the topic is the user's own, and streamfl does not judge its retention.
    caution: what its readers learn beyond what its name says, for the administrator who grants the right to
    read it.
    reason: why it needs this number of partitions.
    """

    name: str
    partitions: int | None
    compacted: bool
    options: Mapping[str, str] = field(default_factory=dict)
    preferred: Mapping[str, str] = field(default_factory=dict)
    users: bool = False
    caution: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Channels:
    """The topics behind the channel names that a role uses.

    inputs: streams that one consumer group shares, partition p of each to the same worker.
    tables: compacted topics that every worker reads whole, whatever partitions it was assigned.
    outputs: topics that the role sends to.
    changelogs: compacted topics that restore partition p from partition p.
    receivers: the peers that read an output; messages to them name their partition.
    party: the party in whose name all messages are sent, if there is one.
    published: changelogs that peers read too, and that others may therefore write to. The role gets all their
    records, in order, and tells its own from others'.
    seals: where members have keys, headers for each record of an output.
    times: for outputs whose records have another time than that of their writing: finds it, in seconds, in a
    record's headers.
    signed: outputs that everybody may read and act on: where members have keys, each record is signed for
    all.
    lasting: changelogs that outlive the federation, such as the spent part of a person's budget. Other
    federations restore them under other settings.
    dealt: to which client each part of the state belongs, so that it can move to more partitions.
    begins_anew: whether the state may be deleted while peers keep theirs.
    partitions: how many partitions of its inputs the role reads; None: as many as the inputs have.
    """

    inputs: Mapping[str, Input]
    outputs: Mapping[str, str]
    changelogs: Mapping[str, str]
    tables: Mapping[str, Input] = field(default_factory=dict)
    receivers: Mapping[str, Receiver] = field(default_factory=dict)
    party: str | None = None
    published: Collection[str] = ()
    seals: Mapping[str, Seal] = field(default_factory=dict)
    times: Mapping[str, Callable[[Headers], float | None]] = field(default_factory=dict)
    lasting: Collection[str] = ()
    signed: Collection[str] = ()
    dealt: Dealt | None = None
    begins_anew: bool = True
    partitions: int | None = None

    @property
    def sources(self) -> Mapping[str, Input]:
        """What the role reads, by channel: inputs, then tables."""
        return {**self.inputs, **self.tables}

    @property
    def own_changelogs(self) -> dict[str, str]:
        """Those of this federation alone."""
        return {channel: topic for channel, topic in self.changelogs.items() if channel not in self.lasting}
