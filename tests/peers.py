"""Members of a federation on a memory bus with a common clock. A member that was never started does not
answer."""

from __future__ import annotations

import json
from typing import Any

from clock import Clock

from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker


class Peers:
    """Workers on a memory bus with a common clock. A member that was never started does not answer."""

    def __init__(self, *members: dict[str, Any]) -> None:
        self.clock = Clock(1000.0)
        self.bus = MemoryBus(clock=self.clock)
        self.workers = [self._join(sections) for sections in members]
        self.step()

    def _join(self, sections: dict[str, Any]) -> Worker:
        kind = find_kind(sections["role"]["kind"])
        settings = kind.settings(**sections)
        self.bus.create(
            [TopicSpec(spec.name, spec.partitions or 1, spec.compacted) for spec in kind.topics(settings)]
        )
        return build_worker(settings, self.bus, clock=self.clock)

    def start(self, sections: dict[str, Any]) -> Worker:
        self.workers.append(self._join(sections))
        return self.workers[-1]

    def send(self, topic: str, key: str, content: dict[str, Any]) -> None:
        self.bus.write([Outgoing(topic, key.encode(), json.dumps(content).encode(), 0)])
        self.step()

    def step(self) -> None:
        for _ in range(8):
            for worker in self.workers:
                worker.step(0.0)
