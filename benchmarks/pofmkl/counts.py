"""What ``benchmarks.counts`` counts: a client's and a server's worker, with each preset."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.counts import Meter
from benchmarks.federation import Clock, make_topics, new_worker, sample_records
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.memory_bus import MemoryBus

DIMENSION, PARTITIONS, POLL = 14, 4, 600
# Polls before the count begins, in which clients get their seats, and counted ones.
BEFORE, POLLS = 2, 2


def _settings(kind: str, clients: int, learning: Mapping[str, Any]) -> PofmklSettings:
    return PofmklSettings.model_validate(
        {
            "federation": {"name": "counts", "clients": clients, "features": DIMENSION},
            "role": {"kind": kind},
            "samples": {"topic": "samples", "features": [f"x{i}" for i in range(DIMENSION)], "label": "y"},
            "learning": learning,
        }
    )


def _run(name: str, samples_a_poll: int, learning: Mapping[str, Any], meter: Meter) -> None:
    """Both workers take turns. samples_a_poll: of a client."""
    clock, bus, clients = Clock(), MemoryBus(), POLL // samples_a_poll
    make_topics(bus, _settings("pofmkl-client", clients, learning), PARTITIONS)
    client, server = (
        new_worker(_settings(kind, clients, learning), bus, clock)
        for kind in ("pofmkl-client", "pofmkl-server")
    )
    meter.watch(f"client, {name}", client, POLLS * POLL)
    meter.watch(f"server, {name}", server, POLLS * POLL)
    for number in range(BEFORE + POLLS + 1):
        if number == BEFORE + 1:
            meter.begin()
        # The first step of each joins its group.
        bus.write(list(sample_records(POLL if number else 0, clients, DIMENSION, number)))
        client.step(0.0)
        server.step(0.0)
        # Without a new model an upload is due after a second, two polls.
        clock.now += 0.5
    found, expected = sum(1 for _ in bus.read("counts.predictions")), (BEFORE + POLLS) * POLL
    applied = sum(one.value for one in server.measure() if one.name == "updates_applied")
    client.close()
    server.close()
    if found != expected or not applied:
        raise RuntimeError(f"{found} of {expected} samples were predicted, {applied:g} updates applied")


WORKLOADS = (
    # As in benchmarks.end_to_end: nobody waits for the model.
    partial(_run, "paper, async", 4, {"preset": "paper", "staleness": "async", "catch_up_samples": 0}),
    partial(_run, "paper, lockstep", 1, {"preset": "paper"}),
    partial(_run, "default", 1, {}),
)
