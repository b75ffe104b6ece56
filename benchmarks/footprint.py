"""What a worker costs at its start, what a client costs while it does nothing, and what remembering it costs
while it works."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import tracemalloc
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import presets
from benchmarks.client_core import DIMENSION, FREQUENCIES, new_client, samples
from benchmarks.federation import Clock, client_settings, new_worker, sample_records
from benchmarks.figures import Figure, size
from benchmarks.processes import Processes
from streamfl.kernels import frequencies, paper_dictionary
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.runtime.memory_bus import MemoryBus

IDLE_CLIENTS, IDLE_DEFAULT_CLIENTS, CHUNK = size(10_000, 200), size(2_000, 100), size(1_000, 100)
# Snapshots of the default preset come every 64 samples, so that many seconds have to be seen.
CLIENTS, SECONDS = size(1_000, 20), {"paper": size(6, 3), "default": size(66, 3)}

# Prints processor seconds and MiB of `streamfl run`, once its worker would take its first step.
START = """
import resource, sys
from streamfl.cli import main
from streamfl.runtime.worker import Worker
def run(worker, stop):
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
Worker.run = run
sys.argv = ["streamfl", "run", "client.toml"]
main()
"""
CONFIGURATION = """
[federation]
name = "footprint"
seed = 7
clients = 1
features = ["x"]
[bus]
url = "sqlite://bus.db"
[role]
kind = "pofmkl-client"
[samples]
topic = "samples"
client = "client"
label = "y"
label_range = [0.0, 1.0]
[learning]
preset = "{preset}"
[metrics]
port = 0
"""
STARTS = size(5, 1)


def measure() -> Iterator[Figure]:
    for preset in ("paper", "default"):
        seconds, memory = np.min([_start(preset) for _ in range(STARTS)], axis=0).tolist()
        yield Figure(f"start of a client worker, {preset}: processor time", seconds, "s")
        yield Figure(f"start of a client worker, {preset}: memory", memory, "MiB")
    paper = new_client(
        IDLE_CLIENTS, frequencies(paper_dictionary(), FREQUENCIES, DIMENSION, seed=0), lockstep=False
    )
    memory = _kib_a_client(paper, IDLE_CLIENTS)
    yield Figure(
        f"memory of an idle client, paper, {IDLE_CLIENTS:,} in one role", memory, "KiB", 64.0, at_most=True
    )
    default = presets.new_client("default", IDLE_DEFAULT_CLIENTS, 5, lockstep=False)
    memory = _kib_a_client(default, IDLE_DEFAULT_CLIENTS)
    yield Figure(
        f"memory of an idle client, default, {IDLE_DEFAULT_CLIENTS:,} in one role",
        memory,
        "KiB",
        64.0,
        at_most=True,
    )
    for preset in ("paper", "default"):
        for commits, interval in ((10, "100 ms"), (1, "1 s")):
            sample_bytes, changelog_bytes = _changelog(preset, commits)
            name = f"changelog per sample, {preset}, {CLIENTS:,} clients, commit each {interval}"
            yield Figure(name, changelog_bytes, "bytes")
            yield Figure(f"{name}: against the sample itself", changelog_bytes / sample_bytes, "x")


def _start(preset: str) -> list[float]:
    """Processor seconds and MiB of a worker with a file as its bus, its topics made."""
    with tempfile.TemporaryDirectory() as folder:
        Processes(Path(folder)).configure("client", CONFIGURATION.format(preset=preset), "--create-inputs")
        run = subprocess.run(
            [sys.executable, "-c", START], check=True, capture_output=True, text=True, cwd=folder
        )
    return [float(one) for one in run.stdout.split()]


def _kib_a_client(client: PofmklClient, clients: int) -> float:
    """Each client has taken a sample, uploaded its step and been remembered; then nothing comes."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for first in range(0, clients, CHUNK):
        client.receive(samples(0, CHUNK, first), 0.0)
        _drain(client.changed_state())
    client.receive([], 10.0)
    _drain(client.changed_state())
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / clients / 1024


def _changelog(preset: str, commits_per_second: int) -> tuple[float, float]:
    """Bytes of a sample and of changelog a sample, keys included, once every client is known: one
    sample a second each. A server takes the updates: without one, clients remember steps of their own."""
    clock, bus = Clock(), MemoryBus()
    worker, server = (
        new_worker(client_settings(CLIENTS, DIMENSION, kind, preset), bus, clock)
        for kind in ("pofmkl-client", "pofmkl-server")
    )
    group, ticks = CLIENTS // commits_per_second, SECONDS[preset] * commits_per_second
    records, counted = list(sample_records(group * ticks, CLIENTS, DIMENSION)), 2 * commits_per_second
    already = 0.0
    for tick in range(ticks):
        clock.now += 1 / commits_per_second
        if tick == counted:
            already = worker.metrics.changelog_bytes
        bus.write(records[tick * group : (tick + 1) * group])
        while any([worker.step(0.0), server.step(0.0)]):
            pass
    samples = records[counted * group :]
    grown = worker.metrics.changelog_bytes - already
    worker.close()
    server.close()
    sample_bytes = sum(len(one.key or b"") + len(one.value or b"") for one in samples)
    return sample_bytes / len(samples), grown / len(samples)


def _drain(changes: Iterable[object]) -> None:
    deque(changes, maxlen=0)
