"""Roles with a learner, a step or a fingerprint of a test's own, and for the rest with settings that a user
could write; and workers of such roles on a memory bus."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
from clock import Clock

from streamfl.pofmkl.client.given import ClientGiven
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.learning.server_steps import AveragedStep, ServerStep
from streamfl.pofmkl.server.given import ServerGiven
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

__all__ = ["MemoryFederation", "new_client", "new_server", "pace", "room", "staleness"]


def staleness(lockstep: bool) -> str:
    """learning.staleness"""
    return "lockstep" if lockstep else "async"


def pace(mode: str) -> dict[str, Any]:
    """Keys of [learning] for a mode of the laws: how far a client may run ahead of the model."""
    if mode.startswith("bounded"):
        return {"staleness": "bounded", "max_staleness": 3}
    return {"staleness": staleness(mode.startswith("lockstep"))}


def room(mode: str) -> dict[str, Any]:
    """Keys of [uplink] for a mode of the laws: two kernels in an upload, or 400 bytes a second."""
    return {"budget_bytes_per_second": 400.0} if mode.endswith("budget") else {"kernels_per_upload": 2}


@cache
def _validated(content: bytes) -> PofmklSettings:
    """The laws make a role thousands of times, and most of that time would be the validation of its
    settings."""
    return PofmklSettings.model_validate(msgspec.json.decode(content))


def new_client(
    learner: Learner,
    *,
    clients: int = 10,
    federation: dict[str, Any] | None = None,
    learning: dict[str, Any] | None = None,
    uplink: dict[str, Any] | None = None,
    labels: dict[str, Any] | None = None,
    fingerprint: int = 0,
    **given: Any,
) -> PofmklClient:
    """A role of clients without an open partition. It is asynchronous, and no client waits because of a
    backlog.

    federation, learning, uplink: other keys of these sections.
    labels: keys of [labels]; None: labels come with the samples. given: other fields of ``ClientGiven``.
    """
    samples: dict[str, Any] = {
        "topic": "samples",
        "features": "x",
        "dimension": learner.dimension,
        "sample_id": "id",
    }
    content = {
        "federation": {"name": "plant", "seed": 1, "clients": clients, **(federation or {})},
        "role": {"kind": "pofmkl-client"},
        "samples": samples if labels is not None else {**samples, "label": "y"},
        **(
            {}
            if labels is None
            else {"labels": {"topic": "labels", "sample_id": "id", "label": "y", **labels}}
        ),
        # The preset that sends as many kernels as [uplink] says. The learner may be another's.
        "learning": {"preset": "paper", "staleness": "async", "catch_up_samples": 0, **(learning or {})},
        "uplink": uplink or {},
    }
    settings = _validated(msgspec.json.encode(content))
    own = {"encode": msgspec.json.encode, **given}
    return PofmklClient(settings, ClientGiven(learner=learner, fingerprint=fingerprint, **own))


def new_server(
    *,
    clients: int,
    kernels: int,
    features: int,
    dimension: int | None,
    step: Callable[[int], ServerStep] | None = None,
    fingerprints: tuple[int, ...] = (0,),
    federation: dict[str, Any] | None = None,
    learning: dict[str, Any] | None = None,
) -> PofmklServer:
    """A server without an open partition.

    kernels, features: N and D.
    dimension: of the samples.
    step: left out, that of equation (10).
    federation, learning: other keys of these sections.
    """
    content = {
        "federation": {"name": "plant", "clients": clients, "features": dimension, **(federation or {})},
        "role": {"kind": "pofmkl-server"},
        "learning": {"features_per_kernel": features, **(learning or {})},
        "kernels": {"views": ["centred"], "bandwidths": [1.0 + number for number in range(kernels)]},
    }
    settings = _validated(msgspec.json.encode(content))
    return PofmklServer(
        settings, ServerGiven(step=step or (lambda kernels: AveragedStep(clients)), fingerprints=fingerprints)
    )


class MemoryFederation:
    """Workers of the federation "f" on a memory bus, whose clock is set by hand.

    content: the sections of a client's settings, and of a server's.
    partitions: of the samples.
    """

    def __init__(self, content: Mapping[str, Any], partitions: int = 2) -> None:
        self.content = content
        self.clock = Clock(1000.0)
        self.bus = MemoryBus(clock=self.clock)
        self.workers: list[Worker] = []
        for kind in ("pofmkl-client", "pofmkl-server"):
            specs = find_kind(kind).topics(self.settings(kind))
            self.bus.create([replace(spec, partitions=spec.partitions or partitions) for spec in specs])

    def settings(self, kind: str) -> PofmklSettings:
        return PofmklSettings.model_validate({**self.content, "role": {"kind": kind}})

    def start(self, kind: str = "pofmkl-client") -> Worker:
        self.workers.append(build_worker(self.settings(kind), self.bus, clock=self.clock))
        return self.workers[-1]

    def settle(self) -> None:
        """Go round until nobody has anything to do."""
        while sum(worker.step(0.0) for worker in self.workers):
            pass

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.workers.clear()

    def write(self, topic: str, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """rows: keys and contents."""
        self.bus.write([Outgoing(topic, key.encode(), json.dumps(row).encode()) for key, row in rows])

    def predictions(self) -> list[dict[str, Any]]:
        return [json.loads(record.value or b"") for record in self.bus.read("f.predictions")]
