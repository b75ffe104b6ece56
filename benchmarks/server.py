"""The server's worker against a loop that only reads and decodes the same records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from benchmarks.client_core import DIMENSION, FREQUENCIES
from benchmarks.federation import Clock, client_settings, new_worker
from benchmarks.figures import Figure, best_seconds
from streamfl.pofmkl.messages import UPDATE, Update
from streamfl.pofmkl.roles import ROLES
from streamfl.pofmkl.server import PofmklServer
from streamfl.role import Record
from streamfl.runtime.bus import Outgoing, Step, Subscription
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.wire import VERSION, encode_array

__all__ = ["measure"]

CLIENTS, UPLOADS, RECORDS_PER_COMMIT, REPEATS, KERNELS = 1_000, 20, 4_000, 3, 51
UPDATES = CLIENTS * UPLOADS


def measure() -> Iterator[Figure]:
    settings = client_settings(CLIENTS, DIMENSION, kind="pofmkl-server")
    fingerprint = cast(PofmklServer, ROLES["pofmkl-server"].build(settings)).fingerprint
    records = _updates(fingerprint)
    workers, buses = [], []
    for _ in range(REPEATS + 1):
        bus = MemoryBus()
        workers.append(new_worker(settings, bus, Clock(), RECORDS_PER_COMMIT))
        bus.write(records)
        buses.append(bus)

    def bare(number: int) -> None:
        session = buses[number].session(Subscription("bare", ("bench.updates",)))
        taken = 0
        while taken < UPDATES:
            polled = session.poll(0.0, RECORDS_PER_COMMIT)
            for record in polled.records:
                _decode(record)
            taken += len(polled.records)
            if polled.records:
                last = polled.records[-1]
                session.commit(Step(positions={(last.topic, last.partition): last.offset + 1}))
        session.close()

    def serve(number: int) -> None:
        while workers[number].step(0.0):
            pass

    by_loop, by_server = best_seconds((bare, serve), REPEATS)
    applied = {figure.name: figure.value for figure in workers[-1].role.measure()}["updates_applied"]
    if applied != UPDATES:
        raise RuntimeError(f"the server applied {applied:.0f} of {UPDATES} updates: the comparison means nothing")
    yield Figure("server: updates applied/s", UPDATES / by_server, "1/s")
    yield Figure("server: against a loop that reads and decodes", by_loop / by_server, "x", goal=0.8)


def _decode(record: Record) -> Update:
    return UPDATE.decode(record.value)


def _updates(fingerprint: int) -> list[Outgoing]:
    generator = np.random.default_rng(0)
    steps = encode_array(generator.normal(size=2 * FREQUENCIES).astype(np.float32) * np.float32(1e-3))
    records = []
    for sequence in range(1, UPLOADS + 1):
        for client in range(CLIENTS):
            name = f"client-{client}"
            kernels = (int(generator.integers(KERNELS)),)
            update = Update(VERSION, fingerprint, DIMENSION, name, 0, sequence, 0, 1, kernels, steps)
            records.append(Outgoing("bench.updates", name.encode(), UPDATE.encode(update), 0))
    return records
