"""The contract between a role (protocol and mathematics) and whatever runs it.

A role is a state machine: messages in, messages out. It has no clock (``now`` is given), no socket, no thread and no randomness but
:mod:`streamfl.seeding`. One role object hosts every partition that its worker was assigned, so that all records of a poll are one
array operation; what it remembers belongs to exactly one partition and moves with it.

The laws of a role, each a reusable test in :mod:`streamfl.testing`:

1. deterministic: the same state and the same input give the same output, bit for bit;
2. a batch equals its messages one by one, to floating-point rounding;
3. restoring what ``changed_state`` gave and going on equals never having stopped;
4. a message that a peer got wrong gives a :class:`Rejection` for that message alone and leaves the state as it was;
5. a message delivered twice changes nothing the second time;
6. memory is bounded: whatever waits has a size and an expiry, and expiry is counted;
7. what was accepted can be written: whatever it is remembered as, and whatever is sent of it, fits into a record and is taken back;
8. at a tick every time that is remembered becomes the earlier of then and now, and is remembered so (:mod:`streamfl.clock_guard`).

A batch is never a tick. The clock's time passes for a role with an empty batch only: timeouts and whatever else falls due at
``wake_at`` are looked at there, and among messages nothing but the messages' own time in their topic may count, so that none is
judged by how long the role was away. The exception is what may be sent: a budget of bytes a second is of real time, whoever asks.
A tick comes as soon as ``wake_at`` is reached, in the same step after a batch if there is one. Whatever ``wake_at`` says, one comes
after partitions were opened, for what was restored may be able to go on, and one when the clock was set back, for what was noted
by a clock that was ahead would be waited for until that time comes again. A tick is withheld while messages that lay in a
partition's inputs when it was opened are still unread, unless the partition is full, or nothing of them can be read for as long as
a cluster is waited for: whoever was away hears what was said meanwhile before time passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from streamfl.dealt import Dealt
from streamfl.measurement import Measurement

__all__ = [
    "CatchesUp",
    "Channels",
    "ConfigurationError",
    "DataError",
    "Headers",
    "IgnoredRecord",
    "Input",
    "Measurement",
    "NotYetReadable",
    "OperatorNotice",
    "PeerError",
    "Received",
    "Receiver",
    "Record",
    "Rejection",
    "Role",
    "Seal",
    "Send",
    "Sender",
    "StateChange",
    "TopicSpec",
    "Waits",
    "Work",
    "receive_at_once",
]


class ConfigurationError(Exception):
    """Something the operator has to change; the text says what, where and to which values."""


class DataError(Exception):
    """A data set that cannot be used as it is; the text says which one and why."""


class PeerError(Exception):
    """A record that its sender got wrong. ``reason`` is one of a small fixed set: it labels a metric and a dead letter."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason
        self.text = text


class IgnoredRecord(Exception):
    """A record that is no message and nobody's mistake. It is counted, and it is no dead letter.

    reason: one of ``REASONS``; it labels a metric.
    """

    REASONS: ClassVar[Mapping[str, str]] = {
        "deletion": "a row was deleted",
        "tombstone": "a record without a value, which lets compaction forget a key",
        "no_row": "an event of a change log that is about no row: a truncation, a heartbeat, a message",
        "header": "the line that names a CSV file's columns",
        "moved": "it came where its client's state was before partitions were added, and was sent on to where it is now",
    }

    def __init__(self, reason: str) -> None:
        if reason not in self.REASONS:
            raise ValueError(f"{reason!r}: one of {', '.join(self.REASONS)} is expected")
        super().__init__(reason)
        self.reason = reason


class NotYetReadable(Exception):
    """A record that cannot be read at present, and not because of its sender: what it takes to read it does not answer.

    The text says what is awaited and what the operator can do. Nothing may be lost for it: the record is read again later. Raised
    by what writes records, it ends the step, as if the cluster were away.
    """


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as it lies in a topic. ``timestamp`` is in seconds."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: float = 0.0


class Received(msgspec.Struct, frozen=True, gc=False):
    """A decoded message on one of the role's inputs, with the record it came in."""

    channel: str
    message: Any
    record: Record

    @property
    def partition(self) -> int:
        return self.record.partition


class Send(msgspec.Struct, frozen=True, gc=False):
    """A message to publish on an output. ``partition`` None leaves the choice to the key. ``headers``: for the user's consumers."""

    channel: str
    key: bytes | None
    value: bytes
    partition: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Rejection(msgspec.Struct, frozen=True):
    """A received message that the role refused; the runner sends it to the dead letters."""

    received: Received
    error: PeerError


class Work(msgspec.Struct, frozen=True, gc=False):
    """Computation that takes long, asked for in place of a reply; the worker does it beside its loop.

    channel: on which the result comes, as the message of a :class:`Received`, with ``key``; no topic has this name. function: of a
    module, pure: the same content gives the same result in any process, so whatever is random in it follows from ``content``. What
    it cannot do it says in its result; an error that it raises ends the worker.

    All results of one ``receive`` come together in the next one, in the order in which they were asked for, at once: before any
    other message, and before anything that led to them is committed. So no work is ever under way in what is remembered, and work
    that a crash cut short is asked for again, by the same messages.
    """

    channel: str
    partition: int
    key: bytes
    function: Callable[[bytes], bytes]
    content: bytes

    def received(self, number: int, result: bytes) -> Received:
        """The result as the role gets it; number: its place among those that were asked for with it."""
        return Received(self.channel, result, Record(self.channel, self.partition, number, self.key, result))


class StateChange(msgspec.Struct, frozen=True, gc=False):
    """One remembered value of one partition on one changelog; value None forgets the key."""

    channel: str
    partition: int
    key: bytes
    value: bytes | None


class OperatorNotice(msgspec.Struct, frozen=True):
    """Something for the operator's log. A role has no logger: the worker logs the first of each ``reason``, then a rate.

    reason: one of a small fixed set. text: what happened, to whom, and what to do about it.
    of_records: it follows from the records alone, whatever the role remembers; ``streamfl check``, which does not take the state
    back, tells no other.
    """

    reason: str
    text: str
    of_records: bool = False


Decode = Callable[[Record], Any]
Headers = tuple[tuple[str, bytes], ...]
Seal = Callable[[bytes | None, bytes | None, int | None], Headers]
"""Of a record's key, value and partition: the headers that prove who wrote it."""


@dataclass(frozen=True)
class Sender:
    """Whose messages an input has: workers of the role ``kind``. claimed_sender: whom a message speaks for, if any."""

    kind: str
    claimed_sender: Callable[[Any], str | None]


@dataclass(frozen=True)
class Receiver:
    """For whom an output is: workers of the role ``kind``, those of the party ``name`` if there are several."""

    kind: str
    name: str | None = None


@dataclass(frozen=True)
class Input:
    """A topic that a role reads and how its records become messages.

    ``decode`` raises PeerError, IgnoredRecord or NotYetReadable.

    makes_room: what waits in the role waits for these messages, so they are read while a partition is full.
    keyed_by: the name in a message that says in which partition it has to lie, by the bus's own choice for a key; None: in any.
    sender: the peers that write it; None: the user does.
    client: in whose name the role speaks because of such a message.
    signed: where members have keys, each record, or what it is a part of, has a signature that the system itself checks.
    strict: what finds unreadable values, where the role takes these and tells nobody: `streamfl check` says if all are so.
    """

    topic: str
    decode: Decode
    makes_room: bool = False
    keyed_by: Callable[[Any], str] | None = None
    sender: Sender | None = None
    client: Callable[[Any], str] | None = None
    strict: Decode | None = None
    signed: bool = False


@dataclass(frozen=True)
class TopicSpec:
    """A topic as the federation needs it. ``partitions`` None: any number will do.

    options: settings that it must have (numbers: at least). preferred: settings that a topic made by streamfl gets besides.
    users: it is the user's own, and how long its records are kept is not ours to judge. caution: what its readers learn that its
    name does not say, for whoever grants the right to read it. reason: why it has so many partitions, for the operator.
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
    """Which topics stand behind the names a role uses.

    inputs: streams that one consumer group shares, partition p of each to the same worker.
    tables: compacted topics that every worker reads whole, whatever partitions it was assigned.
    outputs: topics that the role sends to. changelogs: compacted topics that restore partition p from partition p.
    receivers: the peers that read an output; what is sent there names its partition. party: in whose name all of it is sent, if it
    is one's. published: changelogs that peers read too, and that somebody else may therefore write to: the role is given all of
    their records, in order, and tells its own from others'. seals: where members have keys, headers for each record of an output.
    times: of outputs whose records have another time than that of their writing, how it is found in a record's headers, in seconds.
    signed: outputs that everybody may read and act on: where members have keys, each record is signed for all.
    lasting: changelogs that outlive the federation, such as what was spent of a person's budget: other federations take them back
    under other settings, and nobody deletes them to begin anew. dealt: whose state it is, so that it can move where the inputs get
    more partitions; None: it cannot.
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

    @property
    def own_changelogs(self) -> dict[str, str]:
        """Changelogs of this federation alone."""
        return {channel: topic for channel, topic in self.changelogs.items() if channel not in self.lasting}


@runtime_checkable
class Role(Protocol):
    """What a worker, the simulator and the law suite ask of every role."""

    @property
    def wake_at(self) -> float | None:
        """The time from which the role wants an empty batch (a tick), whatever else arrives; None: never."""

    @property
    def full(self) -> Collection[int]:
        """Partitions whose waiting messages have reached their bound: nothing more of their inputs, please, but what makes room."""

    @property
    def waiting(self) -> Mapping[str, int]:
        """What the role took and still has to work off, and how much of each kind, without zeros. The kinds are few and fixed.

        What it waits for until a time comes shows in ``wake_at``.
        """

    @property
    def prompt(self) -> bool:
        """Peers wait for each message of this role: do not hold records back to fill the commit interval."""

    @property
    def trouble(self) -> str | None:
        """Why the role cannot do its work at present, and what to do about it; None if it can. The worker is then not ready."""

    def open(self, partition: int) -> None:
        """Begin a partition with an empty state."""

    def restore(self, change: StateChange) -> None:
        """Take back what ``changed_state`` once gave. Called between ``open`` and the partition's first message."""

    def close(self, partition: int) -> None:
        """Forget a partition: another worker has it now."""

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
        """Take messages in order. Only an empty batch is a tick. ``now`` is in seconds; it may be set back."""

    def changed_state(self) -> Iterable[StateChange]:
        """What has to be remembered since the last call, in the order in which it has to be written."""

    def notices(self) -> Iterable[OperatorNotice]:
        """What the operator's log should say of what was received since the last call."""

    def forget(self, name: str) -> bool:
        """Remove a client from every open partition, as if it had never been there; False if it is not known."""

    def measure(self) -> Iterable[Measurement]:
        """The role's figures, computed when asked for."""


@runtime_checkable
class Waits(Protocol):
    """What a worker asks besides of a role that may wait before it learns."""

    @property
    def backlog(self) -> str | None:
        """What it waits for and how much of it is there, in a sentence; None: nothing. The worker serves all the same."""


@runtime_checkable
class CatchesUp(Waits, Protocol):
    """What a worker asks besides of a role that learns a backlog in step with its peers, and not all of it at once."""

    @property
    def most_records(self) -> int | None:
        """The most records of its inputs that the role takes at a time now; None: as many as the worker likes."""

    @property
    def urgent(self) -> bool:
        """As ``prompt``, for now: accuracy, or the speed of catching up, depends on how soon peers hear."""

    def unread(self, records: Mapping[int, int]) -> None:
        """How many records lie behind those of the next batch, by partition; control records may count.

        A partition of which that is not known is left out. It is part of the input: called before every ``receive``.
        """


def receive_at_once(role: Role, batch: Sequence[Received], now: float) -> list[Send | Rejection]:
    """What comes of a batch in the end: the work that the role asks for is done here, for whoever has no loop to keep going."""
    answers: list[Send | Rejection] = []
    replies = role.receive(batch, now)
    while True:
        work: list[Work] = []
        for reply in replies:
            if isinstance(reply, Work):
                work.append(reply)
            else:
                answers.append(reply)
        if not work:
            return answers
        replies = role.receive([one.received(number, one.function(one.content)) for number, one in enumerate(work)], now)
