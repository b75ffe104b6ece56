"""The same federation without faults, on the memory bus."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from soak.configuration import all_topics, load_members, write_configuration
from soak.subject import Left, Plan, SoakedSystem

from streamfl.configuration.settings import BusSection, RoleSettings
from streamfl.contract.role import Record
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus

__all__ = ["left_calmly", "run_calmly", "written_again"]

# Seconds. Ticks that are due later are not waited for.
SOON = 1.0
MOST_WAITS = 20


def run_calmly(
    settings: Mapping[str, RoleSettings], load: Iterable[Sequence[Outgoing]]
) -> dict[str, list[Record]]:
    """The records of every topic after one process of each member has processed the load, part by part."""
    bus = MemoryBus()
    topics = all_topics(settings)
    bus.create(list(topics.values()))
    workers = [
        build_worker(one.model_copy(update={"bus": BusSection(commit_interval_ms=0)}), bus)
        for one in settings.values()
    ]
    for part in load:
        bus.write(part)
        while any(worker.step(0.0) for worker in workers):
            pass
    for _ in range(MOST_WAITS):
        due = [worker.role.wake_at for worker in workers if worker.role.wake_at is not None]
        wait = min(due, default=math.inf) - time.time()
        if wait > SOON:
            break
        time.sleep(max(0.01, wait))
        while any(worker.step(0.0) for worker in workers):
            pass
    return {name: list(bus.read(name)) for name in topics}


def left_calmly(system: SoakedSystem, plan: Plan, folder: Path, samples: int, at_once: int = 40) -> Left:
    """What the first samples of the system's load leave behind. They are written so many at once. folder: of
    the settings files."""
    settings = load_members(write_configuration(system, plan, "kafka://127.0.0.1:1", folder))
    parts = [range(at, min(at + at_once, samples)) for at in range(0, samples, at_once)]
    load = [[one for number in part for one in system.records(plan, number)] for part in parts]
    return Left(plan, settings, run_calmly(settings, [[*system.first(plan)], *load]))


def written_again(records: Iterable[Record]) -> list[Outgoing]:
    """The same records for the same partitions."""
    return [Outgoing(one.topic, one.key, one.value, one.partition) for one in records]
