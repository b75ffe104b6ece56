"""Processes that are added and removed: how long partitions stand still, what restoring costs, what a further
process brings."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec

from benchmarks.broker import running_broker
from benchmarks.client_core import DIMENSION
from benchmarks.end_to_end import CLIENTS, LOOK_SECONDS, configuration
from benchmarks.federation import client_settings, make_topics, sample_records
from benchmarks.figures import Figure, size
from benchmarks.processes import Processes
from streamfl.configuration.settings import BusSection
from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker

CONNECTORS, PARTITIONS = size(("kafka", "kafka+librdkafka"), ("kafka+librdkafka",)), 6
# A record every 20 ms in each partition; quiet, then with one process more, then with one less, so many
# seconds each.
BEAT_SECONDS = size(0.02, 0.2)
QUIET_SECONDS = size(5.0, 1.0)
JOINED_SECONDS = size(20.0, 1.0)
LEFT_SECONDS = size(15.0, 2.0)
RESTORED_CLIENTS, RESTORED_SAMPLES = size(10_000, 50), size(4, 1)
RESTORED_PRESETS = size(("paper", "default"), ("default",))
SAMPLES, MOST_PROCESSES = size(90_000, 400), size(3, 1)
WAIT_SECONDS = 240.0


def measure() -> Iterator[Figure]:
    with running_broker() as broker:
        for connector in CONNECTORS:
            yield from _pauses(connector, f"{connector}://{broker.address}")
        for preset in RESTORED_PRESETS:
            yield from _restoring(preset, broker.url)
        yield from _throughput(broker.url)


class _Deployment(Processes):
    """A federation's samples, and client processes each with a log of its own."""

    def __init__(self, folder: str, url: str, bus: Bus) -> None:
        super().__init__(Path(folder), STREAMFL_LOG__FORMAT="json")
        self.name, self.bus = f"scale-{time.monotonic_ns()}", bus
        self.samples = f"{self.name}.samples"
        self._text = configuration(self.name, url).replace('"samples"', f'"{self.samples}"')
        bus.create([TopicSpec(self.samples, PARTITIONS, compacted=False)])

    def begin(self, number: int) -> None:
        """Start a process more."""
        self.configure(str(number), self._text, "--create-inputs")
        self.start(str(number))

    def moves(self, number: int) -> list[tuple[float, set[int], set[int]]]:
        """When which partitions were assigned to a process and revoked from it."""
        lines = [line for line in self.log(str(number)).splitlines() if '"partitions moved"' in line]
        return [
            (datetime.fromisoformat(one["timestamp"]).timestamp(), {*one["assigned"]}, {*one["revoked"]})
            for one in map(json.loads, lines)
        ]

    def wait_for_members(self, count: int) -> None:
        """Until the first ``count`` processes have partitions."""
        self.wait(
            lambda: all(any(assigned for _, assigned, _ in self.moves(number)) for number in range(count)),
            "every process has a partition",
            WAIT_SECONDS,
            0.2,
        )

    def times(self) -> dict[int, list[float]]:
        """When the samples of each partition were predicted, in order."""
        found: dict[int, list[float]] = {number: [] for number in range(PARTITIONS)}
        for record in self.bus.read(f"{self.name}.predictions"):
            sample = msgspec.json.decode(record.value or b"")["sample"]
            found[int(sample.rsplit("-", 2)[1])].append(record.timestamp)
        return {number: sorted(times) for number, times in found.items()}


@contextmanager
def _deployment(url: str) -> Iterator[_Deployment]:
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        bus = opened.enter_context(closing(connect(url)))
        deployment = opened.enter_context(closing(_Deployment(folder, url, bus)))
        yield deployment


def _pauses(connector: str, url: str) -> Iterator[Figure]:
    """The longest time between two predictions of a partition, while a second process joins and when it
    leaves again."""
    with _deployment(url) as deployment:
        ended = threading.Event()
        beat = threading.Thread(target=_beat, args=(deployment, ended))
        beat.start()
        try:
            deployment.begin(0)
            deployment.wait_for_members(1)
            time.sleep(QUIET_SECONDS)
            quiet = time.time()
            time.sleep(QUIET_SECONDS)
            joining = time.time()
            deployment.begin(1)
            deployment.wait_for_members(2)
            time.sleep(max(0.0, JOINED_SECONDS - (time.time() - joining)))
            leaving = time.time()
            deployment.stop("1")
            time.sleep(LEFT_SECONDS)
        finally:
            ended.set()
            beat.join()
        moved = set().union(*(assigned for _, assigned, _ in deployment.moves(1)))
        taken = set().union(*(gone for at, _, gone in deployment.moves(0) if at < leaving))
        times = deployment.times()
    everyone = set(times)
    yield Figure(f"{connector}: partitions that moved to a second process", len(moved), f"of {PARTITIONS}")
    yield Figure(f"{connector}: partitions taken from the first meanwhile", len(taken), f"of {PARTITIONS}")
    spans = {
        "at rest": (quiet, joining),
        "at a join": (joining, leaving),
        "at a leave": (leaving, leaving + LEFT_SECONDS),
    }
    for what, (begin, end) in spans.items():
        for kind, which in (
            (("all", everyone),) if what == "at rest" else (("kept", everyone - moved), ("moved", moved))
        ):
            gaps = [_longest_gap(times[number], begin, end) for number in which]
            yield Figure(f"{connector}: longest pause {what}, {kind} partitions", max(gaps, default=0.0), "s")


def _beat(deployment: _Deployment, ended: threading.Event) -> None:
    [record] = sample_records(1, 1, DIMENSION)
    due = time.monotonic()
    while not ended.is_set():
        deployment.bus.write(
            [Outgoing(deployment.samples, f"client-{p}".encode(), record.value, p) for p in range(PARTITIONS)]
        )
        due = max(due + BEAT_SECONDS, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def _longest_gap(times: list[float], begin: float, end: float) -> float:
    inside = [at for at in times if begin <= at <= end]
    return max(later - earlier for earlier, later in pairwise([begin, *inside, end]))


def _restoring(preset: str, url: str) -> Iterator[Figure]:
    """A worker takes over clients that another one has seen."""
    with closing(connect(url)) as bus:
        name = f"restore-{preset}"
        topic = f"{name}.samples"
        settings = client_settings(RESTORED_CLIENTS, DIMENSION, preset=preset, name=name, topic=topic)
        section = BusSection(url=url, commit_interval_ms=100)
        settings = settings.model_copy(update={"bus": section})
        make_topics(bus, settings)
        for seed in range(RESTORED_SAMPLES):
            bus.write([*sample_records(RESTORED_CLIENTS, RESTORED_CLIENTS, DIMENSION, seed, topic)])
        with closing(build_worker(settings, bus)) as worker:
            while sum(1 for _ in bus.read(f"{name}.predictions")) < RESTORED_CLIENTS * RESTORED_SAMPLES:
                for _ in range(5):
                    worker.step(0.1)
        live: dict[bytes, int] = {}
        written = 0
        for record in bus.read(f"{name}.pofmkl-client.state"):
            size = len(record.key or b"") + len(record.value or b"")
            written += size
            live[record.key or b""] = size
        with closing(build_worker(settings, bus)) as worker:
            began = time.perf_counter()
            while {m.name: m.value for m in worker.measure()}["partitions"] == 0:
                worker.step(0.1)
            seconds = time.perf_counter() - began
    what = f"restoring {RESTORED_CLIENTS:,} clients, {preset}, {RESTORED_SAMPLES} samples each"
    yield Figure(f"{what}: joining and restoring", seconds, "s")
    yield Figure(f"{what}: remembered", sum(live.values()) / 1e6, "MB")
    yield Figure(f"{what}: in the changelog before compaction", written / 1e6, "MB")


def _throughput(url: str) -> Iterator[Figure]:
    """Predictions a second from when the last process has its partitions until the first partition is at its
    end."""
    values = [record.value for record in sample_records(1_000, 1_000, DIMENSION)]
    rates: list[float] = []
    for processes in range(1, MOST_PROCESSES + 1):
        with _deployment(url) as deployment:
            for start in range(0, SAMPLES, 10_000):
                deployment.bus.write(
                    [
                        Outgoing(
                            deployment.samples,
                            f"client-{n % CLIENTS}".encode(),
                            values[n % 1_000],
                            n % CLIENTS % PARTITIONS,
                        )
                        for n in range(start, min(start + 10_000, SAMPLES))
                    ]
                )
            for number in range(processes):
                deployment.begin(number)
            is_over = partial(_all_are_predicted, deployment)
            deployment.wait(is_over, "every sample is predicted", WAIT_SECONDS, LOOK_SECONDS)
            settled = max(at for number in range(processes) for at, _, _ in deployment.moves(number))
            times = deployment.times()
        end = min(found[-1] for found in times.values())
        rates.append(sum(settled <= at <= end for found in times.values() for at in found) / (end - settled))
        yield Figure(f"clients in {processes} processes: samples/s", rates[-1], "1/s")
        if processes > 1:
            yield Figure(f"clients in {processes} processes: against one", rates[-1] / rates[0], "x")


def _all_are_predicted(deployment: _Deployment) -> bool:
    return sum(1 for _ in deployment.bus.read(f"{deployment.name}.predictions")) >= SAMPLES
