"""A whole federation on the memory bus, with a virtual clock: parties take their turns until nothing moves any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.messages import Prediction
from streamfl.fdskl.worker import FdsklWorker
from streamfl.records.entities import EntityLabelsSection, EntitySamplesSection, PartySection
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.seeding import rng_for
from streamfl.settings import RoleSection

__all__ = ["KernelFederation"]

LABELS = "labels"
# Records that a worker takes at once.
POLL = 10_000


class KernelFederation:
    """One partition, every party in its worker.

    settings: of any member; what belongs to a single one is filled in here.
    inputs: by party, in the order of federation.parties, (entities, its columns).
    columns: by party, the names of its columns.
    labels: (entities,).
    label_range: of the labels.
    delay: virtual seconds from a worker's turn to the next.
    """

    def __init__(
        self,
        settings: FdsklSettings,
        inputs: Sequence[NDArray[np.float64]],
        columns: Sequence[Sequence[str]],
        labels: NDArray[np.float64],
        label_range: tuple[float, float] = (0.0, 1.0),
        delay: float = 0.001,
    ) -> None:
        settings = settings.without_keys()
        self.settings = settings
        self.inputs = inputs
        self.labels = labels
        self.now = self.begin = 1_000.0
        self._delay = delay
        self._columns = columns
        self.bus = MemoryBus(clock=lambda: self.now)
        self._encode = msgspec.msgpack.Encoder().encode
        section = EntityLabelsSection(topic=LABELS, format="msgpack", label="y", label_range=label_range)
        federation = settings.federation
        self.workers: dict[str, Worker] = {}
        for name, names in zip(federation.parties, columns, strict=True):
            update = {
                "role": RoleSection(kind=WORKER),
                "party": PartySection(name=name),
                "samples": EntitySamplesSection(topic=f"samples-{name}", format="msgpack", features=list(names)),
                "labels": section if name == federation.active_party else None,
            }
            self.workers[name] = self._start(settings.model_copy(update=update), name)

    @property
    def roles(self) -> Mapping[str, FdsklWorker]:
        return {name: cast(FdsklWorker, worker.role) for name, worker in self.workers.items()}

    @property
    def active(self) -> FdsklWorker:
        return self.roles[self.settings.federation.active_party]

    @property
    def seconds(self) -> float:
        """Virtual seconds since the beginning."""
        return self.now - self.begin

    def write_samples(self, entities: Sequence[int]) -> None:
        """Let every party have its columns of these entities."""
        for name, own, names in zip(self.settings.federation.parties, self.inputs, self._columns, strict=True):
            rows = own[list(entities)].tolist()
            self.bus.write(
                [
                    Outgoing(f"samples-{name}", str(one).encode(), self._encode(dict(zip(names, row, strict=True))))
                    for one, row in zip(entities, rows, strict=True)
                ]
            )

    def write_labels(self, entities: Sequence[int]) -> None:
        """Let the active party have the labels of these entities."""
        self.bus.write([Outgoing(LABELS, str(one).encode(), self._encode({"y": float(self.labels[one])})) for one in entities])

    def run(self, most_seconds: float = 1e9) -> None:
        """Go on until nothing moves and nothing is waited for, or for so many virtual seconds."""
        until = self.now + most_seconds
        while self.now < until:
            moved = False
            for worker in self.workers.values():
                while worker.step(0.0):
                    moved = True
            self.now += self._delay
            if moved:
                continue
            wake = min((at for role in self.roles.values() if (at := role.wake_at) is not None), default=None)
            if not any(role.waiting for role in self.roles.values()) or wake is None:
                return
            self.now = max(self.now, wake)

    def predictions(self) -> list[Prediction]:
        """All that were published, in order."""
        topic = f"{self.settings.federation.name}.predictions"
        return [msgspec.json.decode(record.value or b"", type=Prediction) for record in self.bus.read(topic)]

    def evaluate(self, inputs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """f of other entities by the present model, computed with every party's own frequencies: (n,)."""
        active = self.active.active_partition(0)
        expansion = active.model.snapshot()
        if not len(expansion.alphas):
            return np.zeros(len(inputs[0]))
        phases: Any = 0.0
        for role, own in zip(self.roles.values(), inputs, strict=True):
            task = role.partition(0)
            rows = task.standardisation.apply(own, np.ones(len(own), np.bool_))
            ranges = [(one.first, one.count) for one in expansion.ranges]
            phases = phases + task.sums.contributions.frequencies(expansion.bandwidth).partial_phases(rows, ranges)
        return expansion.evaluate(np.sqrt(2.0) * np.cos(phases))

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()

    def _start(self, settings: FdsklSettings, name: str) -> Worker:
        kind = find_kind(WORKER)
        topics = kind.topics(settings)
        known = self.bus.describe([topic.name for topic in topics])
        self.bus.create([replace(topic, partitions=1) for topic in topics if topic.name not in known])
        worker = build_worker(settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None)
        role = cast(FdsklWorker, worker.role)
        # Others are to compute the same figures.
        draws = rng_for(settings.federation.seed, "fdskl", "simulation", name)
        own = replace(role.settings, secret=draws.bytes(32), entropy=lambda: draws.bytes(32))
        role.settings = own
        worker.step(0.0)
        worker.step(0.0)
        return worker
