"""Scenarios of quasi-Newton federations under faults, by seed: data and processes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from quasi_newton.proof import made_up_secrets
from quasi_newton.proof.observed_messages import Observed, messages_of
from quasi_newton.proof.produced_records import LAST_ENTITIES, Again, is_held_out, written

from streamfl.contract.seeding import rng_for
from streamfl.quasi_newton.config import QuasiNewtonFederation, QuasiNewtonSettings
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.messages import StepDecision, read_content
from streamfl.quasi_newton.tools.members import members
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.runtime.bus import Bus
from streamfl.runtime.worker import Worker
from streamfl.simulation.vertical.members import HEAD, LABELS, samples_topic
from streamfl.testing.faults.fault_rates import drawn_by, drawn_rates
from streamfl.testing.faults.federation import Reading
from streamfl.testing.faults.observed_messages import require
from streamfl.testing.faults.scenario import MembersScenario

__all__ = ["NAME", "STRANGER", "C", "G", "QuasiNewtonScenario", "scenario"]

NAME = "sim"
# The guest and the coordinator.
G, C = "g", "c"
STRANGER = "stranger"
FOR_EVER = 1e6
# Seconds between the guest's questions: it asks once after each start, because a guest that goes on asking is
# never done.
SELDOM = 1_000.0
# Fewest entities of a batch for each column of a party.
ENTITIES_A_COLUMN = 20
# Share of the seeds without failure that have another training.
TRAINED_AGAIN = 0.4
# Most columns that "quantile-bins" makes of one.
MOST_BINS = 8
METHODS = ("standardise", "clip", "rank", "signed-log", "none")


@dataclass(frozen=True)
class QuasiNewtonScenario(MembersScenario):
    """A federation that learns under faults.

    sections: of every member's settings.
    columns: how many each party has.
    methods: by party, its preprocessing.
    hosts: their names.
    encrypted: under Paillier.
    settled: every party waits for all entities that it will know of the first wave, so that the rows of the
    first training are known.
    waits: by party, how many entities it waits for.
    known: by party and entity, all columns that ever count, in order.
    labels: by entity, likewise.
    first: entities of the first wave; there is a second one if there is another training.
    fails: part of the text for the operator on why every training fails; empty: the last one does not have
    to.
    strangers: by topic, how many records strangers have written.
    fragment_bytes: bytes of a message in one record; 0: the usual.
    absent: the member that sends nothing after the fault, if any.
    observed: what roles sent, committed or not.
    """

    sections: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, int]
    methods: Mapping[str, str]
    hosts: Sequence[str]
    encrypted: bool
    settled: bool
    waits: Mapping[str, int]
    known: Mapping[tuple[str, str], Sequence[list[float]]]
    labels: Mapping[str, Sequence[int]]
    first: Collection[str]
    fails: str
    strangers: Mapping[str, int]
    fragment_bytes: int
    absent: str | None = None
    observed: Observed = field(default_factory=Observed)

    def __str__(self) -> str:
        learning = self.sections["learning"]
        return (
            "quasi-Newton, "
            f"{'Paillier' if self.encrypted else 'plain'}{', settled' if self.settled else ''}, "
            f"{len(self.hosts)} hosts, columns {dict(self.columns)}, {', '.join(self.methods.values())}, "
            f"{learning['optimiser']}, batches of {learning['batch']}, memory {learning['memory']}, a pair "
            f"each {learning['curvature_every']}, at most {learning['epochs']} epochs, gradients "
            f"{'masked' if self.masked else 'not masked'}, {len(self.known)} samples, {len(self.labels)} "
            f"labels, {sum(self.strangers.values())} records of strangers, parts of {self.fragment_bytes}, "
            f"{'scored, ' if self.scores else ''}{'trained again, ' if self.again else ''}"
            f"{dict(self.workers)} processes{f', fails: {self.fails}' if self.fails else ''}; {self.faults}"
        )

    @property
    def parties(self) -> list[str]:
        """All parties, the guest first."""
        return [G, *self.hosts]

    @property
    def masked(self) -> bool:
        return bool(self.sections["encryption"]["mask_gradients"])

    @property
    def least_batch(self) -> int:
        """Fewest common entities that are enough for the first training."""
        return _least_batch(self.sections["learning"], self.columns, self.methods)

    @property
    def again(self) -> bool:
        """Whether there is another training when more entities have come."""
        return self.sections["retraining"].get("every_seconds") is not None

    def is_held_out(self, name: str) -> bool:
        """Whether no batch has the entity."""
        return is_held_out(*_held_out(self.sections["alignment"]["held_out"]), name)

    @functools.cached_property
    def guest(self) -> QuasiNewtonSettings:
        return self.of(G)

    def of(self, member: str) -> QuasiNewtonSettings:
        """The settings of a member."""
        federation = QuasiNewtonFederation.model_validate(self.sections["federation"])
        own = members(federation, self.columns)[HEAD if member == C else member]
        encryption = dict(self.sections["encryption"])
        content: dict[str, Any] = {**self.sections, **own, "encryption": encryption}
        if member == C:
            if self.encrypted:
                encryption["key_file"] = made_up_secrets.key_path()
            del encryption["mask_gradients"]
            return QuasiNewtonSettings.model_validate(content)
        encryption["secret_file"] = made_up_secrets.path(member)
        links = {host: made_up_secrets.path("link", host) for host in self.hosts}
        encryption["link_secret_file"] = links if member == G else links[member]
        alignment = {**self.sections["alignment"], "entities": self.waits[member]}
        content |= {"alignment": alignment, "preprocessing": {"method": self.methods[member]}}
        return QuasiNewtonSettings.model_validate(content)

    @property
    def repeatable(self) -> Collection[str]:
        kinds = [f"{party}.{kind}" for party in self.parties for kind in ("uploads", "decisions")]
        return {f"{NAME}.{one}" for one in (*kinds, *self.linked)}

    @property
    def linked(self) -> list[str]:
        """The topics between guest and hosts, without the federation's name."""
        kinds = ("outputs", "residuals", *(("questions", "answers") if self.scores else ()))
        return [f"{host}.{kind}" for host in self.hosts for kind in kinds]

    @property
    def scores(self) -> bool:
        """Whether entities are scored with the model."""
        return bool(self.sections["scoring"]["enabled"])

    def check_bounds(self, worker: Worker) -> None:
        role = worker.role
        assert isinstance(role, PartitionedRole)
        if role.trouble is not None:
            self.observed.troubles.add(role.trouble)
        for task in role._tasks.values():
            if not isinstance(task, PartyTask):
                continue
            own, limit = task.settings.own_party, task.settings.alignment.limit
            require(len(task.table) <= limit, f"{own}: {len(task.table)} entities are kept, {limit} may be")
            memory = task.settings.learning.memory
            if task.iterates.is_ready:
                pairs = task.iterates.own.pair_count
                require(pairs <= memory, f"{own}: {pairs} pairs are kept, {memory} may be")

    def standing(self, bus: Bus, last: bool) -> str:
        if self.absent is not None or (self.permanent_fault is not None and self.permanent_fault.places):
            return ""
        missing = [party for party in self.parties if not self._is_over(bus, party)]
        return f"training is not over at {missing}" if missing else ""

    def _is_over(self, bus: Bus, party: str) -> bool:
        """Whether the coordinator told a party that the latest training is over or failed, or the party told
        it of the failure."""
        told = messages_of(bus, f"{NAME}.{party}.decisions")
        latest = max((one.run for one in told), default=0)
        ends = (one for one in reversed(told) if one.run == latest)
        if any(
            one.kind == "failed" or (one.kind == "step" and read_content(one.content, StepDecision).over)
            for one in ends
        ):
            return True
        said = messages_of(bus, f"{NAME}.{party}.uploads")
        return any(one.kind == "failed" and one.run == latest for one in said)


def _held_out(share: float) -> tuple[bytes, float]:
    """The guest's secret, and ``share``."""
    return made_up_secrets.secret(made_up_secrets.path(G)), share


def _least_batch(learning: Mapping[str, Any], columns: Mapping[str, int], methods: Mapping[str, str]) -> int:
    """Fewest common entities that fill the first batch: half of a whole batch, or more if a party has many
    columns, but never more than a whole batch."""
    whole = int(learning["batch"])
    least = max(-(-whole // 2), int(learning["min_batch"]))
    for party, count in columns.items():
        made = count * (MOST_BINS if methods[party] == "quantile-bins" else 1) + (party == G)
        least = max(least, ENTITIES_A_COLUMN * made)
    return min(whole, least)


def scenario(seed: int) -> QuasiNewtonScenario:
    """The scenario of this seed."""
    draws = rng_for(seed, "simulation", "quasi-Newton")
    chance, between = drawn_by(draws)

    # A separate stream, so that draws for another training do not change all other draws.
    further = rng_for(seed, "simulation", "quasi-Newton", "training again")
    encrypted = chance(0.2)
    hosts = [f"h{number + 1}" for number in range(between(1, 2 if encrypted else 3))]
    parties = [G, *hosts]
    columns = {party: between(1, 2) for party in parties}
    batch = ENTITIES_A_COLUMN * max(columns[G] + 1, *columns.values()) + between(0, 3)
    settled = chance(0.7)
    failing = str(draws.choice(["few", "rare", "bounds"])) if chance(0.12) else ""
    methods = {party: str(draws.choice(METHODS)) for party in parties}
    if failing == "rare":
        # A bin of so few entities has no column of its own, so the host has no columns.
        methods[hosts[-1]] = "quantile-bins"
    faulty_seconds = float(between(10, 40))
    sections: dict[str, dict[str, Any]] = {
        "federation": {
            "name": NAME,
            "seed": seed,
            "parties": [str(one) for one in draws.permutation(parties)],
            "guest": G,
        },
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
            # Batches are small here, and with the usual bound most rows would be too far out.
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
        "retraining": {},
        "scoring": {"enabled": chance(0.5), "interval_seconds": SELDOM},
        "encryption": {
            "precision": "paillier" if encrypted else "plain",
            "study": True,
            "mask_gradients": chance(0.8),
        },
    }
    if encrypted:
        sections["encryption"] |= {
            "key_bits": made_up_secrets.KEY_BITS,
            "key_fingerprint": made_up_secrets.fingerprint(),
        }
    fails = {"few": "too few for a batch", "rare": "0 columns", "bounds": "beyond the bound"}.get(failing, "")
    if failing == "few":
        common = between(batch // 2, batch - 1 - LAST_ENTITIES)
        if common + LAST_ENTITIES >= _least_batch(sections["learning"], columns, methods):
            # The first training fails. With the entities that come last, another one may succeed.
            fails = ""
    else:
        common = batch * between(1, 1 if encrypted else 3) + between(0, 4)
    again = None
    if not failing and further.random() < TRAINED_AGAIN:
        # Both trainings must happen while there are faults.
        faulty_seconds += 30.0
        common = batch + common % batch
        again = _another_training(further, sections, batch, faulty_seconds)
    until = (0.4 if again is None else 0.1) * faulty_seconds
    held_out = _held_out(sections["alignment"]["held_out"])
    data = written(draws, columns, G, common, batch, until, settled, held_out, again)
    if again is not None:
        sections["retraining"]["entities"] = int(further.integers(max(4, data.more // 2), data.more + 1))
    strangers = {}
    if chance(0.3):
        places = [
            *(samples_topic(party) for party in parties),
            LABELS,
            *(f"{NAME}.{party}.decisions" for party in parties),
        ]
        places += [f"{NAME}.{party}.uploads" for party in parties] + [
            f"{NAME}.{host}.outputs" for host in hosts
        ]
        strangers = {str(topic): between(1, 3) for topic in draws.choice(places, size=2, replace=False)}
        for topic, count in strangers.items():
            for number in range(count):
                content = {"id": f"{STRANGER}-{number}", "x": "none"}
                at = float(draws.uniform(0.0, faulty_seconds))
                data.readings.setdefault(topic, []).append(
                    Reading(topic, f"{STRANGER}-{number}", content, at, False)
                )
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
            party: count if settled else batch + between(0, min(3, count - batch))
            for party, count in data.complete.items()
        },
        readings=tuple(tuple(sorted(own, key=lambda one: one.at)) for own in data.readings.values()),
        last=tuple(data.last),
        known=data.known,
        labels=data.labels,
        first=data.first,
        rates=drawn_rates(draws, seed, True),
        faulty_seconds=faulty_seconds,
        fails=fails,
        strangers=strangers,
        # Vectors are longer than this, so they are sent in fragments.
        fragment_bytes=between(200, 2_000) if chance(0.3) else 0,
    )


def _another_training(
    draws: np.random.Generator, sections: dict[str, dict[str, Any]], batch: int, seconds: float
) -> Again:
    """Sets the settings for another training, and draws the second wave."""
    sections["alignment"]["held_out"] = float(draws.uniform(0.15, 0.3))
    sections["retraining"]["every_seconds"] = float(draws.uniform(0.1, 3.0))
    sections["scoring"] |= {"enabled": True, "versions": 1 if draws.random() < 0.2 else 10}
    sections["learning"]["epochs"] = int(draws.integers(1, 3))
    begin = float(draws.uniform(0.5, 0.65)) * seconds
    late = bool(draws.random() < 0.5)
    # With late labels: more than have a label before these come, so that the model scores before it is
    # calibrated.
    sections["scoring"]["calibration_entities"] = int(draws.integers(8, 13) if late else draws.integers(2, 7))
    # If fewer than a batch, the batches stay, and the same ones are learnt from once more.
    entities = batch // 2 if draws.random() < 0.2 else batch + int(draws.integers(0, 4))
    return Again(entities, (begin, begin + float(draws.uniform(0.05, 0.25)) * seconds), late)
