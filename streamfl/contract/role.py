"""The contract between a role (protocol and mathematics) and the worker that runs it.

A role is a state machine: messages in, messages out. It has no clock (``now`` is given), no socket, no thread
and no randomness but :mod:`streamfl.contract.seeding`. One role object hosts every partition that its worker
was assigned, so that all records of a poll are one array operation. Each piece of its state belongs to
exactly one partition and moves with it.

The laws of a role, each a reusable test in :mod:`streamfl.testing`:

1. deterministic: the same state and the same input give the same output, bit for bit;
2. a batch equals its messages one by one, to floating-point rounding;
3. restoring what ``changed_state`` gave and going on equals never having stopped;
4. a message that a peer got wrong gives a :class:`Rejection` for that message alone and changes no state;
5. a message delivered twice changes nothing the second time;
6. memory is bounded: whatever waits has a size and an expiry, and expiry is counted;
7. what follows from accepted messages fits into records, of changelogs and of topics, and can be restored;
8. a tick replaces every remembered time that is later than now with now, in the changelog too
   (:mod:`streamfl.state.clock_guard`);
9. a batch in runs, however cut, equals a list of its messages, bit for bit (:mod:`streamfl.contract.batch`).

A batch with messages is never a tick: the clock's time passes for a role only with an empty batch. There the
role checks timeouts and whatever else falls due at ``wake_at``. A message is judged by its own time in its
topic alone, so that it does not matter how long the role was away. Only budgets of bytes count real time.

The worker gives a tick as soon as ``wake_at`` is reached, in the same step after a batch if there is one.
Two ticks come whatever ``wake_at`` is. One follows the opening of partitions: restored state may be able to
go on. One follows a clock that was set back: the role may wait for a time that is now far away. The worker
withholds ticks while messages that lay in a partition's inputs when it was opened are unread: a role that was
away reads them before time passes. It gives them all the same if the partition is full, or if nothing could
be read for as long as the worker waits for a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from streamfl.contract.measurement import Measurement
from streamfl.contract.refusals import IGNORED

__all__ = [
    "BadRecord",
    "ConfigurationError",
    "DataError",
    "Headers",
    "IgnoredRecord",
    "Measurement",
    "NotYetReadable",
    "OperatorNotice",
    "Received",
    "Record",
    "Rejection",
    "Role",
    "Send",
    "StateChange",
    "Work",
    "receive_at_once",
]


class ConfigurationError(Exception):
    """The operator has to change something; the text says what, where and to which values."""


class DataError(Exception):
    """A data set that cannot be used as it is; the text says which one and why."""


class BadRecord(Exception):
    """A record of a user, a member or the role's own changelog that cannot be used. ``reason`` is one of a
    small fixed set: it labels a metric and a dead letter."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason
        self.text = text


class IgnoredRecord(Exception):
    """A record that is no message and nobody's mistake. The worker counts it and writes no dead letter.

    reason: one of ``streamfl.contract.refusals.IGNORED``; it labels a metric.
    """

    def __init__(self, reason: str) -> None:
        if reason not in IGNORED:
            raise ValueError(f"{reason!r}: one of {', '.join(IGNORED)} is expected")
        super().__init__(reason)
        self.reason = reason


class NotYetReadable(Exception):
    """A record cannot be read at present, and not because of its sender: a service that is needed to read it
    does not answer.

    The text says what the worker waits for and what the operator can do. Nothing is lost: the worker reads
    the record again later. Raised while records are written, it ends the step, which is done again later.
    again: asks the service once more, and raises NotYetReadable while there is still no answer.
    """

    def __init__(self, text: str, again: Callable[[], object] = lambda: None) -> None:
        super().__init__(text)
        self.again = again


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of a topic. ``timestamp`` is in seconds."""

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
    """A message to publish on an output. ``partition`` None leaves the choice to the key; a message to
    another member names it, unless its channel is signed: with keys it could not be sealed. ``headers``: for
    the user's consumers."""

    channel: str
    key: bytes | None
    value: bytes
    partition: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Rejection(msgspec.Struct, frozen=True):
    """A received message that the role refused; the worker sends it to the dead letters."""

    received: Received
    error: BadRecord


class Work(msgspec.Struct, frozen=True, gc=False):
    """A long computation that the role asks for in place of a reply. The worker does it beside its loop.

    channel: the channel of the :class:`Received` that brings the result as its message, with ``key``; no
    topic has this name.
    function: a pure function of a module. The same content gives the same result in any process, so anything
    random in it has to follow from ``content``. It reports failures in its result; an error that it raises
    ends the worker.

    The next ``receive`` brings all results of this one together, in the order in which the role asked for
    them. It comes before any other message, and before the messages that led to the work are committed. So
    remembered state never contains work under way, and after a crash the same messages ask for the work
    again.
    """

    channel: str
    partition: int
    key: bytes
    function: Callable[[bytes], bytes]
    content: bytes

    def received(self, number: int, result: bytes) -> Received:
        """The result as the role gets it. number: the place of this work among all that one ``receive`` asked
        for."""
        return Received(self.channel, result, Record(self.channel, self.partition, number, self.key, result))


class StateChange(msgspec.Struct, frozen=True, gc=False):
    """A remembered value of one partition, in one changelog. The value None forgets the key."""

    channel: str
    partition: int
    key: bytes
    value: bytes | None


class OperatorNotice(msgspec.Struct, frozen=True):
    """A notice for the operator's log. A role has no logger: the worker logs the first of each ``reason``,
    then a rate.

    reason: one of a small fixed set.
    text: what happened, to whom, and what to do about it.
    of_records: whether the notice follows from the records alone, without the role's state. ``streamfl
    check`` does not restore the state and shows only these.
    """

    reason: str
    text: str
    of_records: bool = False


Headers = tuple[tuple[str, bytes], ...]


@runtime_checkable
class Role(Protocol):
    """The interface of every role: the worker, the simulator and the law suite call it."""

    @property
    def wake_at(self) -> float | None:
        """The time from which the role wants an empty batch (a tick), whatever else arrives; None: never."""

    @property
    def full(self) -> Collection[int]:
        """Partitions whose waiting messages have reached their bound: the worker reads only those inputs that
        make room."""

    @property
    def waiting(self) -> Mapping[str, int]:
        """How much of each kind the role has taken and not worked off yet, without zeros. The kinds are few
        and fixed. Waiting until a time shows in ``wake_at`` instead."""

    @property
    def prompt(self) -> bool:
        """Whether peers wait for each message of this role. Then the worker does not gather records for a
        whole commit interval."""

    @property
    def trouble(self) -> str | None:
        """Why the role cannot do its work at present, and what to do about it; None if it can. The worker is
        then not ready."""

    def open(self, partition: int) -> None:
        """Begin a partition with an empty state."""

    def restore(self, change: StateChange) -> None:
        """Restore a change that ``changed_state`` once gave. Called between ``open`` and the partition's
        first message."""

    def close(self, partition: int) -> None:
        """Drop a partition's state: another worker has the partition now."""

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
        """Take messages in order. Only an empty batch is a tick. ``now`` is in seconds; it may go back."""

    def changed_state(self) -> Iterable[StateChange]:
        """The changes of remembered state since the last call, in the order in which to write them."""

    def notices(self) -> Iterable[OperatorNotice]:
        """Notices for the operator's log about what the role received since the last call."""

    def forget(self, name: str) -> bool:
        """Remove a client from every open partition, as if it had never been there. False if the role does
        not know it; ConfigurationError if it forgets no single client."""

    def measure(self) -> Iterable[Measurement]:
        """The role's figures, computed at the call."""


def receive_at_once(role: Role, batch: Sequence[Received], now: float) -> list[Send | Rejection]:
    """The role's answers to a batch. Work that it asks for is done here, at once, for callers without a
    worker's loop."""
    answers: list[Send | Rejection] = []
    replies = role.receive(batch, now)
    while True:
        work = [one for one in replies if isinstance(one, Work)]
        answers += [one for one in replies if not isinstance(one, Work)]
        if not work:
            return answers
        replies = role.receive(
            [one.received(number, one.function(one.content)) for number, one in enumerate(work)], now
        )
