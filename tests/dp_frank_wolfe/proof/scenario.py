"""A federation of differentially private Frank-Wolfe under faults, by seed: its data and its processes."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from dp_frank_wolfe.proof.observed_messages import Observed, messages_of, names_by_window

from streamfl.contract.seeding import rng_for
from streamfl.dp_frank_wolfe.config import ColumnFederation, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.messages import Entities, read_content
from streamfl.dp_frank_wolfe.tools.members import BETWEEN, members
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.runtime.bus import Bus
from streamfl.runtime.worker import Worker
from streamfl.simulation.vertical.members import HEAD, LABELS, samples_topic
from streamfl.testing.faults.fault_rates import drawn_rates
from streamfl.testing.faults.federation import Reading
from streamfl.testing.faults.scenario import MembersScenario

__all__ = ["FOR_EVER", "LEDGER", "NAME", "STRANGER", "DPFrankWolfeScenario", "S", "scenario"]

NAME, LEDGER = "sim", "patients"
# The server.
S = "s"
STRANGER = "stranger"
FOR_EVER = 1e6
# Values that cannot be read as numbers: such a row is zeros.
UNREADABLE: tuple[Any, ...] = ("none", None, [], {}, [1.0] * 20)


@dataclass(frozen=True)
class DPFrankWolfeScenario(MembersScenario):
    """A federation that learns under faults.

    sections: of every member's settings.
    columns: how many each party has.
    patient: the server never goes on without a party.
    known: by party and entity, all contents of its records of columns, in the order of writing.
    labels: likewise, by entity.
    strangers: by topic, number of records that strangers wrote.
    fragment_bytes: of a message in one record; 0: the usual.
    absent: the party, or the server, that may send no more.
    folder: where the run keeps secrets and ledgers.
    observed: what roles sent, committed or not.
    _settings: of each member, once made, because checks ask for them at every prediction.
    """

    sections: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, int]
    patient: bool
    known: Mapping[tuple[str, str], Sequence[Any]]
    labels: Mapping[str, Sequence[Any]]
    strangers: Mapping[str, int]
    fragment_bytes: int
    absent: str | None = None
    folder: Path = Path()
    observed: Observed = field(default_factory=Observed)
    _settings: dict[str, DPFrankWolfeSettings] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __str__(self) -> str:
        learning, privacy = self.sections["learning"], self.sections["privacy"]
        return (
            f"DP Frank-Wolfe, {learning['estimator']}, epsilon "
            f"{privacy['epsilon']}{' (test noise)' if privacy['insecure_test_noise'] else ''}, columns "
            f"{dict(self.columns)}, windows of {self.rows}, {self.sections['window']['fits']} fits of an "
            f"entity, {learning['iterations']} iterations, {learning['sampling']} of {learning['blocks']} "
            f"blocks, {learning['sketch']}, "
            f"{f'until {tolerance:.2g}, ' if (tolerance := learning.get('tolerance')) else ''}serving "
            f"{dict(self.sections['serving'])}, {len(self.known)} samples, {len(self.labels)} labels, "
            f"{sum(self.strangers.values())} records of strangers, parts of {self.fragment_bytes}, "
            f"{'patient, ' if self.patient else ''}{dict(self.workers)} processes; {self.faults}"
        )

    @property
    def parties(self) -> list[str]:
        return list(self.columns)

    @property
    def rows(self) -> int:
        return int(self.sections["window"]["rows"])

    def of(self, member: str) -> DPFrankWolfeSettings:
        if member not in self._settings:
            self._settings[member] = self._make(member)
        return self._settings[member]

    def _make(self, member: str) -> DPFrankWolfeSettings:
        own = members(ColumnFederation.model_validate(self.sections["federation"]))[
            HEAD if member == S else member
        ]
        content: dict[str, Any] = {**self.sections, **own}
        if member != S:
            content["privacy"] = {
                **self.sections["privacy"],
                "ledger": f"{LEDGER}-{member}",
                "ledger_file": str(self.folder / f"{member}.ledger"),
                "secret_file": str(self.folder / f"{member}.secret"),
            }
        return DPFrankWolfeSettings.model_validate(content)

    def secret(self, party: str) -> bytes:
        """The secret that a party's noise is drawn from."""
        return hashlib.sha256(f"{self.seed} {party}".encode()).digest()

    @property
    def repeatable(self) -> Collection[str]:
        return {f"{NAME}.{party}.{kind}" for party in self.parties for kind in BETWEEN}

    def check_bounds(self, worker: Worker) -> None:
        role = worker.role
        assert isinstance(role, PartitionedRole)
        if role.trouble is not None:
            self.observed.troubles.add(role.trouble)

    def standing(self, bus: Bus, last: bool) -> str:
        if self.absent in (S, *(self.parties if self.patient else ())):
            return ""
        if self.permanent_fault is not None and self.permanent_fault.places:
            return ""
        heard = {
            party: messages_of(bus, f"{NAME}.{party}.asks") for party in self.parties if party != self.absent
        }
        begun = {party: {one.window for one in own if one.kind == "manifest"} for party, own in heard.items()}
        ended = {party: {one.window for one in own if one.kind == "model"} for party, own in heard.items()}
        open_ones = {
            party: sorted(begun[party] - ended[party]) for party in heard if begun[party] - ended[party]
        }
        if open_ones:
            return f"windows without a model: {open_ones}"
        if self.absent is not None:
            # The absent party announces nothing more, so no window begins.
            return ""
        left = self._left(bus)
        return f"{left} entities are announced by all, and in no window" if left >= self.rows else ""

    def _left(self, bus: Bus) -> int:
        """How many entities are announced by all parties and in no window."""
        told: dict[str, Counter[str]] = {}
        for party in self.parties:
            found = messages_of(bus, f"{NAME}.{party}.releases")
            names = (
                name
                for one in found
                if one.kind == "entities"
                for name in read_content(one.content, Entities).names
            )
            told[party] = Counter(set(names))
        asks, releases = (
            messages_of(bus, f"{NAME}.{self.parties[0]}.{kind}") for kind in ("asks", "releases")
        )
        used = {name for names in names_by_window(asks, releases, self.rows).values() for name in names}
        return len(set.intersection(*(set(own) for own in told.values())) - used)


def scenario(seed: int) -> DPFrankWolfeScenario:
    draws = rng_for(seed, "simulation", "DP Frank-Wolfe")
    # Drawn from a generator of their own, so that older seeds still give the same scenario.
    more = rng_for(seed, "simulation", "DP Frank-Wolfe, serving and dropouts")

    def chance(probability: float) -> bool:
        return bool(draws.random() < probability)

    def between(low: int, high: int) -> int:
        return int(draws.integers(low, high + 1))

    parties = [f"p{number + 1}" for number in range(between(1, 3))]
    columns = {party: between(2, 5) for party in parties}
    rows = between(12, 24)
    estimator = str(draws.choice(["frank-wolfe", "frank-wolfe", "frank-wolfe", "marginal", "two-round"]))
    sampling = str(draws.choice(["full", "full", "uniform", "nice", "distributed", "importance"]))
    blocks = between(1, 2)
    faulty_seconds = float(between(10, 40))
    patient = chance(0.7) if estimator == "frank-wolfe" else bool(more.random() < 0.4)
    epsilon = math.inf if chance(0.3) else float(draws.choice([1.0, 4.0, 16.0]))
    probabilities = draws.dirichlet(np.full(blocks * len(parties), 4.0)).tolist()
    sections: dict[str, dict[str, Any]] = {
        "federation": {"name": NAME, "seed": seed, "parties": parties, "columns": columns},
        "bus": {
            "processing_guarantee": "exactly_once",
            "commit_interval_ms": between(0, 100),
            "max_poll_records": between(1, 4) if chance(0.3) else between(5, 100),
        },
        "window": {
            "rows": rows,
            "fits": 2 if chance(0.3) else 1,
            "limit": 400,
            "patience_seconds": FOR_EVER
            if patient
            else (
                float(draws.uniform(1.0, 8.0))
                if estimator == "frank-wolfe"
                else float(more.uniform(0.2, 2.0))
            ),
        },
        "bounds": {"bound": 2.0, "label_bound": 3.0, "prediction": 1.0},
        "predictions": {"headers": ["traceparent"]},
        "privacy": {"epsilon": epsilon, "delta": 1e-4, "insecure_test_noise": chance(0.3)},
        "learning": {
            "estimator": estimator,
            "columns": len(parties) * between(1, 3),
            "iterations": between(2, 6),
            "sampling": sampling,
            "blocks": blocks,
            "sampled_blocks": between(1, blocks) if sampling in ("nice", "distributed") else 1,
            "sketch": "identity" if chance(0.3) else "signs",
            "sketch_rows": between(4, 12),
        },
    }
    if sampling == "importance":
        sections["learning"]["probabilities"] = probabilities
    if estimator == "frank-wolfe" and chance(0.2):
        sections["learning"]["candidates"] = 2
    if estimator == "frank-wolfe" and math.isinf(epsilon) and more.random() < 0.6:
        sections["learning"]["tolerance"] = float(10.0 ** more.uniform(-2.5, -0.5))
    sections["serving"] = {
        "mode": str(more.choice(["off", "exact", "private", "private"])),
        "share": float(more.choice([0.2, 0.5])),
        "predictions": int(more.integers(1, 4)),
    }
    windows = between(1, 2)
    data = _data(draws, columns, windows * rows + between(0, rows - 1), rows, faulty_seconds)
    if sections["serving"]["mode"] != "off":
        _show(more, data, columns, faulty_seconds)
    strangers = {}
    if chance(0.3):
        places = [f"{NAME}.{party}.{kind}" for party in parties for kind in ("asks", "releases")]
        strangers = {str(topic): between(1, 3) for topic in draws.choice(places, size=2, replace=False)}
        for topic, count in strangers.items():
            for number in range(count):
                content = {"id": f"{STRANGER}-{number}", "x": "none"}
                at = float(draws.uniform(0.0, faulty_seconds))
                data.readings.setdefault(topic, []).append(
                    Reading(topic, f"{STRANGER}-{number}", content, at, False)
                )
    return DPFrankWolfeScenario(
        seed=seed,
        sections=sections,
        workers={member: between(1, 2) for member in (*parties, S)},
        columns=columns,
        patient=patient,
        readings=tuple(tuple(sorted(own, key=lambda one: one.at)) for own in data.readings.values()),
        last=tuple(data.last),
        known=data.known,
        labels=data.labels,
        rates=drawn_rates(draws, seed, True),
        faulty_seconds=faulty_seconds,
        strangers=strangers,
        fragment_bytes=between(200, 2_000) if chance(0.3) else 0,
    )


@dataclass
class _Data:
    """What users write."""

    readings: dict[str, list[Reading]] = field(default_factory=dict)
    last: list[Reading] = field(default_factory=list)
    known: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    labels: dict[str, list[Any]] = field(default_factory=dict)


def _data(
    draws: np.random.Generator, columns: Mapping[str, int], common: int, rows: int, seconds: float
) -> _Data:
    """Entities known to all parties, and some known to one; records that come twice, or with other values, or
    cannot be read.

    After the final restart as many new entities come as a window has, and records of some entities that are
    in a window already."""
    data = _Data()
    weights = {party: draws.normal(size=count) for party, count in columns.items()}
    everybody = [f"e{one}" for one in range(common)]
    last = [f"late-{one}" for one in range(rows)]
    for name in (*everybody, *last):
        score = 0.0
        for party, count in columns.items():
            own = np.clip(draws.normal(size=count), -4.0, 4.0)
            score += float(weights[party] @ own)
            data.known[party, name] = [_unreadable(draws) if draws.random() < 0.06 else own.tolist()]
        data.labels[name] = [_unreadable(draws) if draws.random() < 0.06 else score + float(draws.normal())]
    for party, count in columns.items():
        for one in range(int(draws.integers(0, 4))):
            data.known[party, f"{party}-{one}"] = [draws.normal(size=count).tolist()]
    # One entity has a label and nothing else.
    data.labels["nobody"] = [0.5]
    topics: dict[str, list[tuple[str, str]]] = {topic: [] for topic in (*map(samples_topic, columns), LABELS)}
    for (party, name), (content,) in data.known.items():
        if name not in last:
            topics[samples_topic(party)].append((name, "x"))
        else:
            data.last.append(Reading(samples_topic(party), name, {"id": name, "x": content}, 0.0, True))
    for name, (content,) in data.labels.items():
        if name not in last:
            topics[LABELS].append((name, "y"))
        else:
            data.last.append(Reading(LABELS, name, {"id": name, "y": content}, 0.0, True))
    for name in everybody[: rows // 2]:
        for topic in topics:
            content, key = _contents(data, topic, name)[0], "y" if topic == LABELS else "x"
            data.last.append(Reading(topic, name, {"id": name, key: content}, 0.0, True))
    for topic, records in topics.items():
        order = [records[int(place)] for place in draws.permutation(len(records))]
        # Some records are written again, with the same content or another.
        written = [(name, key, _contents(data, topic, name)[0]) for name, key in order]
        for place in draws.integers(0, len(order), size=int(draws.integers(0, 6))):
            name, key = order[int(place)]
            contents = _contents(data, topic, name)
            content = contents[0]
            if draws.random() < 0.6:
                content = _another(content)
                contents.append(content)
            written.insert(int(draws.integers(0, len(written) + 1)), (name, key, content))
        times = np.sort(draws.uniform(0.0, 0.4 * seconds, size=len(written)) * draws.random())
        data.readings[topic] = [
            Reading(topic, name, {"id": name, key: content}, float(at), True)
            for (name, key, content), at in zip(written, times, strict=True)
        ]
    return data


def _show(draws: np.random.Generator, data: _Data, columns: Mapping[str, int], seconds: float) -> None:
    """Records to be predicted: of known entities, with known values, and of some without a label."""
    common = [name for name in data.labels if all((party, name) in data.known for party in columns)]
    # With many, some come while two parties have different models.
    few = draws.random() < 0.7
    shown = [f"shown-{one}" for one in range(int(draws.integers(4, 12) if few else draws.integers(20, 40)))]
    for party, count in columns.items():
        topic = samples_topic(party)
        for name in shown:
            contents = [draws.normal(size=count).tolist() for _ in range(int(draws.integers(1, 4)))]
            data.known[party, name] = contents
            data.last.append(Reading(topic, name, {"id": name, "x": contents[-1]}, 0.0, False))
            for content in contents:
                at = float(draws.uniform(0.1, 0.9) ** 1.5 * seconds)
                data.readings[topic].append(Reading(topic, name, {"id": name, "x": content}, at, False))
        for name in draws.choice(common, size=int(draws.integers(0, 10))):
            if not name.startswith("late-"):
                at = float(draws.uniform(0.1, 0.9) ** 1.5 * seconds)
                content = data.known[party, str(name)][0]
                data.readings[topic].append(
                    Reading(topic, str(name), {"id": str(name), "x": content}, at, False)
                )


def _contents(data: _Data, topic: str, name: str) -> list[Any]:
    return data.labels[name] if topic == LABELS else data.known[topic.removeprefix("samples-"), name]


def _unreadable(draws: np.random.Generator) -> Any:
    return UNREADABLE[int(draws.integers(len(UNREADABLE)))]


def _another(content: Any) -> Any:
    """Another content for the same entity."""
    if isinstance(content, float):
        return -content
    return [-1.5 * one for one in content] if content and isinstance(content, list) else "another"
