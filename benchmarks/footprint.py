"""What a client costs while it does nothing, and what remembering it costs while it works."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from benchmarks.client_core import DIMENSION, FREQUENCIES, new_client, samples
from benchmarks.federation import Clock, client_settings, new_worker
from benchmarks.figures import Figure
from streamfl.kernels import frequencies, paper_dictionary
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

__all__ = ["measure"]

IDLE_CLIENTS, CHUNK = 10_000, 1_000
CLIENTS, SECONDS, COMMITS_PER_SECOND = 1_000, 6, 10


def measure() -> Iterator[Figure]:
    yield Figure("memory of an idle client, 10,000 in one role", _bytes_per_idle_client() / 1024, "KiB", goal=64.0, at_most=True)
    samples_bytes, changelog_bytes = _changelog()
    yield Figure("sample with its key, JSON", samples_bytes, "bytes")
    yield Figure("changelog per sample, 1,000 clients, commit each 100 ms", changelog_bytes, "bytes")
    yield Figure("changelog against the samples", changelog_bytes / samples_bytes, "x")


def _bytes_per_idle_client() -> float:
    """Each client has taken a sample, uploaded its step and been remembered; then nothing comes."""
    client = new_client(IDLE_CLIENTS, frequencies(paper_dictionary(), FREQUENCIES, DIMENSION, seed=0), lockstep=False)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for first in range(0, IDLE_CLIENTS, CHUNK):
        client.receive(samples(0, CHUNK, first), 0.0)
        _drain(client.changed_state())
    client.receive([], 10.0)
    _drain(client.changed_state())
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / IDLE_CLIENTS


def _changelog() -> tuple[float, float]:
    """Bytes of a sample and changelog bytes a sample, keys included, once every client is known: one sample a second each."""
    clock, bus = Clock(), MemoryBus()
    settings = client_settings(CLIENTS, DIMENSION)
    worker = new_worker(settings, bus, clock)
    generator = np.random.default_rng(0)
    encode = msgspec.json.Encoder().encode
    group = CLIENTS // COMMITS_PER_SECOND
    sample_bytes = samples_taken = 0
    already = 0.0
    for tick in range(SECONDS * COMMITS_PER_SECOND):
        clock.now += 1 / COMMITS_PER_SECOND
        if tick == COMMITS_PER_SECOND * 2:
            already = _written(worker)
            sample_bytes = samples_taken = 0
        records = []
        for index in range(group):
            name = f"client-{tick % COMMITS_PER_SECOND * group + index}".encode()
            inputs = generator.random(DIMENSION).round(6).tolist()
            value = encode({f"x{i}": x for i, x in enumerate(inputs)} | {"y": round(float(generator.random()), 6)})
            records.append(Outgoing("samples", name, value))
            sample_bytes += len(name) + len(value)
            samples_taken += 1
        bus.write(records)
        worker.step(0.0)
    grown = _written(worker) - already
    worker.close()
    return sample_bytes / samples_taken, grown / samples_taken


def _written(worker: Worker) -> float:
    """Bytes of keys and values that the worker has committed to its changelogs."""
    return sum(s.value for m in worker.metrics.changelog_bytes.collect() for s in m.samples if s.name.endswith("_total"))


def _drain(changes: Iterable[object]) -> None:
    deque(changes, maxlen=0)
