"""The scenario of a seed: a small federation, its data, how many processes run it and which faults they
meet."""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from streamfl.contract.seeding import rng_for
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.members import MEMBERS
from streamfl.runtime.bus import Bus
from streamfl.runtime.worker import Worker
from streamfl.simulation.clients import SAMPLES
from streamfl.testing.faults.clients import ClientScenario, identity
from streamfl.testing.faults.fault_rates import drawn_by, drawn_rates
from streamfl.testing.faults.federation import Reading
from streamfl.testing.faults.observed_messages import require

__all__ = ["Scenario", "scenario"]

LABELS = "labels"
# Seconds. A round with this timeout waits for every client.
FOR_EVER = 1e6
# Samples of each client after the final restart.
LAST_SAMPLES = 2
# Nothing is forgotten within a run.
LATE_LABELS = {
    "topic": LABELS,
    "format": "msgpack",
    "sample_id": "id",
    "label": "y",
    "expiry_seconds": 10_000.0,
}


@dataclass(frozen=True, kw_only=True)
class Scenario(ClientScenario):
    """A federation under faults.

    exact: by a theorem, its model, its clients' state and its predictions equal those of a run without
    faults, bit for bit.
    waiting_limit: samples of a partition that may wait.
    """

    settings: PofmklSettings
    exact: bool
    waiting_limit: int

    @property
    def clients(self) -> int:
        return self.settings.federation.clients

    @property
    def patient(self) -> bool:
        """Whether no client goes on alone because the server is silent, except before the first version."""
        return (
            self.settings.learning.staleness != "async"
            or self.settings.learning.catch_up_patience_seconds == FOR_EVER
        )

    @property
    def late_labels(self) -> bool:
        """Whether labels come on a topic of their own."""
        return self.settings.labels is not None

    @property
    def calm(self) -> Scenario:
        """The same federation and data: one process of each kind, one partition, and no fault."""
        return dataclasses.replace(super().calm, partitions=1)

    @property
    def servers_are_gone(self) -> bool:
        """Whether the permanent fault stops all servers."""
        servers = {f"server-{number}" for number in range(self.workers["server"])}
        return self.permanent_fault is not None and servers <= self.permanent_fault.processes.keys()

    def within_reach(self, bus: Bus) -> Scenario:
        """The scenario without samples that could not be read: those of clients in unreadable partitions
        without a prediction."""
        unreadable = (
            set()
            if self.permanent_fault is None
            else {partition for _, partition in self.permanent_fault.places}
        )
        if not unreadable:
            return self
        hidden = {name for name in self.samples if zlib.crc32(name.encode()) % self.partitions in unreadable}
        predicted = {identity(record) for record in bus.read(self.predictions)}

        def readable(readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
            return tuple(
                one
                for one in readings
                if one.client not in hidden or (one.client, one.content["id"]) in predicted
            )

        return dataclasses.replace(
            self, readings=tuple(readable(own) for own in self.readings), last=readable(self.last)
        )

    @property
    def repeatable(self) -> Collection[str]:
        return {f"{self.settings.federation.name}.updates"}

    def prepare(self, worker: Worker) -> None:
        if isinstance(worker.role, PofmklClient):
            worker.role.waiting_limit = self.waiting_limit
            if self.exact:
                learner = cast(Any, worker.role.learner)
                learner.features = _RowByRow(learner.features)

    def check_bounds(self, worker: Worker) -> None:
        """Queues and open rounds are within their limits."""
        figures = {figure.name: figure.value for figure in worker.measure()}
        if isinstance(worker.role, PofmklClient):
            # Counted here, because a wrong metric would check nothing.
            waiting: Counter[int] = Counter()
            for (partition, _), client in worker.role.snapshot().items():
                waiting[partition] += client.waiting
            room = self.waiting_limit + self.settings.bus.max_poll_records
            for partition, count in waiting.items():
                require(
                    count <= room,
                    f"{count} samples or labels of partition {partition} wait, at most {room} may",
                )
        else:
            most, waits = figures["partitions"] * self.clients, figures["round_waiting"]
            require(waits <= most, f"{waits:g} updates wait for a round, at most {most:g} may")
        require(
            figures["clients"] <= self.clients,
            f"{figures['clients']:g} clients of {self.clients} are remembered",
        )

    def standing(self, bus: Bus, last: bool) -> str:
        return super(Scenario, self.within_reach(bus)).standing(bus, last)

    def __str__(self) -> str:
        learning, uplink = self.settings.learning, self.settings.uplink
        sent = (
            f"{uplink.budget_bytes_per_second:g} B/s"
            if uplink.budget_bytes_per_second
            else f"M = {uplink.kernels_per_upload}"
        )
        return (
            f"preset {learning.preset}, {learning.staleness}, {self.settings.bus.processing_guarantee}, "
            f"{self.clients} clients, {self.settings.kernel_count} kernels in "
            f"{self.settings.federation.shards} shards, {sent}, {self.partitions} partitions, "
            f"{self.workers['client']} client and {self.workers['server']} server processes, "
            f"{self.samples_written[1]} "
            f"samples{', labels on a topic of their own' if self.late_labels else ''}, round timeout "
            f"{learning.round_timeout_seconds:g} s, "
            f"{'compared bit by bit' if self.exact else 'counted and replayed'}; {self.faults}"
        )


def scenario(seed: int) -> Scenario:
    """The scenario of this seed."""
    draws = rng_for(seed, "simulation", "scenario")
    chance, between = drawn_by(draws)

    paper, lockstep = chance(0.5), chance(0.5)
    staleness = "lockstep" if lockstep else ("bounded" if chance(0.5) else "async")
    exact = lockstep and chance(0.7)
    exactly_once = exact or chance(0.75)
    late_labels = not exact and chance(0.4)
    clients, dimension = between(2, 6), between(2, 3)
    bandwidths = [0.5, 1.0, 2.0, 4.0][: between(2, 4) if paper else 2]
    kernels = len(bandwidths) if paper else 2 * len(bandwidths)
    learning: dict[str, Any] = {
        "preset": "paper" if paper else "default",
        "staleness": staleness,
        "features_per_kernel": 4,
        "precision": "float64" if chance(0.3) else "float32",
        "round_timeout_seconds": FOR_EVER if exact else 5.0,
        "upload_interval_ms": between(50, 1000),
    }
    if paper:
        learning["learning_rate"] = 0.3
    elif chance(0.3):
        learning["server_step"] = "adagrad" if chance(0.5) else "gradient"
    if staleness == "bounded":
        learning["max_staleness"] = between(1, 4)
    if staleness == "async":
        # Small enough that some clients are behind. A client that loses patience cannot be replayed from the
        # versions alone.
        learning |= {
            "catch_up_samples": seed % 4,
            "catch_up_patience_seconds": FOR_EVER if seed % 3 and exactly_once else 2.0,
        }
    uplink: dict[str, Any] = {"kernels_per_upload": between(1, kernels)}
    if not exact and chance(0.5):
        uplink = {"budget_bytes_per_second": float(between(150, 800))}
    settings = PofmklSettings(
        federation={
            "name": "sim",
            "seed": seed,
            "clients": clients,
            "shards": between(1, min(3, kernels)),
            "features": dimension,
        },  # type: ignore[arg-type]
        role={"kind": "pofmkl-client"},  # type: ignore[arg-type]
        bus={  # type: ignore[arg-type]
            "processing_guarantee": "exactly_once" if exactly_once else "at_least_once",
            "commit_interval_ms": between(0, 100),
            "max_poll_records": between(1, 30),
        },
        samples={  # type: ignore[arg-type]
            "topic": SAMPLES,
            "format": "msgpack",
            "sample_id": "id",
            "features": "x",
            "dimension": dimension,
            "label": None if late_labels else "y",
        },
        labels=LATE_LABELS if late_labels else None,  # type: ignore[arg-type]
        learning=learning,  # type: ignore[arg-type]
        kernels={"bandwidths": bandwidths}
        if paper
        else {"bandwidths": bandwidths, "views": ["standardised", "centred-lags"]},  # type: ignore[arg-type]
        uplink=uplink,  # type: ignore[arg-type]
        drift={} if paper or chance(0.5) else {"detector": "none"},  # type: ignore[arg-type]
    )
    faulty_seconds = float(between(5, 30))
    unlabelled = 0.25 if chance(0.4) else 0.0
    most = between(6, 14)
    by_client: list[list[Reading]] = []
    last: list[Reading] = []
    for number in range(clients):
        labelled = most if exact else between(2, most)
        readings = _readings(draws, f"client-{number}", dimension, labelled, unlabelled, faulty_seconds)
        before, after = readings[:-LAST_SAMPLES], readings[-LAST_SAMPLES:]
        by_client.append(_with_late_labels(draws, before) if late_labels else before)
        last += _with_late_labels(draws, after) if late_labels else after
    producers, client_workers, server_workers = between(1, 3), between(1, 3), between(1, 2)
    return Scenario(
        seed=seed,
        members_of=MEMBERS,
        settings=settings,
        exact=exact,
        workers={"server": server_workers, "client": client_workers},
        partitions=between(1, 4),
        # In lockstep without timeouts a partition's clients wait for each other: all samples that are ahead
        # have to fit.
        waiting_limit=10_000 if exact else between(1, 6),
        readings=tuple(
            tuple(
                sorted(
                    (one for readings in by_client[producer::producers] for one in readings),
                    key=lambda one: one.at,
                )
            )
            for producer in range(producers)
        ),
        last=tuple(last),
        rates=drawn_rates(draws, seed, exactly_once),
        faulty_seconds=faulty_seconds,
    )


def _readings(
    draws: np.random.Generator, client: str, dimension: int, labelled: int, unlabelled: float, seconds: float
) -> list[Reading]:
    """A client's samples, spread over the time of faults. The last ones have a label and come after it."""
    contents: list[dict[str, Any]] = []
    left = labelled + LAST_SAMPLES
    offset = draws.uniform(0.0, 0.3)
    while left:
        inputs = draws.normal(size=dimension)
        label = offset + 0.3 + 0.3 * float(np.tanh(inputs.sum())) + 0.05 * float(draws.normal())
        without = left > LAST_SAMPLES and draws.random() < unlabelled
        contents.append(
            {"id": f"{client}/{len(contents)}", "x": inputs.tolist(), "y": None if without else label}
        )
        left -= not without
    # Some clients' samples trickle in, others' are there at once.
    times = np.sort(draws.uniform(0.0, seconds * draws.random() ** 2, size=len(contents)))
    return [
        Reading(SAMPLES, client, one, float(at), one["y"] is not None)
        for one, at in zip(contents, times, strict=True)
    ]


def _with_late_labels(draws: np.random.Generator, samples: list[Reading]) -> list[Reading]:
    """The labels as records of their own: mostly after their samples, some before, some twice."""
    result = []
    for sample in samples:
        label = sample.content["y"]
        result.append(dataclasses.replace(sample, content={**sample.content, "y": None}))
        # A second label has another value, to show which of them was learnt.
        for said in () if label is None else (label, 1.0 - label)[: 1 + int(draws.random() < 0.2)]:
            at = max(0.0, sample.at + float(draws.exponential(2.0)) - 1.0)
            result.append(
                Reading(LABELS, sample.client, {"id": sample.content["id"], "y": said}, at, labelled=True)
            )
    return result


class _RowByRow:
    """A learner's features, computed one sample at a time: BLAS rounds a row differently in products of
    different heights."""

    def __init__(self, features: Any) -> None:
        self._features = features

    def __getattr__(self, name: str) -> Any:
        return getattr(self._features, name)

    def predict(self, inputs: Any, parameters: Any) -> Any:
        count = len(inputs[0]) if isinstance(inputs, list) else len(inputs)

        def row(number: int) -> Any:
            one = slice(number, number + 1)
            return [view[one] for view in inputs] if isinstance(inputs, list) else inputs[one]

        return np.concatenate([self._features.predict(row(number), parameters) for number in range(count)])
