"""A quasi-Newton federation under faults, by seed: its data and its processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamfl.member import Member
from streamfl.quasi_newton.config import COORDINATOR, GUEST, HOST, QuasiNewtonSettings
from streamfl.quasi_newton.lab import made_up_secrets
from streamfl.quasi_newton.lab.said import Said, messages_of
from streamfl.quasi_newton.messages import Step, read_content
from streamfl.quasi_newton.party import PartyTask
from streamfl.role import TopicSpec
from streamfl.runtime.bus import Bus
from streamfl.runtime.worker import Worker
from streamfl.seeding import rng_for
from streamfl.settings import RoleSettings
from streamfl.simulation.faults.chances import Rates, drawn_by, drawn_rates
from streamfl.simulation.faults.federation import Reading, topics_of
from streamfl.simulation.faults.said import require
from streamfl.simulation.faults.staying import Staying, with_a_process_left

__all__ = ["LABELS", "LATE", "NAME", "STRANGER", "C", "G", "QuasiNewtonScenario", "samples_of", "scenario"]

NAME, LABELS = "sim", "labels"
# The guest and the coordinator.
G, C = "g", "c"
STRANGER, LATE = "stranger", "late"
# Longer than any run.
FOR_EVER = 1e6
# The guest asks about entities once after each start: to go on asking is never to be done.
SELDOM = 1_000.0
LAST_ENTITIES = 3
# A batch has at least so many times as many entities as a party has columns.
ENTITIES_A_COLUMN = 20
METHODS = ("standardise", "clip", "rank", "signed-log", "none")


@dataclass(frozen=True)
class QuasiNewtonScenario:
    """A federation that learns under faults.

    sections: of every member's settings. columns: how many each party has. methods: by party, what it does to them. hosts: their
    names. encrypted: under Paillier. settled: every party waits for all that it will ever know, so that the rows are known.
    waits: by party, how many entities it waits for. known: by party and entity, its last columns. labels: by entity, the last.
    fails: why the training comes to nothing, in the operator's words; empty: it does not.
    strangers: by topic, records that somebody else has written.
    part_bytes: of a message that go into one record; 0: the usual. staying: the fault that stays, if any.
    absent: the member that may say no more.
    said: what roles said, whether it was committed or not.
    """

    seed: int
    sections: Mapping[str, Mapping[str, Any]]
    workers: Mapping[str, int]
    columns: Mapping[str, int]
    methods: Mapping[str, str]
    hosts: Sequence[str]
    encrypted: bool
    settled: bool
    waits: Mapping[str, int]
    readings: tuple[tuple[Reading, ...], ...]
    last: tuple[Reading, ...]
    known: Mapping[tuple[str, str], Sequence[float]]
    labels: Mapping[str, int]
    rates: Rates
    faulty_seconds: float
    fails: str
    strangers: Mapping[str, int]
    part_bytes: int
    staying: Staying | None = None
    absent: str | None = None
    said: Said = field(default_factory=Said)

    def __str__(self) -> str:
        learning = self.sections["learning"]
        faults = ", ".join(f"{name} {value:.3g}" for name, value in dataclasses.asdict(self.rates).items() if value)
        return (
            f"quasi-Newton, {'Paillier' if self.encrypted else 'plain'}{', settled' if self.settled else ''}, {len(self.hosts)} "
            f"hosts, columns {dict(self.columns)}, {', '.join(self.methods.values())}, {learning['optimiser']}, batches of "
            f"{learning['batch']}, memory {learning['memory']}, a pair each {learning['curvature_every']}, at most "
            f"{learning['epochs']} epochs, gradients {'masked' if self.masked else 'not masked'}, {len(self.known)} samples, "
            f"{len(self.labels)} labels, {sum(self.strangers.values())} records of strangers, parts of {self.part_bytes}, "
            f"{'scored, ' if self.scores else ''}"
            f"{dict(self.workers)} processes{f', fails: {self.fails}' if self.fails else ''}; {faults}"
            f"{f'; {self.staying}' if self.staying is not None else ''}"
        )

    @property
    def parties(self) -> list[str]:
        """All of them, the guest first."""
        return [G, *self.hosts]

    @property
    def masked(self) -> bool:
        return bool(self.sections["encryption"]["mask_gradients"])

    @property
    def guest(self) -> QuasiNewtonSettings:
        return self.of(G)

    def of(self, member: str) -> QuasiNewtonSettings:
        """The settings of a member."""
        kind = {G: GUEST, C: COORDINATOR}.get(member, HOST)
        encryption = dict(self.sections["encryption"])
        content: dict[str, Any] = {**self.sections, "role": {"kind": kind}, "encryption": encryption}
        if member == C:
            if self.encrypted:
                encryption["key_file"] = made_up_secrets.key_path()
            del encryption["mask_gradients"]
            return QuasiNewtonSettings.model_validate(content)
        encryption["secret_file"] = made_up_secrets.path(member)
        links = {host: made_up_secrets.path("link", host) for host in self.hosts}
        encryption["link_secret_file"] = links if member == G else links[member]
        alignment = {**self.sections["alignment"], "entities": self.waits[member]}
        content |= {
            "party": {"name": member},
            "samples": {
                "topic": samples_of(member),
                "format": "msgpack",
                "features": "x",
                "dimension": self.columns[member],
            },
            "alignment": alignment,
            "preprocessing": {"method": self.methods[member]},
        }
        if member == G:
            content["labels"] = {"topic": LABELS, "format": "msgpack", "label": "y"}
        return QuasiNewtonSettings.model_validate(content)

    @property
    def members(self) -> Mapping[str, tuple[int, RoleSettings]]:
        return {name: (count, self.of(name)) for name, count in self.workers.items()}

    @property
    def repeatable(self) -> Collection[str]:
        kinds = [f"{party}.{kind}" for party in self.parties for kind in ("uploads", "decisions")]
        return {f"{NAME}.{one}" for one in (*kinds, *self.linked)}

    @property
    def linked(self) -> list[str]:
        """What guest and hosts say to one another."""
        kinds = ("outputs", "residuals", *(("questions", "answers") if self.scores else ()))
        return [f"{host}.{kind}" for host in self.hosts for kind in kinds]

    @property
    def scores(self) -> bool:
        """Whether entities are scored with the model."""
        return bool(self.sections["scoring"]["enabled"])

    @property
    def topics(self) -> Sequence[TopicSpec]:
        return topics_of((settings for _, settings in self.members.values()), 1)

    @property
    def tasks(self) -> int:
        return len(with_a_process_left(self.workers, self.staying))

    def prepare(self, worker: Worker) -> None:
        """Nothing is taken from chance: secrets are made up."""

    def check_bounds(self, worker: Worker) -> None:
        role = worker.role
        assert isinstance(role, Member)
        if role.trouble is not None:
            self.said.troubles.add(role.trouble)
        for task in role._tasks.values():
            if not isinstance(task, PartyTask):
                continue
            own, limit = task.settings.own, task.settings.most
            require(len(task.table) <= limit, f"{own}: {len(task.table)} entities are kept, {limit} may be")
            memory = task.settings.learning.memory
            if task.iterates.is_ready:
                pairs = task.iterates.own.pair_count
                require(pairs <= memory, f"{own}: {pairs} pairs are kept, {memory} may be")

    def standing(self, bus: Bus, last: bool) -> str:
        if self.absent is not None or (self.staying is not None and self.staying.places):
            return ""
        missing = [party for party in self.parties if not self._is_over(bus, party)]
        return f"training is not over at {missing}" if missing else ""

    def _is_over(self, bus: Bus, party: str) -> bool:
        """Whether the coordinator told a party that it was over, or that another could not go on; or heard that it could not."""
        told = messages_of(bus, f"{NAME}.{party}.decisions")
        if any(one.kind == "failed" or (one.kind == "step" and read_content(one.content, Step).over) for one in reversed(told)):
            return True
        return any(one.kind == "failed" for one in messages_of(bus, f"{NAME}.{party}.uploads"))


def samples_of(party: str) -> str:
    """The topic of a party's columns."""
    return f"samples-{party}"


def scenario(seed: int) -> QuasiNewtonScenario:
    """The scenario of this seed."""
    draws = rng_for(seed, "simulation", "quasi-Newton")
    chance, between = drawn_by(draws)

    encrypted = chance(0.2)
    hosts = [f"h{number + 1}" for number in range(between(1, 2 if encrypted else 3))]
    parties = [G, *hosts]
    columns = {party: between(1, 2) for party in parties}
    batch = ENTITIES_A_COLUMN * max(columns[G] + 1, *columns.values()) + between(0, 3)
    settled = chance(0.7)
    failing = str(draws.choice(["few", "rare", "bounds"])) if chance(0.12) else ""
    methods = {party: str(draws.choice(METHODS)) for party in parties}
    if failing == "rare":
        # A bin of so few entities has no column of its own.
        methods[hosts[-1]] = "quantile-bins"
    faulty_seconds = float(between(10, 40))
    sections: dict[str, dict[str, Any]] = {
        "federation": {"name": NAME, "seed": seed, "parties": [str(one) for one in draws.permutation(parties)], "guest": G},
        "bus": {
            "processing_guarantee": "exactly_once",
            "commit_interval_ms": between(0, 100),
            "max_poll_records": between(1, 4) if chance(0.3) else between(5, 100),
        },
        "learning": {
            "optimiser": "sgd" if chance(0.15) else "quasi-newton",
            "batch": batch,
            "memory": between(1, 3),
            "curvature_every": between(1, 3),
            "regularisation": 0.01 if chance(0.5) else 0.0,
            "learning_rate": 0.4,
            "largest_step": 0.5,
            "freeze_below": 0.05 if chance(0.3) else 1e-3,
            "tolerance": 0.01 if chance(0.3) else 1e-5,
            "epochs": between(1, 2) if encrypted else between(1, 4),
            "min_batch": 1,
            "min_support": between(1, 3),
            # Batches are small here: with the usual bound most rows would be too far out.
            "largest_leverage": 0.7 if seed % 3 == 0 else 1.0,
            "output_bound": 0.001 if failing == "bounds" else 64.0,
        },
        "alignment": {
            "entities": batch,
            "settle_seconds": float(draws.uniform(0.1, 2.0)),
            "limit": 400,
            "expiry_seconds": FOR_EVER,
            "held_out": 0.0,
            "method": "keyed-hash" if chance(0.2) else "intersection",
        },
        "scoring": {"enabled": chance(0.5), "interval_seconds": SELDOM},
        "encryption": {"precision": "paillier" if encrypted else "plain", "study": True, "mask_gradients": chance(0.8)},
    }
    if encrypted:
        sections["encryption"] |= {"key_bits": made_up_secrets.KEY_BITS, "key_fingerprint": made_up_secrets.fingerprint()}
    common = between(batch // 2, batch - 1) if failing == "few" else batch * between(1, 1 if encrypted else 3) + between(0, 4)
    data = _data(draws, columns, common, batch, faulty_seconds, settled)
    strangers = {}
    if chance(0.3):
        places = [*(samples_of(party) for party in parties), LABELS, *(f"{NAME}.{party}.decisions" for party in parties)]
        places += [f"{NAME}.{party}.uploads" for party in parties] + [f"{NAME}.{host}.outputs" for host in hosts]
        strangers = {str(topic): between(1, 3) for topic in draws.choice(places, size=2, replace=False)}
        for topic, count in strangers.items():
            for number in range(count):
                content = {"id": f"{STRANGER}-{number}", "x": "none"}
                at = float(draws.uniform(0.0, faulty_seconds))
                data.readings.setdefault(topic, []).append(Reading(topic, f"{STRANGER}-{number}", content, at, False))
    return QuasiNewtonScenario(
        seed=seed,
        sections=sections,
        workers={member: between(1, 2) for member in (*parties, C)},
        columns=columns,
        methods=methods,
        hosts=hosts,
        encrypted=encrypted,
        settled=settled,
        waits={
            party: count if settled else batch + between(0, min(3, count - batch)) for party, count in data.complete.items()
        },
        readings=tuple(tuple(sorted(own, key=lambda one: one.at)) for own in data.readings.values()),
        last=tuple(data.last),
        known=data.known,
        labels=data.labels,
        rates=drawn_rates(draws, seed, True),
        faulty_seconds=faulty_seconds,
        fails={"few": "fill no batch", "rare": "0 columns", "bounds": "beyond the bound"}.get(failing, ""),
        strangers=strangers,
        # Vectors are longer: they travel in parts.
        part_bytes=between(200, 2_000) if chance(0.3) else 0,
    )


@dataclass
class _Data:
    """What is written. complete: by party, entities of which it will know all that it needs."""

    readings: dict[str, list[Reading]] = field(default_factory=dict)
    last: list[Reading] = field(default_factory=list)
    known: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    complete: dict[str, int] = field(default_factory=dict)


def _data(
    draws: np.random.Generator, columns: Mapping[str, int], common: int, batch: int, seconds: float, settled: bool
) -> _Data:
    """Entities that all parties know, and some that only one does; columns and labels that come twice, or anew.

    Where the parties wait for everything, what comes anew does so before the last new entity.
    """
    data = _Data()
    number = 0
    weights = {party: draws.normal(size=count) for party, count in columns.items()}
    names = {party: [f"e{one}" for one in range(common)] for party in columns}
    for party, own in names.items():
        # A party has to know as many as are in a batch, whether others do or not.
        for _ in range(max(0, batch - common) + int(draws.integers(0, 5))):
            own.append(f"{party}-{number}")
            number += 1
    for name in dict.fromkeys(name for own in names.values() for name in own):
        score = 0.0
        for party, own in names.items():
            if name in own:
                data.known[party, name] = np.sinh(draws.normal(size=columns[party])).tolist()
                score += float(np.dot(weights[party], data.known[party, name]))
        if name in names[G]:
            data.labels[name] = int(draws.random() < 1 / (1 + np.exp(-score)))
    written: dict[str, list[tuple[str, dict[str, Any]]]] = {topic: [] for topic in (*map(samples_of, columns), LABELS)}
    for party, own in names.items():
        for name in own:
            written[samples_of(party)].append((name, {"id": name, "x": data.known[party, name]}))
        data.complete[party] = len(own)
    for name, label in data.labels.items():
        written[LABELS].append((name, {"id": name, "y": label}))
    for topic, records in written.items():
        order = [records[int(place)] for place in draws.permutation(len(records))]
        # The guest knows columns of some entities that nobody labels.
        for one in range(int(draws.integers(0, 3)) if topic == samples_of(G) else 0):
            order.insert(one, (f"nobody-{one}", {"id": f"nobody-{one}", "x": [0.5] * columns[G]}))
        for place in draws.integers(0, len(order) - 1, size=int(draws.integers(0, 6))):
            name, content = order[int(place)]
            # Before the last: something else first, where that is allowed, or the same once more.
            earlier = dict(content)
            if settled and draws.random() < 0.6:
                earlier |= {"y": 1 - content["y"]} if topic == LABELS else {"x": [-1.5 * one for one in content["x"]]}
            order.insert(int(draws.integers(0, int(place) + 1)), (name, earlier))
        times = np.sort(draws.uniform(0.0, 0.4 * seconds, size=len(order)) * draws.random())
        data.readings[topic] = [
            Reading(topic, name, content, float(at), True) for (name, content), at in zip(order, times, strict=True)
        ]
    for one in range(LAST_ENTITIES):
        for party, count in columns.items():
            content = {"id": f"{LATE}-{one}", "x": draws.normal(size=count).tolist()}
            data.last.append(Reading(samples_of(party), f"{LATE}-{one}", content, 0.0, True))
        data.last.append(Reading(LABELS, f"{LATE}-{one}", {"id": f"{LATE}-{one}", "y": one % 2}, 0.0, True))
    return data
