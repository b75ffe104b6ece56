"""Processes on one file, killed and stopped at any moment: their commits are complete, and each is there
once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import pytest

from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Bus, Outgoing, Subscription, connect

PARTITIONS = 4
RECORDS, FAULTS = 12_000, 8

# Keeps a running sum for each partition: in the changelog, and in the output for every record.
WORKER = """
import json, sys
from streamfl.runtime.bus import CommitRefused, Outgoing, Step, Subscription, connect

bus = connect(sys.argv[1], {"session_timeout_seconds": 1})
session = bus.session(Subscription("sums", ("numbers",)))
sums = {}
while True:
    polled = session.poll(0.2, 5)
    for partition in polled.assigned:
        sums[partition] = 0
        for record in session.restore("state", partition):
            sums[partition] = int(record.value)
    step = Step()
    for record in polled.records:
        sums[record.partition] += int(record.value)
        step.positions["numbers", record.partition] = record.offset + 1
        value = json.dumps([record.offset, sums[record.partition]]).encode()
        step.outputs.append(Outgoing("sums", None, value, record.partition))
        remembered = str(sums[record.partition]).encode()
        step.changelog.append(Outgoing("state", b"sum", remembered, record.partition))
    try:
        session.commit(step)
    except CommitRefused:
        pass
"""


@pytest.fixture(name="bus")
def _bus(tmp_path: Path) -> Iterator[Bus]:
    with closing(connect(_url(tmp_path), {"session_timeout_seconds": 1})) as bus:
        bus.create(
            [TopicSpec(name, PARTITIONS, compacted=name == "state") for name in ("numbers", "sums", "state")]
        )
        yield bus


@pytest.fixture(name="start")
def _start(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen([sys.executable, "-c", WORKER, _url(tmp_path)]))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def _url(folder: Path) -> str:
    return f"sqlite://{folder}/bus.db"


def test_killed_and_stopped_workers_lose_and_double_nothing(
    bus: Bus, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """Protects exactly-once in the file: kill -9 during commits, and workers that wake up after their
    partitions moved."""
    generator = random.Random(5)
    numbers = [generator.randrange(1_000) for _ in range(RECORDS)]
    records = [
        Outgoing("numbers", None, str(number).encode(), index % PARTITIONS)
        for index, number in enumerate(numbers)
    ]
    workers = [start(), start()]
    amid = 0
    for fault in range(FAULTS):
        # Each fault finds unread records.
        bus.write(records[fault * RECORDS // FAULTS : (fault + 1) * RECORDS // FAULTS])
        # Some die before they have joined, the others during one of many small commits.
        time.sleep(generator.uniform(0.1, 1.2))
        victim = workers.pop(0)
        amid += len(list(bus.read("sums"))) < (fault + 1) * RECORDS // FAULTS
        if fault % 4 == 3:
            victim.send_signal(signal.SIGSTOP)
            time.sleep(2.5)
            victim.send_signal(signal.SIGCONT)
            workers.append(victim)
        else:
            victim.kill()
            workers.append(start())
    assert amid >= FAULTS // 3
    deadline = time.monotonic() + 120
    while len(list(bus.read("sums"))) < RECORDS and time.monotonic() < deadline:
        time.sleep(0.2)
    assert all(worker.poll() is None for worker in workers)

    outputs: dict[int, list[list[int]]] = {partition: [] for partition in range(PARTITIONS)}
    for record in bus.read("sums"):
        outputs[record.partition].append(json.loads(record.value or b""))
    state = {record.partition: int(record.value or b"") for record in bus.read("state")}
    with closing(bus.session(Subscription("sums", ("numbers",)))) as session:
        for partition in range(PARTITIONS):
            mine = numbers[partition::PARTITIONS]
            assert outputs[partition] == [[offset, so_far] for offset, so_far in enumerate(accumulate(mine))]
            assert state[partition] == sum(mine)
            assert session.committed("numbers", partition) == len(mine)
