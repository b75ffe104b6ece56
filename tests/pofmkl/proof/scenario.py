"""The scenario of a seed: a small federation, its data, how many processes run it and which faults they
meet."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamfl.contract.seeding import rng_for
from streamfl.pofmkl.config import PofmklSettings
from streamfl.testing.faults.fault_rates import Rates, drawn_by, drawn_rates
from streamfl.testing.faults.federation import Reading

__all__ = ["Scenario", "scenario"]

SAMPLES, LABELS = "samples", "labels"
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


@dataclass(frozen=True)
class Scenario:
    """A federation under faults.

    exact: by a theorem, its model, its clients' state and its predictions equal those of a run without
    faults, bit for bit. readings: in the order of each client, by the producer that writes them. last: those
    after the final restart. faulty_seconds: faults occur only before this time.
    """

    seed: int
    settings: PofmklSettings
    exact: bool
    client_workers: int
    server_workers: int
    partitions: int
    waiting_limit: int
    readings: tuple[tuple[Reading, ...], ...]
    last: tuple[Reading, ...]
    rates: Rates
    faulty_seconds: float

    @property
    def clients(self) -> int:
        return self.settings.federation.clients

    @property
    def samples(self) -> dict[str, list[Reading]]:
        """Every sample, by client, in order."""
        by_client: dict[str, list[Reading]] = {}
        for reading in (*(one for producer in self.readings for one in producer), *self.last):
            if reading.topic == SAMPLES:
                by_client.setdefault(reading.client, []).append(reading)
        return by_client

    @property
    def samples_written(self) -> tuple[int, int]:
        """Samples written before the final restart, and in all."""
        last = sum(one.topic == SAMPLES for one in self.last)
        altogether = sum(map(len, self.samples.values()))
        return altogether - last, altogether

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
        return dataclasses.replace(
            self,
            client_workers=1,
            server_workers=1,
            partitions=1,
            rates=Rates(),
            faulty_seconds=0.0,
            readings=tuple(
                tuple(dataclasses.replace(one, at=0.0) for one in producer) for producer in self.readings
            ),
        )

    def __str__(self) -> str:
        learning, uplink = self.settings.learning, self.settings.uplink
        sent = (
            f"{uplink.budget_bytes_per_second:g} B/s"
            if uplink.budget_bytes_per_second
            else f"M = {uplink.kernels_per_upload}"
        )
        faults = ", ".join(
            f"{name} {value:.3g}" for name, value in dataclasses.asdict(self.rates).items() if value
        )
        return (
            f"preset {learning.preset}, {learning.staleness}, {self.settings.bus.processing_guarantee}, "
            f"{self.clients} clients, {self.settings.kernel_count} kernels in "
            f"{self.settings.federation.shards} shards, {sent}, {self.partitions} partitions, "
            f"{self.client_workers} client and {self.server_workers} server processes, "
            f"{self.samples_written[1]} "
            f"samples{', labels on a topic of their own' if self.late_labels else ''}, round timeout "
            f"{learning.round_timeout_seconds:g} s, "
            f"{'compared bit by bit' if self.exact else 'counted and replayed'}; {faults}"
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
    producers = between(1, 3)
    return Scenario(
        seed=seed,
        settings=settings,
        exact=exact,
        client_workers=between(1, 3),
        server_workers=between(1, 2),
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
