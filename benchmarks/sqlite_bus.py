"""The bus in a file beside the bus in memory: the same steps, taken and committed, without any learning."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks.figures import Figure, size
from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Bus, Outgoing, Step, Subscription, connect
from streamfl.runtime.memory_bus import MemoryBus

PARTITIONS, VALUE = 4, b"x" * 200
STEPS = {1: size(500, 10), 400: size(100, 2)}


def measure() -> Iterator[Figure]:
    for records, count in STEPS.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(connect(f"sqlite://{Path(folder)}/bus.db")) as bus,
        ):
            file = _rate(bus, records, count)
        memory = _rate(MemoryBus(), records, count)
        steps = f"steps of {records} in, out and in the changelog"
        yield Figure(f"SQLite bus, {steps}", file, "steps/s")
        yield Figure(f"SQLite bus against the memory bus, {steps}", file / memory, "of its steps/s")


def _rate(bus: Bus, size: int, count: int) -> float:
    """Steps a second, each a poll of at most ``size`` records and their commit with as many outputs and
    changelog records."""
    bus.create(
        [TopicSpec(name, PARTITIONS, compacted=name == "state") for name in ("inputs", "outputs", "state")]
    )
    total = size * count
    bus.write([Outgoing("inputs", None, VALUE, number % PARTITIONS) for number in range(total)])
    with closing(bus.session(Subscription("bench", ("inputs",)))) as session:
        session.poll(0, 1)
        taken, steps, started = 0, 0, time.perf_counter()
        while taken < total:
            records = session.poll(1, size).records
            session.commit(
                Step(
                    {(record.topic, record.partition): record.offset + 1 for record in records},
                    [Outgoing("outputs", b"key", record.value, record.partition) for record in records],
                    [
                        Outgoing("state", f"{record.offset % 1000}".encode(), record.value, record.partition)
                        for record in records
                    ],
                )
            )
            taken += len(records)
            steps += 1
        return steps / (time.perf_counter() - started)
