"""A federation's settings and workers, as the benchmarks need them."""

from __future__ import annotations

from dataclasses import replace

from streamfl.configuration.settings import BusSection
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

__all__ = ["Clock", "client_settings", "new_worker"]


class Clock:
    """Seconds that pass only when the benchmark says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def client_settings(clients: int, dimension: int, kind: str = "pofmkl-client", preset: str = "paper") -> PofmklSettings:
    """JSON samples with fields x0, x1, … and y, the client in the key; asynchronous, M = 1."""
    return PofmklSettings.model_validate(
        {
            "federation": {"name": "bench", "clients": clients, "features": dimension},
            "role": {"kind": kind},
            "samples": {"topic": "samples", "features": [f"x{i}" for i in range(dimension)], "label": "y"},
            "learning": {"preset": preset, "staleness": "async"},
            "uplink": {"kernels_per_upload": 1},
        }
    )


def new_worker(settings: PofmklSettings, bus: MemoryBus, clock: Clock, max_records: int = 4000) -> Worker:
    """A worker of the settings' role on ``bus``, where missing topics are made with one partition."""
    for topic in find_kind(settings.role.kind).topics(settings):
        if not bus.describe([topic.name]):
            bus.create([replace(topic, partitions=topic.partitions or 1)])
    section = BusSection(commit_interval_ms=0, max_poll_records=max_records)
    return build_worker(settings.model_copy(update={"bus": section}), bus, clock)
