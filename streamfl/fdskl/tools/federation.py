"""A whole federation on the memory bus, with a virtual clock: parties take turns until nothing moves any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.configuration.settings import RoleSection
from streamfl.contract.seeding import rng_for
from streamfl.fdskl.config import WORKER, FdsklFederation, FdsklSettings
from streamfl.fdskl.learning.model import Expansion
from streamfl.fdskl.messages import TURN, Prediction
from streamfl.fdskl.worker.active import ActivePartition
from streamfl.fdskl.worker.role import FdsklWorker
from streamfl.records.entities import EntityLabelsSection, EntitySamplesSection, PartySection
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.worker import Worker
from streamfl.simulation.network import NetworkBus, TopicTraffic

__all__ = ["BETWEEN", "KernelFederation", "active_member", "settings_of_all"]

LABELS = "labels"
# Kinds of messages between parties.
BETWEEN = ("incarnations", "rounds", "sums", "revisions", "turns")
# Numbers that are computed at once when a model is evaluated.
EVALUATED = 2**22


def active_member(name: str, label: str = "y") -> dict[str, Any]:
    """Sections of a member that knows the labels, for a run of all members in one process."""
    return {
        "role": {"kind": WORKER},
        "party": {"name": name},
        "samples": {"topic": "samples", "features": "columns", "dimension": 1},
        "labels": {"topic": LABELS, "label": label, "label_range": (0.0, 1.0)},
    }


def settings_of_all(parties: Sequence[str], **sections: Mapping[str, Any]) -> FdsklSettings:
    """The settings that all members share, for :class:`KernelFederation`, which fills in those of a single member.

    sections: values that differ from the defaults, by the section's name.
    """
    federation = FdsklFederation.model_validate({"name": "f", "parties": list(parties), **sections.pop("federation", {})})
    return FdsklSettings.model_validate({"federation": federation, **active_member(federation.active_party), **sections})


class KernelFederation:
    """One partition, every party in its worker.

    settings: of any member; those of a single member are filled in here.
    inputs: by party, in the order of federation.parties, (entities, its columns).
    columns: by party, the names of its columns.
    labels: (entities,); each of several active parties gets its own ones.
    label_range: of the labels.
    delay: virtual seconds from a worker's turn to the next.
    network_delay: virtual seconds from one party to another.
    overheard: called with each message between parties.
    """

    def __init__(
        self,
        settings: FdsklSettings,
        inputs: Sequence[NDArray[np.float64]],
        columns: Sequence[Sequence[str]],
        labels: NDArray[np.float64],
        label_range: tuple[float, float] = (0.0, 1.0),
        delay: float = 0.001,
        network_delay: float = 0.0,
        overheard: Callable[[Outgoing], None] | None = None,
    ) -> None:
        settings = settings.in_one_process()
        self.settings = settings
        self.inputs = inputs
        self.labels = labels
        self.now = self.begin = 1_000.0
        self._moved = self.now
        self._delay = delay
        self._columns = columns
        self.bus = NetworkBus(clock=lambda: self.now, delay=network_delay, overheard=overheard)
        self._encode = msgspec.msgpack.Encoder().encode
        section = EntityLabelsSection(topic=LABELS, format="msgpack", label="y", label_range=label_range)
        federation = settings.federation
        self.bus.between = {f"{federation.name}.{name}.{kind}" for name in federation.parties for kind in BETWEEN}
        # The log of several active parties, each of which reads all of it.
        self.bus.logs.add(f"{federation.name}.turns")
        self.bus.between |= self.bus.logs
        # Secrets are drawn here, so no file is read.
        aggregation = settings.aggregation.model_copy(update={"secret_file": None})
        self.workers: dict[str, Worker] = {}
        self._lives: dict[str, int] = {}
        self._of_party: dict[str, FdsklSettings] = {}
        for name, names in zip(federation.parties, columns, strict=True):
            update = {
                "role": RoleSection(kind=WORKER),
                "party": PartySection(name=name),
                "samples": EntitySamplesSection(topic=f"samples-{name}", format="msgpack", features=list(names)),
                "labels": section.model_copy(update={"topic": f"{LABELS}-{name}"}) if name in federation.active_parties else None,
                "aggregation": aggregation,
            }
            self._of_party[name] = settings.model_copy(update=update)
            self.workers[name] = self._start(name)

    @property
    def roles(self) -> Mapping[str, FdsklWorker]:
        return {name: cast(FdsklWorker, worker.role) for name, worker in self.workers.items()}

    @property
    def active(self) -> FdsklWorker:
        """The active party's role, or the first one's."""
        return self.roles[self.settings.federation.active_party]

    @property
    def held(self) -> ActivePartition:
        """What the active party has of the one partition."""
        return self.active.active_partition(0)

    @property
    def expansions(self) -> dict[str, Expansion]:
        """By active party, its part of the model."""
        return {name: self.roles[name].active_partition(0).model.snapshot() for name in self.settings.federation.active_parties}

    @property
    def learners(self) -> list[str]:
        """By iteration, the active party that made it."""
        names = self.settings.federation.active_parties
        if len(names) == 1:
            return names * self.held.model.version
        said = (TURN.decode(record.value) for record in self.bus.read(f"{self.settings.federation.name}.turns"))
        return [message.sender for message in said if message.learnt]

    def learner_of(self, entity: int) -> str:
        """The active party that knows the entity's label: labels are dealt out in turn."""
        names = self.settings.federation.active_parties
        return names[entity % len(names)]

    @property
    def seconds(self) -> float:
        """Virtual seconds from the beginning until something last moved."""
        return self._moved - self.begin

    def write_samples(self, entities: Sequence[int]) -> None:
        """Write every party's columns of these entities."""
        for name, own, names in zip(self.settings.federation.parties, self.inputs, self._columns, strict=True):
            rows = own[list(entities)].tolist()
            self.bus.write(
                [
                    Outgoing(f"samples-{name}", str(one).encode(), self._encode(dict(zip(names, row, strict=True))))
                    for one, row in zip(entities, rows, strict=True)
                ]
            )

    def write_labels(self, entities: Sequence[int]) -> None:
        """Write the labels of these entities, each for the active party that knows it."""
        self.bus.write(
            [
                Outgoing(f"{LABELS}-{self.learner_of(one)}", str(one).encode(), self._encode({"y": float(self.labels[one])}))
                for one in entities
            ]
        )

    def run(self, most_seconds: float = 1e9) -> None:
        """Run until nothing moves and nothing is waited for, or for ``most_seconds`` virtual seconds."""
        until = self.now + most_seconds
        while self.now < until:
            moved = False
            for worker in self.workers.values():
                while worker.step(0.0):
                    moved = True
            if moved:
                self._moved = self.now
                self.now += self._delay
                continue
            arrival = self.bus.next_arrival(self.now)
            wake = min((at for role in self.roles.values() if (at := role.wake_at) is not None), default=math.inf)
            if not any(role.waiting for role in self.roles.values()):
                wake = math.inf
            if min(arrival, wake) == math.inf:
                return
            self.now = min(until, max(self.now + self._delay, min(arrival, wake)))

    def predictions(self) -> list[Prediction]:
        """All published predictions, in order."""
        topic = f"{self.settings.federation.name}.predictions"
        return [msgspec.json.decode(record.value or b"", type=Prediction) for record in self.bus.read(topic)]

    def traffic(self, kind: str) -> TopicTraffic:
        """The messages between parties of this kind, one of ``BETWEEN``."""
        counts = [count for topic, count in self.bus.traffic.items() if topic.endswith(f".{kind}")]
        return TopicTraffic(sum(one.messages for one in counts), sum(one.bytes for one in counts))

    def figure(self, party: str, name: str) -> float:
        """A measurement of a party, summed over its labels."""
        return sum(one.value for one in self.workers[party].measure() if one.name == name)

    def standardised(self, inputs: Sequence[NDArray[np.float64]], absent: str | None = None) -> list[NDArray[np.float64]]:
        """By party, standardised columns of other entities, (n, columns); for an absent party their mean."""
        rows = []
        for (name, role), own in zip(self.roles.items(), inputs, strict=True):
            known = np.full(len(own), name != absent)
            rows.append(role.partition(0).standardisation.apply(own, known))
        return rows

    def evaluate(self, inputs: Sequence[NDArray[np.float64]], absent: str | None = None) -> NDArray[np.float64]:
        """f of other entities by the current model, computed with every party's own frequencies and without noise: (n,).

        absent: a party that knows none of them.
        """
        parts, count = list(self.expansions.values()), len(inputs[0])
        # A party's coefficients are 0 where another party has them.
        expansion = replace(parts[0], alphas=np.sum([one.alphas for one in parts], axis=0))
        outputs = np.zeros(count)
        if not len(expansion.alphas):
            return outputs
        ranges = [(one.first, one.count) for one in expansion.ranges]
        rows = self.standardised(inputs, absent)
        drawn = [role.partition(0).sums.own_part.contributions.frequencies(expansion.bandwidth) for role in self.roles.values()]
        for part in _parts(count, max(1, EVALUATED // len(expansion.alphas))):
            phases: Any = sum(one.partial_phases(own[part], ranges) for one, own in zip(drawn, rows, strict=True))
            outputs[part] = expansion.evaluate(np.sqrt(2.0) * np.cos(phases))
        return outputs

    def stop(self, name: str) -> None:
        """The party's process ends."""
        self.workers.pop(name).close()

    def restart(self, name: str) -> None:
        """Start another process of the party, from its changelog alone."""
        if name in self.workers:
            self.stop(name)
        started = {**self.workers, name: self._start(name)}
        self.workers = {one: started[one] for one in self.settings.federation.parties if one in started}

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()

    def _start(self, name: str) -> Worker:
        settings = self._of_party[name]
        kind = find_kind(WORKER)
        topics = kind.topics(settings)
        known = self.bus.describe([topic.name for topic in topics])
        self.bus.create([replace(topic, partitions=1) for topic in topics if topic.name not in known])
        worker = build_worker(settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None)
        role = cast(FdsklWorker, worker.role)
        # Drawn from the seed, so that others compute the same figures.
        life = self._lives[name] = self._lives.get(name, 0) + 1
        draws = rng_for(settings.federation.seed, "fdskl", "simulation", name, *([str(life)] if life > 1 else []))
        role.given = replace(role.given, secret=draws.bytes(32), entropy=lambda: draws.bytes(32))
        if settings.privacy.input_noise is not None:
            role.given = replace(role.given, noise_secret=draws.bytes(32).hex())
        worker.step(0.0)
        worker.step(0.0)
        return worker


def _parts(count: int, size: int) -> Iterator[slice]:
    return (slice(begin, begin + size) for begin in range(0, count, size))
