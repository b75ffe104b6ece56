"""A role with few partitions and much work in each: it takes messages one by one and asks the worker for long
computations.

A message that asked for work is finished when the results have come. Later messages wait until then, within
the same step. So a batch equals its messages one by one, and remembered state never contains work under way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from streamfl.contract.channels import Decode
from streamfl.contract.measurement import Counts, counter
from streamfl.contract.refusals import REFUSALS
from streamfl.contract.role import (
    BadRecord,
    Headers,
    Measurement,
    Received,
    Record,
    Rejection,
    Send,
    StateChange,
    Work,
)
from streamfl.contract.system import System
from streamfl.roles.message_fragments import FragmentMetrics, Limits, LongMessages
from streamfl.roles.notices import Notices
from streamfl.roles.reply_deadline import ReplyDeadline
from streamfl.roles.task_role import RememberedTask, TaskRole
from streamfl.state.clock_guard import earliest
from streamfl.state.table import StateRow

__all__ = ["FRAGMENTS", "Outbox", "OutboxCounts", "PartitionedRole", "RefusalMetrics", "Task", "metrics_of"]

WORK = "work"
FRAGMENTS = StateRow(
    "parts/PART",
    "A part of a message whose other parts have not come yet, or which of the sender's messages have come "
    "whole.",
    "When a part comes. Deleted when the message is whole.",
    "As many as belong to the messages that may be under way. Beyond it the oldest message is dropped.",
)
Then = Callable[[bytes], None]


class OutboxCounts(Counts):
    """What every member counts."""

    bytes_sent = counter("Bytes of messages to other members")
    work = counter("Computations that were started in other processes")


class RefusalMetrics:
    """Metrics of refused messages."""

    refused_messages = counter("Messages that were refused", reason=None)


def metrics_of(counts: type[OutboxCounts], *own: type) -> tuple[type, ...]:
    """The classes that declare what a member measures. counts: its counters. own: its tasks' metrics."""
    return (FragmentMetrics, counts, RefusalMetrics, *own)


Own = TypeVar("Own", bound=OutboxCounts, covariant=True)


class Outbox(Generic[Own]):
    """Collects what a partition's messages lead to: records to send, and work to ask for.

    partition: its number.
    counts: the member's counters, for the operator.
    record: the record of the message that is being taken; None at a tick.
    """

    def __init__(self, partition: int, counts: Own, notices: Notices) -> None:
        self.partition = partition
        self._counts = counts
        self.notices = notices
        self.record: Record | None = None
        self._sends: list[Send] = []
        self._asked: deque[tuple[Work, Then]] = deque()

    @property
    def counts(self) -> Own:
        return self._counts

    def send(self, channel: str, values: Iterable[bytes], headers: Headers = ()) -> int:
        """Send a message as one or more records; returns their total bytes. headers: the headers of each
        record."""
        size = 0
        for value in values:
            size += len(value)
            self._sends.append(Send(channel, None, value, self.partition, headers))
        self._counts.bytes_sent += size
        return size

    def publish(self, channel: str, name: str, value: bytes, headers: Headers = ()) -> None:
        """Send a record to the users' consumers. name: the entity, which becomes the key."""
        self._sends.append(Send(channel, name.encode(), value, None, headers))

    def ask(self, function: Callable[[bytes], bytes], content: bytes, then: Then) -> None:
        """Ask for work. then: called with the result; if it raises BadRecord, the message that asked for the
        work is refused."""
        self._counts.work += 1
        key = b"%d" % len(self._asked)
        self._asked.append((Work(WORK, self.partition, key, function, content), then))

    def take(self) -> tuple[list[Send], list[tuple[Work, Then]]]:
        """The records and the work since the last call."""
        sends, asked = self._sends, list(self._asked)
        self._sends, self._asked = [], deque()
        return sends, asked


class Task(RememberedTask, Protocol):
    """A member's state and protocol on one partition."""

    @property
    def outbox(self) -> Outbox[OutboxCounts]: ...

    @property
    def wake_at(self) -> float | None: ...

    @property
    def owed(self) -> bool:
        """Whether a peer still has to answer this partition."""

    @property
    def owing(self) -> Sequence[str]:
        """The peers that still have to answer this partition, by the names with which they send."""

    @property
    def trouble(self) -> str | None: ...

    @property
    def awaited(self) -> str | None:
        """A sentence on what the partition waits for before it can learn or predict, and how much of it is
        there; None: nothing."""

    def take(self, channel: str, message: Any, now: float) -> None: ...

    def pass_time(self, now: float) -> None: ...

    def set_back(self, now: float) -> None: ...

    def measure(self) -> Iterator[Measurement]: ...


One = TypeVar("One", bound=Task)


class PartitionedRole(TaskRole[One]):
    """A role that has one task for each partition.

    make: builds a task without state.
    decode: the decoder of each input from a peer, whose messages may come in several records.
    limits: bounds of these messages.
    patience: seconds that an answer may be owed before the member is not ready.
    counts: the counters of the member.
    system: its reasons for refusals and notices.
    kept_apart: by the name of a further changelog, the changes that a task wants written there and not to its
    other state.
    senders: members that may send messages in parts; None: anybody."""

    prompt = True

    def __init__(
        self,
        make: Callable[[Outbox[Own]], One],
        decode: Mapping[str, Decode],
        limits: Limits,
        patience: float,
        kind: str,
        counts: Own,
        system: System,
        kept_apart: Mapping[str, Callable[[One], Iterable[tuple[bytes, bytes | None]]]] | None = None,
        senders: Collection[str] | None = None,
    ) -> None:
        super().__init__(
            lambda partition: make(Outbox(partition, counts, self._notices)),
            "the member's state",
            system.notices,
        )
        self.kind = kind
        self._kept_apart = kept_apart or {}
        self._peers = decode.keys()
        self._reasons = {*REFUSALS, *system.refusals}
        self._long = LongMessages(
            decode,
            lambda message: str(message.sender),
            "state",
            FRAGMENTS.prefix,
            limits,
            senders,
            passes_repeated=True,
        )
        self._patience = patience
        self._reply_deadlines: dict[int, ReplyDeadline] = {}
        self._queue: deque[Received] = deque()
        # For each work under way: its partition, the message that asked for it, and the function that takes
        # the result.
        self._awaited: deque[tuple[int, Received | None, Then]] = deque()
        self.counts: OutboxCounts = counts
        self.refused: Counter[str] = Counter()

    @property
    def wake_at(self) -> float | None:
        return earliest(
            self._long.wake_at,
            *(deadline.wake_at for deadline in self._reply_deadlines.values()),
            *(task.wake_at for task in self._tasks.values()),
        )

    @property
    def waiting(self) -> Mapping[str, int]:
        owed = sum(task.owed for task in self._tasks.values())
        return {**self._long.waiting, **({"rounds": owed} if owed else {})}

    @property
    def backlog(self) -> str | None:
        told = (self._told(partition, task) for partition, task in self._tasks.items())
        return next((one for one in told if one is not None), None)

    def _told(self, partition: int, task: One) -> str | None:
        deadline = self._reply_deadlines[partition]
        return deadline.waits_for(lambda: [_in_words(name) for name in task.owing]) or task.awaited

    @property
    def trouble(self) -> str | None:
        for task in self._tasks.values():
            if task.trouble is not None:
                return task.trouble
        if not any(deadline.overdue for deadline in self._reply_deadlines.values()):
            return None
        return (
            f"nothing has come for {self._patience:g} s although an answer is due: check that every member "
            "runs"
        )

    def task(self, partition: int) -> One:
        """The task of a partition."""
        return self._tasks[partition]

    def open(self, partition: int) -> None:
        self._long.open(partition)
        self._reply_deadlines[partition] = ReplyDeadline(self._patience)
        super().open(partition)

    def close(self, partition: int) -> None:
        self._long.close(partition)
        super().close(partition)
        # These messages belong to a step that is not committed: the partition's next owner reads them again.
        self._queue = deque(one for one in self._queue if one.partition != partition)
        self._awaited = deque(one for one in self._awaited if one[0] != partition)
        del self._reply_deadlines[partition]

    def restore(self, change: StateChange) -> None:
        if change.value is not None and not self._long.restore(change):
            super().restore(change)

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
        replies: list[Send | Rejection | Work] = []
        # The partitions that got an answer. What was refused, or comes from somebody who owes none, is none.
        answered: set[int] = set()
        if self._awaited:
            for result in batch:
                _, cause, then = self._awaited.popleft()
                self._attempt(cause, lambda then=then, result=result: then(result.message), replies)  # type: ignore[misc]
                replies += self._go_on(cause)
        else:
            if self._clock_guard.pass_to(now, tick=not batch):
                for task in self._tasks.values():
                    task.set_back(now)
            whole, refused = self._long.receive(batch, now)
            replies += refused
            self.refused.update(rejection.error.reason for rejection in refused)
            self._queue.extend(whole)
            if not batch:
                for task in self._tasks.values():
                    task.pass_time(now)
            replies += self._go_on(None)
        while self._queue and not self._awaited:
            received = self._queue.popleft()
            task = self._tasks[received.partition]
            task.outbox.record = received.record
            is_owed = received.channel in self._peers and task.owed and received.message.sender in task.owing
            accepted = self._attempt(
                received,
                lambda task=task, received=received: task.take(received.channel, received.message, now),  # type: ignore[misc]
                replies,
            )
            task.outbox.record = None
            if accepted and is_owed:
                answered.add(received.partition)
            replies += self._go_on(received)
        self._look(answered, now)
        return replies

    def changed_state(self) -> Iterable[StateChange]:
        yield from self._long.changed_state()
        for partition, task in self._tasks.items():
            for key, value in task.changed_state():
                yield StateChange("state", partition, key, value)
            for channel, changes in self._kept_apart.items():
                for key, value in changes(task):
                    yield StateChange(channel, partition, key, value)

    def measure(self) -> Iterator[Measurement]:
        yield from self._long.measure()
        yield from self.counts.measure_counts()
        for reason in sorted({*self._reasons, *self.refused}):
            yield RefusalMetrics.refused_messages(self.refused[reason], reason)
        for task in self._tasks.values():
            yield from task.measure()

    def _attempt(
        self, cause: Received | None, act: Callable[[], None], replies: list[Send | Rejection | Work]
    ) -> bool:
        """Act; a message that is refused is added to the replies. Returns whether it was accepted."""
        try:
            act()
        except BadRecord as error:
            if cause is None:
                raise
            self.refused[error.reason] += 1
            replies.append(Rejection(cause, error))
            return False
        return True

    def _go_on(self, cause: Received | None) -> Iterator[Send | Work]:
        """What the last message led to, with the new work noted as awaited."""
        for task in self._tasks.values():
            sends, asked = task.outbox.take()
            yield from sends
            for work, then in asked:
                self._awaited.append((work.partition, cause, then))
                yield work

    def _look(self, answered: Collection[int], now: float) -> None:
        for partition, task in self._tasks.items():
            deadline, owed = self._reply_deadlines[partition], task.owed
            if partition in answered:
                deadline.answered(now)
            elif not owed:
                deadline.answered()
            if owed:
                deadline.asked(now)
            if partition not in answered:
                deadline.look(now)


def _in_words(name: str) -> str:
    """The name of a member that is no party stands in brackets in messages, so that no party has it.

    >>> _in_words("(server)"), _in_words("bank")
    ('the server', 'bank')
    """
    return f"the {name[1:-1]}" if name.startswith("(") else name
