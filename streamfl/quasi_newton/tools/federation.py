"""A whole federation on the memory bus, with a virtual clock. Members take turns until a training is over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.configuration.settings import RoleSection
from streamfl.quasi_newton.config import COORDINATOR, GUEST, HOST, PreprocessingSection, QuasiNewtonSettings
from streamfl.quasi_newton.members.coordinator import CoordinatorTask
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.members.training_progress import FAILED, TRAINED
from streamfl.quasi_newton.rows.preprocessing import EVIDENCE
from streamfl.quasi_newton.tools.made_up_secrets import MadeUp
from streamfl.quasi_newton.tools.steps import MeasuredWork, Seconds
from streamfl.records.entities import EntityLabelsSection, EntitySamplesSection, PartySection
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.worker import Worker
from streamfl.simulation.network import NetworkBus, TopicTraffic

__all__ = ["BETWEEN", "CurvatureFederation", "columns_named"]

# Kinds of topics between members, by the end of the topic's name.
BETWEEN = ("uploads", "decisions", "outputs", "residuals")
# If nothing is due within this many virtual seconds, nothing that a training waits for will come.
NEVER = 1e9
LABELS = "labels"
COORDINATOR_PLACE = ""


class CurvatureFederation:
    """Guest, hosts and coordinator, each in its worker, on one partition.

    settings: of any member. Each member's own settings, keys and secrets are filled in here.
    inputs: by party, in the order of federation.parties, (entities, its columns). columns: by party, their names.
    labels: 0 and 1, (entities,).
    delay: virtual seconds from a member's turn to the next. network_delay: virtual seconds that a message takes.
    overheard: called with each message between members.
    look: called after each step of a member, with the name of the party, or "" for the coordinator.
    """

    def __init__(
        self,
        settings: QuasiNewtonSettings,
        inputs: Sequence[NDArray[np.float64]],
        columns: Sequence[Sequence[str]],
        labels: NDArray[np.float64],
        delay: float = 0.001,
        network_delay: float = 0.0,
        overheard: Callable[[Outgoing], None] | None = None,
        look: Callable[[str], None] = lambda name: None,
    ) -> None:
        settings = settings.in_one_process()
        self.settings = settings
        self.inputs = inputs
        self.now = self.begin = 1_000.0
        self._moved = self.now
        self._delay = delay
        self._columns = columns
        self._look = look
        self.seconds = Seconds()
        federation = settings.federation
        self.bus = NetworkBus(clock=lambda: self.now, delay=network_delay, overheard=overheard)
        self.bus.between = {f"{federation.name}.{name}.{kind}" for name in federation.parties for kind in BETWEEN}
        self._folder = tempfile.TemporaryDirectory(prefix="streamfl-")
        made_up = MadeUp(settings, Path(self._folder.name))
        work = MeasuredWork(self.seconds)
        self.workers: dict[str, Worker] = {}
        # Scoring is off, because only the training is measured.
        unscored = settings.scoring.model_copy(update={"enabled": False})
        for name, own in {**self._of_parties(), COORDINATOR_PLACE: {"role": RoleSection(kind=COORDINATOR)}}.items():
            encryption = made_up.encryption(own["role"].kind, name)
            changed = {**own, "encryption": encryption, "scoring": unscored}
            self.workers[name] = self._start(settings.model_copy(update=changed), work)
        self._write(labels)

    @property
    def parties(self) -> dict[str, PartyTask]:
        """Each party's partition, by name."""
        return {name: cast(PartitionedRole[PartyTask], worker.role).task(0) for name, worker in self.workers.items() if name}

    @property
    def coordinator(self) -> CoordinatorTask:
        return cast(PartitionedRole[CoordinatorTask], self.workers[COORDINATOR_PLACE].role).task(0)

    @property
    def virtual_seconds(self) -> float:
        """Virtual seconds from the beginning until a member last did something."""
        return self._moved - self.begin

    @property
    def over(self) -> bool:
        """Whether the training has ended at every party."""
        return all(party.progress.phase in (TRAINED, FAILED) for party in self.parties.values())

    @property
    def failure(self) -> str | None:
        """Why the training has failed, if it has. The text of the party that could not go on comes first."""
        found = [party.progress.failure for party in self.parties.values() if party.progress.failure]
        return min(found, key=lambda text: "another party" in text, default=None)

    def turn(self) -> bool:
        """Let each member do what it can, and let time pass. False once the training is over, or no member can do anything."""
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
        wakes = (worker.role.wake_at for worker in self.workers.values())
        next_time = min((self.bus.next_arrival(self.now), *(at for at in wakes if at is not None)))
        if next_time > self.now + NEVER:
            return False
        self.now = max(self.now + self._delay, next_time)
        return True

    def count(self, party: str, name: str) -> int:
        """A metric of a party, summed over its labels."""
        return int(sum(one.value for one in self.workers[party].measure() if one.name == name))

    def traffic(self, kind: str) -> TopicTraffic:
        """Messages and bytes between members on topics of this kind, one of ``BETWEEN``."""
        counts = [count for topic, count in self.bus.traffic.items() if topic.endswith(f".{kind}")]
        return TopicTraffic(sum(one.messages for one in counts), sum(one.bytes for one in counts))

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self._folder.cleanup()

    def _of_parties(self) -> dict[str, dict[str, Any]]:
        federation = self.settings.federation
        own: dict[str, dict[str, Any]] = {}
        for name, names in zip(federation.parties, self._columns, strict=True):
            is_guest = name == federation.guest_party
            own[name] = {
                "role": RoleSection(kind=GUEST if is_guest else HOST),
                "party": PartySection(name=name),
                "samples": EntitySamplesSection(topic=f"samples-{name}", format="msgpack", features=columns_named(names)),
                "labels": EntityLabelsSection(topic=LABELS, format="msgpack", label="y") if is_guest else None,
            }
            if not is_guest and self.settings.preprocessing.method == EVIDENCE:
                # This method is for the guest alone, because it needs labels.
                own[name]["preprocessing"] = PreprocessingSection()
        return own

    def _start(self, settings: QuasiNewtonSettings, work: MeasuredWork) -> Worker:
        if settings.role.kind == COORDINATOR:
            settings = settings.model_copy(update=dict.fromkeys(("party", "samples", "labels")))
        topics = find_kind(settings.role.kind).topics(settings)
        known = self.bus.describe([topic.name for topic in topics])
        self.bus.create([replace(topic, partitions=1) for topic in topics if topic.name not in known])
        worker = build_worker(settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None, work)
        worker.step(0.0)
        return worker

    def _write(self, labels: NDArray[np.float64]) -> None:
        encode = msgspec.msgpack.Encoder().encode
        for name, own, names in zip(self.settings.federation.parties, self.inputs, self._columns, strict=True):
            fields = columns_named(names)
            self.bus.write(
                [
                    Outgoing(f"samples-{name}", b"%d" % entity, encode(dict(zip(fields, row, strict=True))))
                    for entity, row in enumerate(own.tolist())
                ]
            )
        self.bus.write([Outgoing(LABELS, b"%d" % entity, encode({"y": label})) for entity, label in enumerate(labels.tolist())])


def columns_named(names: Sequence[str]) -> list[str]:
    """Generated names of fields, one for each column: columns may have any name."""
    return [f"x{number}" for number in range(len(names))]
