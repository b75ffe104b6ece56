"""The server's worker on a real broker against a loop that only consumes the same records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
from kafka import KafkaConsumer

from benchmarks.broker import running_broker
from benchmarks.client_core import DIMENSION, FREQUENCIES
from benchmarks.federation import client_settings, make_topics
from benchmarks.figures import Figure, size
from streamfl.contract.channels import Seal
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import UPDATE, Update
from streamfl.pofmkl.roles import ROLES
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker

CLIENTS, UPLOADS, RECORDS_PER_POLL, REPEATS, KERNELS = size(1_000, 50), size(60, 4), 4_000, size(3, 1), 51
UPDATES = CLIENTS * UPLOADS
WAIT_SECONDS = 120.0


def measure() -> Iterator[Figure]:
    bare, served = float("inf"), float("inf")
    with running_broker() as broker:
        bus = connect(broker.url)
        for repeat in range(REPEATS):
            federation = f"bench-{repeat}"
            settings = settings_of(federation)
            write_updates(bus, settings)
            bare = min(bare, _bare_seconds(broker.address, federation))
            served = min(served, server_seconds(bus, settings))
        bus.close()
    yield Figure("server: records/s of a loop that only consumes", UPDATES / bare, "1/s")
    yield Figure("server: updates applied/s", UPDATES / served, "1/s")
    yield Figure("server: against the loop that only consumes", bare / served, "x", goal=0.8)


def _bare_seconds(address: str, federation: str) -> float:
    """From the poll that brings the first records to the one that brings the last; offsets are committed with
    each."""
    consumer = KafkaConsumer(
        f"{federation}.updates",
        bootstrap_servers=address,
        group_id=f"{federation}.bare",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    taken, started = 0, 0.0
    while taken < UPDATES:
        before = time.perf_counter()
        polled = consumer.poll(timeout_ms=100, max_records=RECORDS_PER_POLL)
        if polled:
            started = started or before
            taken += sum(map(len, polled.values()))
            consumer.commit()
    seconds = time.perf_counter() - started
    consumer.close()
    return seconds


def server_seconds(
    bus: Bus, settings: PofmklSettings, clock: Callable[[], float] = time.perf_counter
) -> float:
    """From the step that applies the first updates to the one that applies the last; its state and the model
    are written.

    clock: time.process_time for the processor's seconds.
    """
    worker = build_worker(settings, bus)
    started, deadline = 0.0, time.perf_counter() + WAIT_SECONDS
    applied = 0.0
    while applied < UPDATES:
        before = clock()
        worker.step(0.1)
        applied = next(figure.value for figure in worker.role.measure() if figure.name == "updates_applied")
        if applied:
            started = started or before
        if time.perf_counter() > deadline:
            raise RuntimeError(f"the server applied {applied:.0f} of {UPDATES} updates in {WAIT_SECONDS:g} s")
    seconds = clock() - started
    worker.close()
    return seconds


def write_updates(bus: Bus, settings: PofmklSettings, seal: Seal = lambda key, value, partition: ()) -> None:
    """The topics of a server, and the updates that it is to apply; ``seal`` gives their headers."""
    make_topics(bus, settings)
    fingerprint = cast(PofmklServer, ROLES["pofmkl-server"].build(settings)).fingerprint
    generator = np.random.default_rng(0)
    steps = encode_array(generator.normal(size=2 * FREQUENCIES).astype(np.float32) * np.float32(1e-3))
    for sequence in range(1, UPLOADS + 1):
        records = []
        for client in range(CLIENTS):
            name = f"client-{client}"
            kernels = (int(generator.integers(KERNELS)),)
            update = Update(VERSION, fingerprint, DIMENSION, name, 0, sequence, 0, 1, kernels, steps)
            key, value = name.encode(), UPDATE.encode(update)
            records.append(
                Outgoing(f"{settings.federation.name}.updates", key, value, 0, seal(key, value, 0))
            )
        bus.write(records)


def settings_of(federation: str) -> PofmklSettings:
    """Of the server of a federation of this name."""
    return client_settings(CLIENTS, DIMENSION, kind="pofmkl-server", name=federation)
