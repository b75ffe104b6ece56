"""A vertical federation under faults, by seed: its data and its processes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from streamfl.contract.role import Record
from streamfl.contract.seeding import rng_for
from streamfl.runtime.bus import Bus
from streamfl.runtime.worker import Worker
from streamfl.simulation.vertical.members import HEAD, LABELS, samples_topic
from streamfl.testing.faults.fault_rates import drawn_by, drawn_rates
from streamfl.testing.faults.federation import Reading
from streamfl.testing.faults.observed_messages import Sent, require, sent
from streamfl.testing.faults.scenario import MembersScenario
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.messages import REPLY
from streamfl.vafl.party.role import VaflParty
from streamfl.vafl.tools.members import BETWEEN, members

__all__ = ["CLOCK", "FOR_EVER", "LABELS", "ROUNDING", "VaflScenario", "decode_prediction", "scenario"]

FOR_EVER = 1e6
LAST_ENTITIES = 3
# Of each party.
COLUMNS = 2
# Sums of the same numbers in another order may differ by this.
ROUNDING = 1e-8
# A bus keeps times in milliseconds.
CLOCK = 2e-3


@dataclass(frozen=True)
class VaflScenario(MembersScenario):
    """The data, settings and faults of a vertical federation.

    synchronous: all parties see all entities and wait for each other; then faults do not change the model.
    seen: by entity, the parties that see it.
    labels: by entity, its first label.
    absent: the party that may send no more messages.
    """

    settings: VaflSettings
    synchronous: bool
    seen: Mapping[str, frozenset[str]]
    labels: Mapping[str, float]
    absent: str | None = None

    def __str__(self) -> str:
        learning, alignment = self.settings.learning, self.settings.alignment
        bound = "" if learning.max_staleness is None else f", at most {learning.max_staleness} steps old"
        if alignment.reply_seconds < FOR_EVER:
            bound += f", {alignment.reply_seconds:.3g} s for an answer"
        if self.forgets:
            bound += f", forgotten after {alignment.expiry_seconds:.3g} s"
        return (
            f"vertical, {learning.loss}, head {self.settings.head.kind}, {self.settings.optimiser}, "
            f"{self.settings.bus.processing_guarantee}, {len(self.settings.federation.parties)} parties, "
            f"quorum {alignment.quorum}, of learning {learning.quorum}, waits for "
            f"{learning.wait_for}{bound}, {alignment.requests} requests, {self.partitions} partitions, "
            f"{dict(self.workers)} processes, {len(self.seen)} entities, {len(self.labels)} labels; "
            f"{self.faults}"
        )

    @property
    def once(self) -> bool:
        return self.settings.bus.processing_guarantee == "exactly_once"

    @property
    def forgets(self) -> bool:
        """Whether members forget entities within the run: then not everything is predicted and answered."""
        return self.settings.alignment.expiry_seconds < FOR_EVER

    def of(self, member: str) -> VaflSettings:
        """The settings of a party, or of the coordinator."""
        federation = self.settings.federation
        own = members(federation, dict.fromkeys(federation.parties, COLUMNS))
        return self.settings.model_copy(update=own[HEAD if member == "coordinator" else member])

    @property
    def repeatable(self) -> Collection[str]:
        name = self.settings.federation.name
        return {f"{name}.{party}.{kind}" for party in self.settings.federation.parties for kind in BETWEEN}

    def check_bounds(self, worker: Worker) -> None:
        role = worker.role
        if isinstance(role, VaflParty) and (most := role.settings.learning.in_flight) is not None:
            for held in role._tasks.values():
                away = len(held.in_flight) + held.model.gathered
                require(away <= most, f"{role.name}: {away} entities on their way, {most} may be")
        elif isinstance(role, VaflCoordinator):
            for entities in (task.entities for task in role._tasks.values()):
                text = "an embedding is awaited of an entity that is forgotten"
                require(entities.awaited <= set(entities.names), text)

    def standing(self, bus: Bus, last: bool) -> str:
        if self.forgets:
            # The run is over when no member has an entity left to forget.
            return ""
        late = {reading.client for reading in self.last}
        before = {entity for entity in self._to_be_predicted() if last or entity not in late}
        predicted = {
            decode_prediction(record)["entity"]
            for record in bus.read(f"{self.settings.federation.name}.predictions")
        }
        missing = before - predicted
        if missing:
            return f"not predicted: {sorted(missing)[:3]}"
        if not self.once and self.settings.learning.max_staleness is not None:
            # A party that sends less than before it was killed uses a number twice: its answer then counts as
            # a duplicate.
            return ""
        parties, name = self.settings.federation.parties, self.settings.federation.name
        told = {party: sent(bus, f"{name}.{party}.gradients", REPLY.decode) for party in parties}
        answered = {
            (party, reply.entity) for party in parties for _, _, reply in told[party] if reply.gradient
        }
        unanswered = {
            place for place in self._to_be_answered(told) if last or place[1] not in late
        } - answered
        return f"without a gradient: {sorted(unanswered)[:3]}" if unanswered else ""

    @property
    def predictable(self) -> set[str]:
        """Entities that may be predicted."""
        return {
            entity for entity, parties in self.seen.items() if len(parties) >= self.settings.alignment.quorum
        }

    def _to_be_predicted(self) -> set[str]:
        return {
            entity
            for entity, parties in self._present.items()
            if len(parties) >= self.settings.alignment.quorum
        }

    @property
    def _present(self) -> dict[str, frozenset[str]]:
        """By entity, the parties that certainly send it."""
        return {entity: parties - {self.absent} for entity, parties in self.seen.items()}

    def let_go(self, replies: Sequence[Sent]) -> set[str]:
        """Entities that a party has forgotten: it was asked for them more often than it sends them again."""
        asked = Counter(reply.entity for _, _, reply in replies if not reply.gradient)
        return {entity for entity, count in asked.items() if count > self.settings.alignment.requests}

    def _to_be_answered(self, told: Mapping[str, Sequence[Sent]]) -> set[tuple[str, str]]:
        """Pairs of party and entity that must get a gradient. Without wait_for parties that can send the
        entity, a party waits for ever."""
        let_go = {party: self.let_go(replies) for party, replies in told.items()}
        needed = self.settings.learning.wait_for
        if self.settings.alignment.reply_seconds >= FOR_EVER:
            needed = max(needed, self.settings.learning.quorum or len(self.settings.federation.parties))
        return {
            (party, entity)
            for entity, present in self._present.items()
            for parties in [{party for party in present if entity not in let_go[party]}]
            if entity in self.labels and len(parties) >= needed
            for party in parties
        }


def decode_prediction(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(record.value or b"")
    return found


def scenario(seed: int) -> VaflScenario:
    """The vertical scenario of this seed."""
    draws = rng_for(seed, "simulation", "vertical scenario")
    chance, between = drawn_by(draws)

    names = [f"p{number}" for number in range(between(2, 3))]
    count = len(names)
    synchronous = chance(0.3)
    exactly_once = synchronous or chance(0.75)
    loss = str(draws.choice(["square", "logistic", "softmax"]))
    network = chance(0.5)
    outputs = 3 if loss == "softmax" else 1
    batch = between(1, 4)
    learning: dict[str, Any] = {
        "loss": loss,
        "classes": 3 if loss == "softmax" else None,
        "optimiser": str(draws.choice(["sgd", "sgd-decay", "adagrad", "adam"])),
        "learning_rate": 0.1,
        "batch_size": batch,
        "regularisation": 0.01 if chance(0.5) else 0.0,
        "wait_for": count if synchronous else between(1, count),
        "in_flight": batch if synchronous else None,
        "max_staleness": None if synchronous or chance(0.5) else between(0, 2),
        "quorum": None if synchronous or chance(0.3) else between(1, count),
        # The same seed gives the same run, and the checks can compute the parties' first parameters.
        "seeded_start": True,
    }
    settings = VaflSettings(
        federation={  # type: ignore[arg-type]
            "name": "sim",
            "seed": seed,
            "parties": names,
            "embedding_size": between(1, 3) if network else outputs,
            "precision": "float64",
        },
        role={"kind": "simulation"},  # type: ignore[arg-type]
        bus={  # type: ignore[arg-type]
            "processing_guarantee": "exactly_once" if exactly_once else "at_least_once",
            "commit_interval_ms": between(0, 100),
            "max_poll_records": between(1, 30),
        },
        embedding={"hidden": [3] if chance(0.5) else [], "activation": "tanh"},  # type: ignore[arg-type]
        head={
            "kind": "network" if network else "sum",
            "hidden": [3] if chance(0.5) else [],
            "activation": "tanh",
        },  # type: ignore[arg-type]
        learning=learning,  # type: ignore[arg-type]
        alignment={  # type: ignore[arg-type]
            "quorum": count if synchronous else between(1, count),
            "revise": chance(0.5),
            "expiry_seconds": FOR_EVER,
            "reply_seconds": FOR_EVER,
            # Entities that were learnt from are remembered, so that a second label is known as a duplicate.
            "keep": chance(0.5),
        },
        predictions={"headers": ["traceparent"]},  # type: ignore[arg-type]
    )
    faulty_seconds = float(between(5, 30))
    seen: dict[str, frozenset[str]] = {}
    labels: dict[str, float] = {}
    readings: list[Reading] = []
    last: list[Reading] = []
    entities = between(6, 24)
    partitions = 1 if synchronous else between(1, 3)
    if synchronous:
        # Every step is a whole batch: a party with fewer gradients waits for more.
        entities, rest = batch * max(1, entities // batch), batch * max(1, LAST_ENTITIES // batch)
    else:
        rest = LAST_ENTITIES
    for number in range(entities + rest):
        entity = f"e{number}"
        at = float(draws.uniform(0.0, faulty_seconds) * draws.random()) if number < entities else 0.0
        seen[entity] = frozenset(name for name in names if synchronous or chance(0.85))
        label = float(between(0, 2)) if loss == "softmax" else float(between(0, 1))
        own = [
            Reading(
                samples_topic(name),
                entity,
                {"id": entity, "x": draws.normal(size=COLUMNS).tolist()},
                at,
                True,
            )
            for name in names
            if name in seen[entity]
        ]
        if synchronous or chance(0.8):
            labels[entity] = label
            later = max(0.0, at + float(draws.exponential(3.0)) - 1.0)
            own.append(Reading(LABELS, entity, {"id": entity, "y": label}, later, True))
            if settings.alignment.keep and chance(0.2):
                other = (label + 1) % outputs if loss == "softmax" else 1.0 - label
                own.append(Reading(LABELS, entity, {"id": entity, "y": other}, later, True))
        (readings if number < entities else last).extend(own)
    # Each topic has one producer, so that all parties send entities in the same order where that matters.
    topics = [*(samples_topic(name) for name in names), LABELS]
    producers = [
        tuple(sorted((one for one in readings if one.topic == topic), key=lambda one: one.at))
        for topic in topics
    ]
    if synchronous:
        producers = [tuple(dataclasses.replace(one, at=0.0) for one in producer) for producer in producers]
    workers = {"coordinator": between(1, 2), **{name: between(1, 2) for name in names}}
    rates = drawn_rates(draws, seed, exactly_once)
    if not synchronous:
        patience = {
            # From the shortest time for an answer to the time that a process takes to come back.
            "reply_seconds": float(10 ** draws.uniform(-2.0, 0.3)) if chance(0.6) else FOR_EVER,
            "expiry_seconds": float(draws.uniform(1.0, 25.0)) if chance(0.3) else FOR_EVER,
            "requests": between(0, 2) if chance(0.5) else 1000,
        }
        update: dict[str, Any] = {"alignment": settings.alignment.model_copy(update=patience)}
        if chance(0.7):
            # So that parties take many steps between some embeddings and their labels.
            update["learning"] = settings.learning.model_copy(update={"batch_size": 1})
            waits = {entity: float(draws.exponential(8.0)) if chance(0.4) else 0.0 for entity in labels}
            late = (dataclasses.replace(one, at=one.at + waits[one.client]) for one in producers[-1])
            producers[-1] = tuple(sorted(late, key=lambda one: one.at))
        settings = settings.model_copy(update=update)
    behind = rng_for(seed, "simulation", "vertical parties behind")
    catching_up = {
        "catch_up_samples": int(behind.integers(0, 4)),
        "catch_up_patience_seconds": float(behind.uniform(0.5, 5.0)),
    }
    scaled = {"standardise": bool(behind.random() < 0.7)}
    left_out = {"batch_size": None} if behind.random() < 0.3 and not synchronous else {}
    update = {
        "learning": settings.learning.model_copy(update=catching_up | left_out),
        "embedding": settings.embedding.model_copy(update=scaled),
    }
    settings = settings.model_copy(update=update)
    return VaflScenario(
        seed=seed,
        settings=settings,
        synchronous=synchronous,
        workers=workers,
        partitions=partitions,
        readings=tuple(producers),
        last=tuple(last),
        seen=seen,
        labels=labels,
        rates=rates,
        faulty_seconds=faulty_seconds,
    )
