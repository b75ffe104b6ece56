"""A federation's settings and workers, as the benchmarks need them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from streamfl.configuration.settings import BusSection, RoleSettings
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Bus, Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker


class Clock:
    """Seconds that pass only when the benchmark says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def client_settings(
    clients: int,
    dimension: int,
    kind: str = "pofmkl-client",
    preset: str = "paper",
    kernels: int = 1,
    name: str = "bench",
    topic: str = "samples",
    **learning: Any,
) -> PofmklSettings:
    """JSON samples with fields x0, x1, … and y, the client in the key; asynchronous if ``learning`` does not
    say otherwise.

    kernels: M, of an upload. learning: other keys of its section.
    """
    return PofmklSettings.model_validate(
        {
            "federation": {"name": name, "clients": clients, "features": dimension},
            "role": {"kind": kind},
            "samples": {"topic": topic, "features": [f"x{i}" for i in range(dimension)], "label": "y"},
            "learning": {"preset": preset, "staleness": "async", **learning},
            "uplink": {"kernels_per_upload": kernels},
        }
    )


def sample_records(
    count: int, clients: int, dimension: int, seed: int = 0, topic: str = "samples"
) -> Iterator[Outgoing]:
    """JSON samples with fields x0, x1, … and y, each client's as often as any other's."""
    generator, encode = np.random.default_rng(seed), msgspec.json.Encoder().encode
    names = [*(f"x{i}" for i in range(dimension)), "y"]
    for number, row in enumerate(generator.random((count, dimension + 1)).round(6).tolist()):
        content = encode(dict(zip(names, row, strict=True)))
        yield Outgoing(topic, f"client-{number % clients}".encode(), content)


def make_topics(bus: Bus, settings: RoleSettings, partitions: int = 1) -> None:
    """The topics of a member that are missing. partitions: where a topic may have any number."""
    topics = find_kind(settings.role.kind).topics(settings)
    known = bus.describe([topic.name for topic in topics])
    bus.create(
        [replace(one, partitions=one.partitions or partitions) for one in topics if one.name not in known]
    )


def new_worker(settings: PofmklSettings, bus: MemoryBus, clock: Clock, max_records: int = 4000) -> Worker:
    """A worker of the settings' role on ``bus``, where missing topics are made with one partition."""
    make_topics(bus, settings)
    section = BusSection(commit_interval_ms=0, max_poll_records=max_records)
    return build_worker(settings.model_copy(update={"bus": section}), bus, clock)
