"""A federation's settings and workers, as the benchmarks need them."""

from __future__ import annotations

from streamfl.pofmkl.config import PofmklSettings
from streamfl.role import TopicSpec
from streamfl.runtime.bus import Subscription
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

__all__ = ["Clock", "client_settings", "new_worker"]


class Clock:
    """Seconds that pass only when the benchmark says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def client_settings(clients: int, dimension: int, kind: str = "pofmkl-client") -> PofmklSettings:
    """JSON samples with fields x0, x1, … and y, the client in the key; asynchronous, M = 1, the paper's dictionary."""
    return PofmklSettings.model_validate(
        {
            "federation": {"name": "bench", "clients": clients},
            "role": {"kind": kind},
            "samples": {"topic": "samples", "features": [f"x{i}" for i in range(dimension)], "label": "y"},
            "learning": {"staleness": "async"},
            "uplink": {"kernels_per_upload": 1},
        }
    )


def new_worker(settings: PofmklSettings, bus: MemoryBus, clock: Clock, max_records: int = 4000) -> Worker:
    """A worker of the settings' role on ``bus``, where missing topics are made with one partition."""
    kind = find_kind(settings.role.kind)
    for topic in kind.topics(settings):
        if not bus.describe([topic.name]):
            bus.create([TopicSpec(topic.name, topic.partitions or 1, topic.compacted)])
    role = kind.build(settings)
    channels = kind.channels(settings, role)
    subscription = Subscription(
        group=kind.name,
        inputs=tuple(source.topic for source in channels.inputs.values()),
        tables=tuple(table.topic for table in channels.tables.values()),
        transactional_id=kind.name,
    )
    return Worker(
        role, channels, bus, subscription, "bench.dead-letters", clock=clock, commit_interval=0.0, max_records=max_records
    )
