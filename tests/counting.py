"""A minimal role that adds up numbers by key. The worker and the role laws are tested on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from streamfl.contract.channels import Channels, Input, TopicSpec
from streamfl.contract.role import (
    BadRecord,
    Measurement,
    OperatorNotice,
    Received,
    Record,
    Rejection,
    Send,
    StateChange,
)
from streamfl.encoding.wire import LONGEST_KEY
from streamfl.runtime.bus import Bus, Subscription
from streamfl.runtime.memory_bus import MemoryBus, MemorySession
from streamfl.runtime.worker import Worker

__all__ = [
    "CHANNELS",
    "TOPICS",
    "CountingRole",
    "bus_of",
    "counting_worker",
    "decode_number",
    "drain",
    "number",
]

Message = tuple[int, int]
LARGEST = 2**53

TOPICS = [
    TopicSpec("numbers", 2, compacted=False),
    TopicSpec("totals", 1, compacted=False),
    TopicSpec("factor", 1, compacted=True),
    TopicSpec("state", 2, compacted=True),
    TopicSpec("dead-letters", 1, compacted=False),
]


def number(sequence: int, amount: int) -> bytes:
    """A sender's message: its sequence number, by which repetitions are recognised, and the number to add."""
    return f"{sequence} {amount}".encode()


def decode_number(record: Record) -> Message:
    try:
        sequence, amount = map(int, (record.value or b"").split())
    except ValueError:
        raise BadRecord("malformed", f"not two whole numbers: {record.value!r}") from None
    if max(abs(sequence), abs(amount)) > LARGEST:
        raise BadRecord("malformed", f"{sequence} or {amount} is larger than {LARGEST}")
    if len(record.key or b"") > LONGEST_KEY:
        raise BadRecord(
            "oversized", f"a key of {len(record.key or b'')} bytes, at most {LONGEST_KEY} are accepted"
        )
    return sequence, amount


CHANNELS = Channels(
    inputs={"numbers": Input("numbers", decode_number)},
    tables={"factor": Input("factor", decode_number)},
    outputs={"totals": "totals"},
    changelogs={"state": "state"},
)


def bus_of(session: type[MemorySession] = MemorySession, topics: Sequence[TopicSpec] = TOPICS) -> MemoryBus:
    """A memory bus with these topics, whose sessions are of this class."""

    class OwnBus(MemoryBus):
        @property
        def session_type(self) -> type[MemorySession]:
            return session

    bus = OwnBus()
    bus.create(topics)
    return bus


def counting_worker(
    bus: Bus, role: CountingRole | None = None, kind: type[Worker] = Worker, **options: Any
) -> Worker:
    """A worker of the group "counters"."""
    subscription = Subscription("counters", ("numbers",), ("factor",))
    return kind(
        role or CountingRole(),
        CHANNELS,
        bus,
        subscription,
        "dead-letters",
        **{"restore_seconds": 0.0, **options},
    )


def drain(*workers: Worker) -> None:
    """Steps until none of the workers has anything to do."""
    while sum(one.step(0.0) for one in workers):
        pass


class CountingRole:
    """``total[key] += factor * number``. Zero resets a key; a negative number is refused as a peer's
    mistake."""

    def __init__(self) -> None:
        self.wake_at: float | None = None
        self.full: Collection[int] = ()
        self.prompt = True
        self.waiting: Mapping[str, int] = {}
        self.factor = 1
        self.before_reply: Callable[[], object] = lambda: None
        self.totals: dict[int, dict[bytes, tuple[int, int]]] = {}
        self.changes: list[StateChange] = []
        self.batches: list[int] = []

    @property
    def trouble(self) -> str | None:
        return None

    def notices(self) -> Iterable[OperatorNotice]:
        return ()

    def forget(self, name: str) -> bool:
        return False

    def open(self, partition: int) -> None:
        assert partition not in self.totals
        self.totals[partition] = {}

    def close(self, partition: int) -> None:
        del self.totals[partition]
        self.changes = [change for change in self.changes if change.partition != partition]

    def restore(self, change: StateChange) -> None:
        assert change.value is not None
        sequence, total = change.value.split()
        self.totals[change.partition][change.key] = (int(sequence), int(total))

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        self.batches.append(len(batch))
        replies: list[Send | Rejection] = []
        if not batch and self.wake_at is not None and now >= self.wake_at:
            self.wake_at = None
            replies.append(Send("totals", None, b"tick"))
        for received in batch:
            try:
                replies += self._take(received)
            except BadRecord as error:
                replies.append(Rejection(received, error))
        self.before_reply()
        return replies

    def changed_state(self) -> Iterable[StateChange]:
        changes, self.changes = self.changes, []
        return changes

    def measure(self) -> Iterable[Measurement]:
        yield Measurement("samples", "counter", "Numbers added.", float(sum(map(len, self.totals.values()))))

    def _take(self, received: Received) -> list[Send]:
        sequence, amount = received.message
        if amount < 0:
            raise BadRecord("negative", f"{amount} is below zero")
        if received.channel == "factor":
            self.factor = amount
            return []
        totals, key = self.totals[received.partition], received.record.key or b""
        last, total = totals.get(key, (0, 0))
        if sequence <= last:
            return []
        if amount == 0:
            totals.pop(key, None)
            self.changes.append(StateChange("state", received.partition, key, None))
            return []
        totals[key] = (sequence, total + self.factor * amount)
        self.changes.append(StateChange("state", received.partition, key, number(*totals[key])))
        return [Send("totals", key, number(*totals[key]))]
