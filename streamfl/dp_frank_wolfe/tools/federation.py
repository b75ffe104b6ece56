"""A whole federation on the memory bus, with a virtual clock. Members take turns until nothing moves any more."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.configuration.settings import RoleSection
from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.role import PartyTask
from streamfl.records.entities import EntityLabelsSection, EntitySamplesSection, PartySection
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.worker import Worker
from streamfl.simulation.network import NetworkBus, TopicTraffic

__all__ = ["ASKS", "RELEASES", "FrankWolfeFederation", "bounds_of", "name_of"]

# Kinds of topics between members: the end of the topic's name.
RELEASES, ASKS = "releases", "asks"
# Virtual seconds: nothing that a fit waits for comes later than this after everything else.
NEVER = 1e9
LABELS = "labels"
SERVER_PLACE = ""
SECRET_BYTES = 32


class FrankWolfeFederation:
    """The parties and the server, each in its worker, on one partition.

    settings: of any member; what belongs to a single one is filled in here. Noise is drawn from federation.seed with
        privacy.insecure_test_noise, and from a secret of this run without it.
    inputs: by party, in the order of federation.parties, (entities, its columns). labels: (entities,). All are learnt from.
    delay: virtual seconds from a member's turn to the next. network_delay: of a message.
    overheard: called with each message between members.
    """

    def __init__(
        self,
        settings: DPFrankWolfeSettings,
        inputs: Sequence[NDArray[np.float64]],
        labels: NDArray[np.float64],
        delay: float = 0.001,
        network_delay: float = 0.0,
        overheard: Callable[[Outgoing], None] | None = None,
    ) -> None:
        settings = settings.in_one_process()
        self.settings = settings
        self.now = self.begin = 1_000.0
        self._moved = self.now
        self._delay = delay
        federation = settings.federation
        self.bus = NetworkBus(clock=lambda: self.now, delay=network_delay, overheard=overheard)
        self.bus.between = {f"{federation.name}.{name}.{kind}" for name in federation.parties for kind in (RELEASES, ASKS)}
        self._folder = tempfile.TemporaryDirectory(prefix="streamfl-")
        own = {name: self._of_party(name) for name in federation.parties}
        own[SERVER_PLACE] = settings.model_copy(
            update={"role": RoleSection(kind=SERVER), **dict.fromkeys(("party", "samples", "labels"))}
        )
        self.workers = {name: self._start(one) for name, one in own.items()}
        self._write(inputs, labels)

    @property
    def virtual_seconds(self) -> float:
        """Seconds from the beginning until something last moved."""
        return self._moved - self.begin

    @property
    def trouble(self) -> str | None:
        """Trouble of the first member that has any."""
        found = (worker.role.trouble for worker in self.workers.values())
        return next((text for text in found if text is not None), None)

    def places(self, window: int) -> dict[str, ReleaseContext]:
        """Where each party's releases of a window belong, with the secret that their noise is drawn from."""
        return {name: party.settings.place(window) for name, party in self._parties.items()}

    @property
    def spent(self) -> float:
        """Cost of the entity that was charged most, over all parties. Infinite where no promise holds."""
        return sum(party.ledger.spend.largest for party in self._parties.values())

    def turn(self) -> bool:
        """Lets each member do what it can, and time pass. False once nothing moves any more."""
        moved = False
        for worker in self.workers.values():
            while worker.step(0.0):
                moved = True
        if moved:
            self._moved = self.now
            self.now += self._delay
            return True
        wakes = (worker.role.wake_at for worker in self.workers.values())
        next_time = min((self.bus.next_arrival(self.now), *(at for at in wakes if at is not None)))
        if next_time > self.now + NEVER:
            return False
        self.now = max(self.now + self._delay, next_time)
        return True

    def traffic(self, kind: str) -> TopicTraffic:
        """Traffic between members on topics of this kind, ``RELEASES`` or ``ASKS``."""
        counts = [count for topic, count in self.bus.traffic.items() if topic.endswith(f".{kind}")]
        return TopicTraffic(sum(one.messages for one in counts), sum(one.bytes for one in counts))

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self._folder.cleanup()

    @property
    def _parties(self) -> dict[str, PartyTask]:
        return {name: cast(PartitionedRole[PartyTask], worker.role).task(0) for name, worker in self.workers.items() if name}

    def _of_party(self, name: str) -> DPFrankWolfeSettings:
        settings, columns = self.settings, self.settings.federation.columns[name]
        # A file's secret and ledger belong to one party. Here ledgers end with the run.
        private = settings.privacy.is_private
        privacy = {"secret_file": self._secret(name) if private else None, "ledger": None, "ledger_file": None}
        changed: dict[str, Any] = {
            "role": RoleSection(kind=PARTY),
            "party": PartySection(name=name),
            "samples": EntitySamplesSection(topic=f"samples-{name}", format="msgpack", features="x", dimension=columns),
            "labels": EntityLabelsSection(topic=LABELS, format="msgpack", label="y"),
            "bounds": bounds_of(settings, name),
            "privacy": settings.privacy.model_copy(update=privacy),
        }
        return settings.model_copy(update=changed)

    def _secret(self, name: str) -> str:
        path = Path(self._folder.name) / f"{name}.secret"
        path.touch(mode=0o600)
        path.write_bytes(os.urandom(SECRET_BYTES))
        return str(path)

    def _start(self, settings: DPFrankWolfeSettings) -> Worker:
        topics = find_kind(settings.role.kind).topics(settings)
        known = self.bus.describe([topic.name for topic in topics])
        self.bus.create([replace(topic, partitions=1) for topic in topics if topic.name not in known])
        worker = build_worker(settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None)
        worker.step(0.0)
        return worker

    def _write(self, inputs: Sequence[NDArray[np.float64]], labels: NDArray[np.float64]) -> None:
        encode = msgspec.msgpack.Encoder().encode
        for name, own in zip(self.settings.federation.parties, inputs, strict=True):
            rows = ((name_of(entity).encode(), encode({"x": row.tolist()})) for entity, row in enumerate(own))
            self.bus.write([Outgoing(f"samples-{name}", key, value) for key, value in rows])
        told = enumerate(labels.tolist())
        self.bus.write([Outgoing(LABELS, name_of(entity).encode(), encode({"y": label})) for entity, label in told])


def name_of(entity: int) -> str:
    """An entity's name. Names sort in the order of the entities' numbers."""
    return f"{entity:09d}"


def bounds_of(settings: DPFrankWolfeSettings, party: str) -> Any:
    """``[bounds]`` of a party. The file has one number, or one for each column of all parties."""
    columns, bounds = settings.federation.columns, settings.bounds
    before = settings.federation.parties[: settings.federation.parties.index(party)]
    start = sum(columns[name] for name in before)
    given = {key: getattr(bounds, key) for key in ("centre", "bound")}
    own = {key: value[start : start + columns[party]] for key, value in given.items() if isinstance(value, list)}
    return bounds.model_copy(update=own)

