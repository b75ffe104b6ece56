"""A memory bus that simulates a network: it delays messages between members, counts them, and drops them once
they were read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamfl.contract.role import Record
from streamfl.encoding.wire import encoded_size
from streamfl.runtime.bus import Outgoing, Polled, Step, TopicPartition
from streamfl.runtime.memory_bus import MemoryBus, MemorySession

__all__ = ["NetworkBus", "TopicTraffic"]


@dataclass
class TopicTraffic:
    """Traffic on a topic. bytes: including keys, headers and framing."""

    messages: int = 0
    bytes: int = 0


class NetworkBus(MemoryBus):
    """A memory bus. The topics in ``between`` go over a simulated network.

    Their records can be read ``delay`` seconds after they were written. Each of these topics, except those in
    ``logs``, has a single reader. When it has committed, its records are dropped, because a long run would
    fill memory with them.

    clock: virtual seconds.
    overheard: called with each message of the network, for example to show the traffic.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        delay: float = 0.0,
        overheard: Callable[[Outgoing], None] | None = None,
    ) -> None:
        super().__init__(clock=clock)
        self.delay = delay
        self._overheard = overheard
        self.between: set[str] = set()
        self.logs: set[str] = set()
        self.traffic: dict[str, TopicTraffic] = {}
        # When the next record on its way can be read, or earlier.
        self._next = math.inf

    @property
    def session_type(self) -> type[MemorySession]:
        return _NetworkSession

    def next_arrival(self, now: float) -> float:
        """When the next record on its way arrives; inf: none is on its way."""
        return self._next if self._next > now else math.inf

    def _append(self, records: Sequence[Outgoing]) -> None:
        super()._append(records)
        for record in records:
            if record.topic in self.between:
                counted = self.traffic.setdefault(record.topic, TopicTraffic())
                counted.messages += 1
                counted.bytes += encoded_size(record.key, record.value, record.headers)
                if self._overheard is not None:
                    self._overheard(record)

    def arrived(self, place: TopicPartition, position: int, limit: int) -> list[Record]:
        """The records from a position on that have arrived by now."""
        records = self._log(*place).since(position, limit)
        if not self.delay or place[0] not in self.between:
            return records
        now = self.clock()
        there = [record for record in records if record.timestamp + self.delay <= now]
        if len(there) < len(records):
            self._next = min(
                self._next if self._next > now else math.inf, records[len(there)].timestamp + self.delay
            )
        return there

    def read_until(self, place: TopicPartition, offset: int) -> None:
        """The reader of a partition has committed: earlier records are no longer needed."""
        if place[0] in self.between and place[0] not in self.logs:
            self._log(*place).drop(offset)


class _NetworkSession(MemorySession):
    def _take_records(self, polled: Polled, max_records: int) -> None:
        taken = polled.records
        bus = self._bus
        assert isinstance(bus, NetworkBus)
        for place in self._places_in_turn():
            records = bus.arrived(place, self._positions[place], max_records - len(taken))
            if records:
                self._positions[place] = records[-1].offset + 1
                taken += records

    def _apply(self, step: Step) -> None:
        super()._apply(step)
        assert isinstance(self._bus, NetworkBus)
        for place, offset in step.positions.items():
            self._bus.read_until(place, offset)
