"""A whole federation on a memory bus, with one partition and a virtual clock. Each member is in its own
worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.channel_table import ChannelTable
from streamfl.contract.measurement import Metric
from streamfl.records.entities import VerticalSettings
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.pool import Pool
from streamfl.runtime.worker import Worker
from streamfl.simulation.network import NetworkBus, TopicTraffic
from streamfl.simulation.vertical.members import LABEL, LABELS, Columns, columns_content, samples_topic

__all__ = ["TurnFederation", "VirtualFederation"]

# If nothing is due within this many virtual seconds, nothing that the federation waits for will come.
NEVER = 1e9

Settings = TypeVar("Settings", bound=VerticalSettings)
OneBus = TypeVar("OneBus", bound=MemoryBus)


class VirtualFederation(Generic[Settings, OneBus]):
    """Members, their bus and their virtual time. A subclass starts the members and lets them work.

    settings: of any member.
    bus: made with the virtual clock.
    inputs: by party, in the order of federation.parties, (entities, its columns).
    labels: (entities,).
    prediction: the type of a published prediction.
    """

    prediction: type[Any]

    def __init__(
        self,
        settings: Settings,
        bus: Callable[[Callable[[], float]], OneBus],
        inputs: Sequence[NDArray[Any]],
        labels: NDArray[Any],
    ) -> None:
        self.settings = settings.in_one_process()
        self.inputs = dict(zip(settings.federation.parties, inputs, strict=True))
        # A subclass whose results depend on the columns' names gives names here.
        self.columns: Mapping[str, Columns] = {name: own.shape[1] for name, own in self.inputs.items()}
        self.labels = np.asarray(labels, np.float64)
        self.now = self.begin = 1_000.0
        self._moved = self.now
        self.bus = bus(lambda: self.now)
        self.workers: dict[str, Worker] = {}
        self._encode = msgspec.msgpack.Encoder().encode

    @property
    def virtual_seconds(self) -> float:
        """Virtual seconds from the beginning until something last moved."""
        return self._moved - self.begin

    def figure(self, member: str, metric: Metric) -> float:
        """A member's metric, summed over its labels."""
        return sum(one.value for one in self.workers[member].measure() if one.name == metric.name)

    def by_reason(self, metric: Metric, members: Iterable[str]) -> dict[str, int]:
        """A metric of these members together, by reason."""
        found: dict[str, int] = {}
        for member in members:
            for one in self.workers[member].measure():
                if one.name == metric.name:
                    reason = dict(one.labels)["reason"]
                    found[reason] = found.get(reason, 0) + int(one.value)
        return found

    def write_columns(self, party: str, entities: Sequence[int]) -> None:
        """Write a party's columns of these entities."""
        topic = samples_topic(party)
        columns = self.columns[party]
        rows = self.inputs[party][list(entities)].tolist()
        self.bus.write(
            [
                self._record(topic, entity, columns_content(columns, row))
                for entity, row in zip(entities, rows, strict=True)
            ]
        )

    def write_samples(self, entities: Sequence[int]) -> None:
        """Write every party's columns of these entities."""
        for party in self.inputs:
            self.write_columns(party, entities)

    def write_labels(self, entities: Sequence[int]) -> None:
        """Write the labels of these entities."""
        self.bus.write(
            [
                self._record(self.labels_topic_of(one), one, {LABEL: float(self.labels[one])})
                for one in entities
            ]
        )

    def labels_topic_of(self, entity: int) -> str:
        """The topic of this entity's label."""
        return LABELS

    def name_of(self, entity: int) -> str:
        """The name of an entity, by its row in the table."""
        return str(entity)

    def predictions(self) -> list[Any]:
        """All published predictions, in order."""
        decode = msgspec.json.Decoder(self.prediction).decode
        return [decode(record.value or b"") for record in self.bus.read(self.settings.predictions_topic)]

    def last_predictions(self, read: Callable[[Any], Any]) -> tuple[list[int], NDArray[np.float64]]:
        """The entities that were predicted, and the last prediction of each. read: what of a prediction is
        meant."""
        last = {int(one.entity): read(one) for one in self.predictions()}
        return list(last), np.array(list(last.values()), np.float64)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()

    def _record(self, topic: str, entity: int, content: dict[str, Any]) -> Outgoing:
        return Outgoing(topic, self.name_of(entity).encode(), self._encode(content))

    def _start(
        self, settings: Settings, pool: Pool | None = None, prepare: Callable[[Worker], None] | None = None
    ) -> Worker:
        """A member's worker, which has taken its partition.

        prepare: called before the worker takes the partition.
        """
        table = find_kind(settings.role.kind).channel_table(settings)
        self._know(table)
        topics = table.topics(settings.dead_letters)
        known = self.bus.describe([topic.name for topic in topics])
        self.bus.create([replace(topic, partitions=1) for topic in topics if topic.name not in known])
        worker = build_worker(
            settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None, pool
        )
        if prepare is not None:
            prepare(worker)
        worker.step(0.0)
        return worker

    def _know(self, table: ChannelTable) -> None:
        """Called with a member's channels before its worker starts."""


class TurnFederation(VirtualFederation[Settings, NetworkBus]):
    """A federation whose members take turns: each does what it can, then time passes.

    between: kinds of messages between members whose traffic is told, which are the ends of the topics' names.
    delay: virtual seconds from a member's turn to the next.
    network_delay: virtual seconds that a message takes.
    overheard: called with each message between members.
    """

    def __init__(
        self,
        settings: Settings,
        between: Iterable[str],
        inputs: Sequence[NDArray[np.float64]],
        labels: NDArray[np.float64],
        delay: float = 0.001,
        network_delay: float = 0.0,
        overheard: Callable[[Outgoing], None] | None = None,
    ) -> None:
        super().__init__(settings, lambda clock: NetworkBus(clock, network_delay, overheard), inputs, labels)
        self._delay = delay
        self.between = tuple(between)

    @property
    def over(self) -> bool:
        """Whether nothing more has to be done, although members could go on."""
        return False

    def turn(self, until: float = math.inf) -> bool:
        """Let each member do what it can, and let time pass, but not beyond ``until``. False if no member has
        anything to do."""
        moved = False
        for name, worker in self.workers.items():
            while worker.step(0.0):
                moved = True
                self._look(name)
        if moved:
            self._moved = self.now
        if self.over:
            return False
        if moved:
            self.now += self._delay
            return True
        next_time = min(self.bus.next_arrival(self.now), self._wake_at())
        if next_time > self.now + NEVER:
            return False
        self.now = min(until, max(self.now + self._delay, next_time))
        return True

    def traffic(self) -> dict[str, TopicTraffic]:
        """Messages and bytes between members, by kind."""
        found = {kind: TopicTraffic() for kind in self.between}
        for topic, count in self.bus.traffic.items():
            total = found.get(topic.rpartition(".")[2])
            if total is not None:
                total.messages += count.messages
                total.bytes += count.bytes
        return found

    def _know(self, table: ChannelTable) -> None:
        self.bus.between |= table.between_members

    def _look(self, name: str) -> None:
        """Called after each step of a member."""

    def _wake_at(self) -> float:
        """When a member next has something to do by the clock; inf: never."""
        wakes = (worker.role.wake_at for worker in self.workers.values())
        return min((at for at in wakes if at is not None), default=math.inf)
