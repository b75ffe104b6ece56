"""A federation in this process, on a bus in memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing

from streamfl.configuration.settings import BusSection, RoleSettings
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, federation_topics
from streamfl.runtime.memory_bus import MemoryBus

__all__ = ["run_in_memory"]


def run_in_memory(members: Iterable[RoleSettings], records: Iterable[Outgoing]) -> MemoryBus:
    """The bus after one worker of each member has processed all records. Topics have one partition, and no
    time passes.

    A record is written once all members have done with those before it, as on a slow stream.
    """
    own = [
        settings.in_one_process().model_copy(update={"bus": BusSection(commit_interval_ms=0)})
        for settings in members
    ]
    bus = MemoryBus()
    bus.create(federation_topics(own, 1))
    with ExitStack() as stack:
        workers = [stack.enter_context(closing(build_worker(settings, bus))) for settings in own]
        for record in records:
            bus.write([record])
            while any([worker.step(0.0) for worker in workers]):  # noqa: C419 - each has its turn
                pass
    return bus
