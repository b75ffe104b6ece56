"""Records that cannot be decoded because a registry does not answer: they wait, and none is lost, doubled or
dead-lettered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from counting import CHANNELS, TOPICS, CountingRole, decode_number, number

from streamfl.contract.channels import Channels
from streamfl.contract.role import NotYetReadable, Received, Record, Rejection, Send
from streamfl.runtime.bus import Outgoing, Subscription
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker


class Registry:
    """Can decode ``later`` once it answers."""

    answers = False
    asked = 0

    def ask(self) -> None:
        self.asked += 1
        if not self.answers:
            raise NotYetReadable("the schema registry cannot be asked", self.ask)

    def decode(self, record: Record) -> object:
        if record.key == b"later" and not self.answers:
            raise NotYetReadable("the schema registry cannot be asked")
        return decode_number(record)


def _channels(registry: Registry) -> Channels:
    return replace(
        CHANNELS,
        inputs={name: replace(source, decode=registry.decode) for name, source in CHANNELS.inputs.items()},
    )


def _worker(
    bus: MemoryBus, registry: Registry, seconds: Callable[[], float], role: CountingRole | None = None
) -> Worker:
    subscription = Subscription("counters", ("numbers",), ("factor",), "exactly_once")
    return Worker(
        role or CountingRole(),
        _channels(registry),
        bus,
        subscription,
        "dead-letters",
        clock=lambda: 100.0,
        monotonic=seconds,
        commit_interval=0.0,
        restore_seconds=0.0,
        sleep=lambda _: None,
    )


def _send(bus: MemoryBus, key: bytes, partition: int, *values: bytes) -> None:
    bus.write([Outgoing("numbers", key, value, partition) for value in values])


def test_records_wait_for_the_registry_and_each_counts_once() -> None:
    """Protects records from an outage of the registry: they wait in order, others go on, and the worker is
    not ready."""
    bus, registry, now = MemoryBus(), Registry(), [0.0]
    bus.create(TOPICS)
    _send(bus, b"pump", 0, number(1, 5))
    _send(bus, b"later", 0, number(1, 100))
    _send(bus, b"pump", 0, number(2, 7))
    _send(bus, b"fan", 1, number(1, 3))
    counting = _worker(bus, registry, lambda: now[0])
    for _ in range(5):
        counting.step(0)
        now[0] += 0.5
    assert sorted(record.value or b"" for record in bus.read("totals")) == sorted(
        [number(1, 5), number(1, 3)]
    )
    assert "registry cannot be asked" in (counting.health.trouble or "")
    assert not list(bus.read("dead-letters"))
    registry.answers = True
    for _ in range(8):
        counting.step(0)
        now[0] += 0.5
    assert [record.value for record in bus.read("totals") if record.key == b"pump"] == [
        number(1, 5),
        number(2, 12),
    ]
    assert [record.value for record in bus.read("totals") if record.key == b"later"] == [number(1, 100)]
    assert counting.health.trouble is None
    assert "streamfl_records_total 4.0" in counting.metrics.render().decode()


def test_a_worker_that_ends_meanwhile_leaves_the_record_to_the_next() -> None:
    """Protects the waiting record through a restart: its position was never committed."""
    bus, registry, now = MemoryBus(), Registry(), [0.0]
    bus.create(TOPICS)
    _send(bus, b"later", 0, number(1, 100))
    first = _worker(bus, registry, lambda: now[0])
    first.step(0)
    first.step(0)
    first.close()
    registry.answers = True
    second = _worker(bus, registry, lambda: now[0])
    for _ in range(4):
        second.step(0)
    assert [record.value for record in bus.read("totals")] == [number(1, 100)]
    stop = threading.Event()
    stop.set()
    second.run(stop)


class Awaiting(CountingRole):
    """Cannot write what it sends until the registry answers."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self.registry = registry

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies = super().receive(batch, now)
        if replies and not self.registry.answers:
            self.registry.ask()
        return replies


def _restored(worker: Worker) -> str:
    """How often partitions were restored."""
    lines = worker.metrics.render().decode().splitlines()
    return next(line for line in lines if line.startswith("streamfl_restore_seconds_count"))


def test_what_cannot_be_written_yet_is_done_again_and_counts_once() -> None:
    """Protects the group, and the truth, from a registry that does not answer while predictions are written.

    The worker stays in its group, is not ready all the while, and blames the registry, not the bus. Tables
    and records of the step count once, and so do records that another worker takes over meanwhile.
    """
    bus, registry = MemoryBus(), Registry()
    bus.create(TOPICS)
    first = _worker(bus, registry, lambda: 0.0, Awaiting(registry))
    first.step(0)
    bus.write([Outgoing("factor", b"factor", number(1, 10))])
    for partition, key in enumerate((b"pump", b"fan")):
        _send(bus, key, partition, number(1, 5), number(2, 7))
    first.step(0)
    session = first._session
    asked, restored = registry.asked, _restored(first)
    for _ in range(5):
        first.step(0)
        assert first.health.trouble == "records: the schema registry cannot be asked"
    assert first._session is session
    # The changelog may be large: it is read once the registry answers.
    assert registry.asked == asked + 5
    assert _restored(first) == restored
    assert "streamfl_bus_failures_total 0.0" in first.metrics.render().decode()
    assert not list(bus.read("totals"))
    other = _worker(bus, registry, lambda: 0.0, Awaiting(registry))
    for _ in range(4):
        other.step(0)
        first.step(0)
    assert first._partitions == other._partitions == 1
    assert first.health.trouble == other.health.trouble == "records: the schema registry cannot be asked"
    registry.answers = True
    for _ in range(4):
        first.step(0)
        other.step(0)
    assert not any(worker.health.reasons for worker in (first, other))
    for key in (b"pump", b"fan"):
        totals = [record.value for record in bus.read("totals") if record.key == key]
        assert totals == [number(1, 50), number(2, 120)]
    assert not list(bus.read("dead-letters"))
