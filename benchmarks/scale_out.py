"""Processes that are added and removed: how long partitions stand still, what restoring costs, what a further
process brings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.broker import running_broker
from benchmarks.client_core import DIMENSION
from benchmarks.end_to_end import CONFIGURATION, LOOK_SECONDS
from benchmarks.federation import client_settings
from benchmarks.figures import Figure, size
from streamfl.configuration.settings import BusSection
from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker, find_kind

CONNECTORS, PARTITIONS = size(("kafka", "kafka+librdkafka"), ("kafka+librdkafka",)), 6
# A record every 20 ms in each partition; quiet, then with one process more, then with one less, so many
# seconds each.
BEAT_SECONDS = size(0.02, 0.2)
QUIET_SECONDS = size(5.0, 1.0)
JOINED_SECONDS = size(20.0, 1.0)
LEFT_SECONDS = size(15.0, 2.0)
RESTORED_CLIENTS, RESTORED_SAMPLES = size(10_000, 50), size(4, 1)
RESTORED_PRESETS = size(("paper", "default"), ("default",))
CLIENTS, SAMPLES, MOST_PROCESSES = size(1_000, 20), size(90_000, 400), size(3, 1)
WAIT_SECONDS = 240.0


def measure() -> Iterator[Figure]:
    with running_broker() as broker:
        for connector in CONNECTORS:
            yield from _pauses(connector, f"{connector}://{broker.address}")
        for preset in RESTORED_PRESETS:
            yield from _restoring(preset, broker.url)
        yield from _throughput(broker.url)


class _Deployment:
    """A federation's samples, and client processes each with a log of its own."""

    def __init__(self, folder: str, url: str, bus: Bus) -> None:
        self.name, self.bus = f"scale-{time.monotonic_ns()}", bus
        self.samples = f"{self.name}.samples"
        self._folder, self._processes = Path(folder), list[subprocess.Popen[bytes]]()
        self._path = self._folder / f"{self.name}.toml"
        features = ", ".join(f'"x{i}"' for i in range(DIMENSION))
        text = CONFIGURATION.format(name=self.name, clients=CLIENTS, url=url, features=features)
        self._path.write_text(
            text.replace('topic = "samples"', f'topic = "{self.samples}"'), encoding="utf-8"
        )
        bus.create([TopicSpec(self.samples, PARTITIONS, compacted=False)])
        subprocess.run([*self._command("topics"), "--create-inputs"], check=True, stdout=subprocess.DEVNULL)

    def start(self) -> int:
        """The number of a process more."""
        number = len(self._processes)
        with self._log(number).open("wb") as log:
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "STREAMFL_LOG__FORMAT": "json"}
            self._processes.append(
                subprocess.Popen(self._command("run"), stdout=log, stderr=log, env=environment)
            )
        return number

    def stop(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGTERM)
        self._processes[number].wait(20)

    def stop_all(self) -> None:
        for number, process in enumerate(self._processes):
            if process.poll() is None:
                self.stop(number)

    def moves(self, number: int) -> list[tuple[float, set[int], set[int]]]:
        """When which partitions were assigned to a process and revoked from it."""
        lines = [
            line
            for line in self._log(number).read_text(encoding="utf-8").splitlines()
            if '"partitions moved"' in line
        ]
        return [
            (datetime.fromisoformat(one["timestamp"]).timestamp(), {*one["assigned"]}, {*one["revoked"]})
            for one in map(json.loads, lines)
        ]

    def wait_for_members(self, count: int) -> None:
        """Until the first ``count`` processes have partitions."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not all(any(assigned for _, assigned, _ in self.moves(number)) for number in range(count)):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"not every process got a partition:\n{self._log(count - 1).read_text()[-2000:]}"
                )
            time.sleep(0.2)

    def times(self) -> dict[int, list[float]]:
        """When the samples of each partition were predicted, in order."""
        found: dict[int, list[float]] = {number: [] for number in range(PARTITIONS)}
        for record in self.bus.read(f"{self.name}.predictions"):
            sample = msgspec.json.decode(record.value or b"")["sample"]
            found[int(sample.rsplit("-", 2)[1])].append(record.timestamp)
        return {number: sorted(times) for number, times in found.items()}

    def _log(self, number: int) -> Path:
        return self._folder / f"{self.name}-{number}.log"

    def _command(self, verb: str) -> list[str]:
        return [sys.executable, "-m", "streamfl", verb, str(self._path)]


@contextmanager
def _deployment(url: str) -> Iterator[_Deployment]:
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        deployment = _Deployment(folder, url, opened.enter_context(closing(connect(url))))
        opened.callback(deployment.stop_all)
        yield deployment


def _pauses(connector: str, url: str) -> Iterator[Figure]:
    """The longest time between two predictions of a partition, while a second process joins and when it
    leaves again."""
    with _deployment(url) as deployment:
        ended = threading.Event()
        beat = threading.Thread(target=_beat, args=(deployment, ended))
        beat.start()
        try:
            deployment.start()
            deployment.wait_for_members(1)
            time.sleep(QUIET_SECONDS)
            quiet = time.time()
            time.sleep(QUIET_SECONDS)
            joining = time.time()
            second = deployment.start()
            deployment.wait_for_members(2)
            time.sleep(max(0.0, JOINED_SECONDS - (time.time() - joining)))
            leaving = time.time()
            deployment.stop(second)
            time.sleep(LEFT_SECONDS)
        finally:
            ended.set()
            beat.join()
        moved = set().union(*(assigned for _, assigned, _ in deployment.moves(second)))
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
    value = msgspec.json.encode({f"x{i}": 0.5 for i in range(DIMENSION)} | {"y": 0.5})
    due = time.monotonic()
    while not ended.is_set():
        deployment.bus.write(
            [Outgoing(deployment.samples, f"client-{p}".encode(), value, p) for p in range(PARTITIONS)]
        )
        due = max(due + BEAT_SECONDS, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def _longest_gap(times: list[float], begin: float, end: float) -> float:
    inside = [at for at in times if begin <= at <= end]
    return max(later - earlier for earlier, later in pairwise([begin, *inside, end]))


def _restoring(preset: str, url: str) -> Iterator[Figure]:
    """A worker takes over clients that another one has seen."""
    with closing(connect(url)) as bus:
        settings = client_settings(RESTORED_CLIENTS, DIMENSION, preset=preset)
        name = f"restore-{preset}"
        assert settings.samples is not None
        samples = settings.samples.model_copy(update={"topic": f"{name}.samples"})
        federation = settings.federation.model_copy(update={"name": name})
        settings = settings.model_copy(
            update={
                "federation": federation,
                "samples": samples,
                "bus": BusSection(url=url, commit_interval_ms=100),
            }
        )
        kind: Any = find_kind("pofmkl-client")
        bus.create(
            [TopicSpec(s.name, s.partitions or 1, s.compacted, s.options) for s in kind.topics(settings)]
        )
        generator = np.random.default_rng(0)
        encode = msgspec.json.Encoder().encode
        for _ in range(RESTORED_SAMPLES):
            rows = generator.random((RESTORED_CLIENTS, DIMENSION + 1)).round(6).tolist()
            names = [f"x{i}" for i in range(DIMENSION)] + ["y"]
            values = [encode(dict(zip(names, row, strict=True))) for row in rows]
            bus.write(
                [
                    Outgoing(samples.topic, f"client-{number}".encode(), value)
                    for number, value in enumerate(values)
                ]
            )
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
    generator = np.random.default_rng(0)
    encode = msgspec.json.Encoder().encode
    rows = generator.random((1_000, DIMENSION + 1)).round(6).tolist()
    values = [encode({f"x{i}": x for i, x in enumerate(row[:-1])} | {"y": row[-1]}) for row in rows]
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
            for _ in range(processes):
                deployment.start()
            deadline = time.monotonic() + WAIT_SECONDS
            while sum(1 for _ in deployment.bus.read(f"{deployment.name}.predictions")) < SAMPLES:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{processes} processes did not take every sample")
                time.sleep(LOOK_SECONDS)
            settled = max(at for number in range(processes) for at, _, _ in deployment.moves(number))
            times = deployment.times()
        end = min(found[-1] for found in times.values())
        rates.append(sum(settled <= at <= end for found in times.values() for at in found) / (end - settled))
        yield Figure(f"clients in {processes} processes: samples/s", rates[-1], "1/s")
        if processes > 1:
            yield Figure(f"clients in {processes} processes: against one", rates[-1] / rates[0], "x")
