"""A vertical federation under faults, by seed: its data, its processes, and what must hold of it."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.optimisers import optimiser_named
from streamfl.role import Record, TopicSpec
from streamfl.runtime.bus import Bus
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.worker import Worker
from streamfl.seeding import rng_for
from streamfl.settings import RoleSection, RoleSettings
from streamfl.simulation.faults.chances import Rates, drawn_rates
from streamfl.simulation.faults.cluster import FaultyBus
from streamfl.simulation.faults.federation import CheckFailed, Federation, Reading, Verdict, run
from streamfl.simulation.faults.history import History
from streamfl.vafl.config import COORDINATOR, PARTY, EntityLabelsSection, EntitySamplesSection, PartySection, VaflSettings
from streamfl.vafl.coordinator import VaflCoordinator
from streamfl.vafl.messages import EMBEDDING, REPLY, Embedding, Reply
from streamfl.vafl.party import VaflParty
from streamfl.vafl.roles import embedding_function

__all__ = ["VaflScenario", "scenario", "simulate"]

LABELS = "labels"
# Longer than any run: nobody is given up, nothing is forgotten.
FOR_EVER = 1e6
LAST_ENTITIES = 3
# Sums of the same numbers in another order.
ROUNDING = 1e-8


@dataclass(frozen=True)
class VaflScenario:
    """A vertical federation under faults.

    synchronous: everybody sees everything, and each waits for all: then the model is that of a run without faults. seen: by entity,
    who sees it. labels: by entity, its first label.
    """

    seed: int
    settings: VaflSettings
    synchronous: bool
    workers: Mapping[str, int]
    partitions: int
    readings: tuple[tuple[Reading, ...], ...]
    last: tuple[Reading, ...]
    seen: Mapping[str, frozenset[str]]
    labels: Mapping[str, float]
    rates: Rates
    faulty_seconds: float

    def __str__(self) -> str:
        learning, alignment = self.settings.learning, self.settings.alignment
        bound = "" if learning.max_staleness is None else f", at most {learning.max_staleness} steps old"
        faults = ", ".join(f"{name} {value:.3g}" for name, value in dataclasses.asdict(self.rates).items() if value)
        return (
            f"vertical, {learning.loss}, head {self.settings.head.kind}, {self.settings.optimiser}, "
            f"{self.settings.bus.processing_guarantee}, "
            f"{len(self.settings.federation.parties)} parties, quorum {alignment.quorum}, waits for {learning.wait_for}{bound}, "
            f"{self.partitions} partitions, {dict(self.workers)} processes, {len(self.seen)} entities, "
            f"{len(self.labels)} labels; {faults}"
        )

    @property
    def calm(self) -> VaflScenario:
        """The same federation and data, one process of each kind, and no fault."""
        return dataclasses.replace(
            self,
            workers=dict.fromkeys(self.workers, 1),
            rates=Rates(),
            faulty_seconds=0.0,
            readings=tuple(tuple(dataclasses.replace(one, at=0.0) for one in producer) for producer in self.readings),
        )

    @property
    def once(self) -> bool:
        return self.settings.bus.processing_guarantee == "exactly_once"

    def of(self, member: str) -> VaflSettings:
        """The settings of a party, or of the coordinator."""
        if member == "coordinator":
            section = EntityLabelsSection(topic=LABELS, format="msgpack", label="y")
            return self.settings.model_copy(update={"role": RoleSection(kind=COORDINATOR), "labels": section})
        samples = EntitySamplesSection(topic=f"samples-{member}", format="msgpack", features="x", dimension=2)
        party = PartySection(name=member)
        return self.settings.model_copy(update={"role": RoleSection(kind=PARTY), "samples": samples, "party": party})

    @property
    def members(self) -> Mapping[str, tuple[int, RoleSettings]]:
        return {name: (count, self.of(name)) for name, count in self.workers.items()}

    @property
    def repeatable(self) -> Collection[str]:
        name = self.settings.federation.name
        return {f"{name}.{party}.{way}" for party in self.settings.federation.parties for way in ("embeddings", "gradients")}

    @property
    def topics(self) -> Sequence[TopicSpec]:
        specs: dict[str, TopicSpec] = {}
        for _, settings in self.members.values():
            for spec in find_kind(settings.role.kind).topics(settings):
                specs[spec.name] = replace(spec, partitions=self.partitions)
        return list(specs.values())

    @property
    def tasks(self) -> int:
        return self.partitions * len(self.workers)

    def prepare(self, worker: Worker) -> None:
        """Nothing."""

    def check_bounds(self, worker: Worker) -> None:
        role = worker.role
        if isinstance(role, VaflParty) and role.steps.in_flight is not None:
            for task in role._tasks.values():
                away = len(task.shown) + len(task.answered)
                _require(away <= role.steps.in_flight, f"{role.name}: {away} entities on their way, {role.steps.in_flight} may be")
        elif isinstance(role, VaflCoordinator):
            for held in role._tasks.values():
                _require(set(held.asked) <= set(held.entities), "an answer is awaited of an entity that is forgotten")

    def standing(self, bus: Bus, last: bool) -> str:
        late = {reading.client for reading in self.last}
        before = {entity for entity in self._to_be_predicted() if last or entity not in late}
        predicted = {_prediction(record)["entity"] for record in bus.read(f"{self.settings.federation.name}.predictions")}
        missing = before - predicted
        if missing:
            return f"not predicted: {sorted(missing)[:3]}"
        answered: set[tuple[str, str]] = set()
        for party in self.settings.federation.parties:
            for record in bus.read(f"{self.settings.federation.name}.{party}.gradients"):
                reply = REPLY.decode(record.value)
                if reply.gradient:
                    answered.add((party, reply.entity))
        unanswered = {place for place in self._to_be_answered() if last or place[1] not in late} - answered
        return f"without a gradient: {sorted(unanswered)[:3]}" if unanswered else ""

    def _to_be_predicted(self) -> set[str]:
        return {entity for entity, parties in self.seen.items() if len(parties) >= self.settings.alignment.quorum}

    def _to_be_answered(self) -> set[tuple[str, str]]:
        """Party and entity: whoever comes while fewer than wait_for have shown it waits for ever."""
        needed = max(self.settings.alignment.quorum, self.settings.learning.wait_for)
        return {
            (party, entity)
            for entity, parties in self.seen.items()
            if entity in self.labels and len(parties) >= needed
            for party in parties
        }


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise CheckFailed(text)


def _prediction(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(record.value or b"")
    return found


def scenario(seed: int) -> VaflScenario:
    """The vertical scenario of this seed."""
    draws = rng_for(seed, "simulation", "vertical scenario")

    def chance(probability: float) -> bool:
        return bool(draws.random() < probability)

    def between(low: int, high: int) -> int:
        return int(draws.integers(low, high + 1))

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
        head={"kind": "network" if network else "sum", "hidden": [3] if chance(0.5) else [], "activation": "tanh"},  # type: ignore[arg-type]
        learning=learning,  # type: ignore[arg-type]
        alignment={  # type: ignore[arg-type]
            "quorum": count if synchronous else between(1, count),
            "revise": chance(0.5),
            "expiry_seconds": FOR_EVER,
            "reply_seconds": FOR_EVER,
            # What was learnt from is remembered, so that a label that comes twice is known to.
            "keep": chance(0.5),
        },
    )
    faulty_seconds = float(between(5, 30))
    seen: dict[str, frozenset[str]] = {}
    labels: dict[str, float] = {}
    readings: list[Reading] = []
    last: list[Reading] = []
    entities = between(6, 24)
    partitions = 1 if synchronous else between(1, 3)
    if synchronous:
        # Every step is a whole batch: whoever has less waits for more.
        entities, rest = batch * max(1, entities // batch), batch * max(1, LAST_ENTITIES // batch)
    else:
        rest = LAST_ENTITIES
    for number in range(entities + rest):
        entity = f"e{number}"
        at = float(draws.uniform(0.0, faulty_seconds) * draws.random()) if number < entities else 0.0
        seen[entity] = frozenset(name for name in names if synchronous or chance(0.85))
        label = float(between(0, 2)) if loss == "softmax" else float(between(0, 1))
        own = [
            Reading(f"samples-{name}", entity, {"id": entity, "x": draws.normal(size=2).tolist()}, at, True)
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
    # Each topic has one producer, so that everybody shows entities in the same order where that matters.
    topics = [*(f"samples-{name}" for name in names), LABELS]
    producers = [tuple(sorted((one for one in readings if one.topic == topic), key=lambda one: one.at)) for topic in topics]
    if synchronous:
        producers = [tuple(dataclasses.replace(one, at=0.0) for one in producer) for producer in producers]
    return VaflScenario(
        seed=seed,
        settings=settings,
        synchronous=synchronous,
        workers={"coordinator": between(1, 2), **{name: between(1, 2) for name in names}},
        partitions=partitions,
        readings=tuple(producers),
        last=tuple(last),
        seen=seen,
        labels=labels,
        rates=drawn_rates(draws, exactly_once),
        faulty_seconds=faulty_seconds,
    )


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Run the vertical scenario of this seed on a bus, memory or sqlite, and check whatever must hold of it."""
    chosen = scenario(seed)

    def check(faulty: FaultyBus) -> None:
        check_outcome(faulty, chosen)
        if chosen.synchronous:
            calm = Federation(chosen.calm, History())
            calm.run()
            check_alike(faulty, calm.bus, chosen)

    return run(chosen, check, bus)


def check_outcome(bus: FaultyBus, chosen: VaflScenario) -> None:
    """Counts, order, who was answered, and a replay of every party's model from what it was told."""
    name = chosen.settings.federation.name
    for member in chosen.members:
        letters = list(bus.read(chosen.of(member).dead_letters))
        _require(not letters, f"{member}: {len(letters)} records were refused: {[letter.headers for letter in letters[:1]]}")
    check_predictions(bus, chosen)
    for party in chosen.settings.federation.parties:
        embeddings = _sent(bus, f"{name}.{party}.embeddings", EMBEDDING.decode)
        replies = _sent(bus, f"{name}.{party}.gradients", REPLY.decode)
        check_counts(chosen, party, embeddings, replies)
        if chosen.once:
            check_model(bus, chosen, party, embeddings, replies)
    if chosen.once and chosen.settings.head.kind == "sum":
        check_sums(bus, chosen)


def check_predictions(bus: Bus, chosen: VaflScenario) -> None:
    """Each entity that met its quorum, and no other, has its predictions in order, each of more parties than the one before."""
    quorum = chosen.settings.alignment.quorum
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in bus.read(f"{chosen.settings.federation.name}.predictions"):
        prediction = _prediction(record)
        found[prediction["entity"]].append((prediction["revision"], prediction["embeddings"]))
    expected = {entity for entity, parties in chosen.seen.items() if len(parties) >= quorum}
    _require(found.keys() == expected, f"predicted were {sorted(found)}, not {sorted(expected)}")
    for entity, revisions in found.items():
        if chosen.once:
            in_order = [number for number, _ in revisions] == list(range(len(revisions)))
            _require(in_order, f"{entity}: revisions {revisions}")
            _require(revisions[0][1] == quorum, f"{entity}: first predicted of {revisions[0][1]} embeddings, {quorum} are a quorum")
            grows = all(more > less for (_, less), (_, more) in pairwise(revisions))
            _require(grows, f"{entity}: {revisions} are not of more and more embeddings")
        most = max(embeddings for _, embeddings in revisions)
        sent = len(chosen.seen[entity])
        _require(most <= sent, f"{entity}: predicted of {most} embeddings, {sent} were sent")


def check_counts(
    chosen: VaflScenario, party: str, embeddings: list[tuple[int, Embedding]], replies: list[tuple[int, Reply]]
) -> None:
    """Each entity is shown once and once more for every request, and each embedding is answered once at most."""
    asked = Counter(reply.entity for _, reply in replies if not reply.gradient)
    answered = Counter(reply.entity for _, reply in replies if reply.gradient)
    shown = Counter(embedding.entity for _, embedding in embeddings)
    seen = {entity for entity, parties in chosen.seen.items() if party in parties}
    _require(shown.keys() == seen, f"{party} showed {sorted(shown)}, saw {sorted(seen)}")
    if not chosen.once:
        return
    sequences: dict[int, list[int]] = defaultdict(list)
    for partition, embedding in embeddings:
        sequences[partition].append(embedding.sequence)
    for partition, numbers in sequences.items():
        _require(numbers == list(range(1, len(numbers) + 1)), f"{party}, partition {partition}: sequence numbers {numbers}")
    for entity, count in shown.items():
        _require(count == 1 + asked[entity], f"{party}: {entity} shown {count} times, asked for {asked[entity]} times")
        _require(answered[entity] <= 1, f"{party}: {entity} answered {answered[entity]} times")
    due = {entity for who, entity in chosen._to_be_answered() if who == party}
    _require(due <= answered.keys(), f"{party}: never answered: {sorted(due - answered.keys())[:3]}")
    _require(answered.keys() <= chosen.labels.keys(), f"{party}: answered without a label: {sorted(answered)}")


def check_model(
    bus: Bus, chosen: VaflScenario, party: str, embeddings: list[tuple[int, Embedding]], replies: list[tuple[int, Reply]]
) -> None:
    """A party's parameters are what its gradients, in their order, make of its features, and each embedding is of its version."""
    settings = chosen.settings
    function, learning = embedding_function(settings, 2), settings.learning
    features = {
        reading.client: np.array([reading.content["x"]])
        for readings in (*chosen.readings, chosen.last)
        for reading in readings
        if reading.topic == f"samples-{party}"
    }
    state = _latest(bus, f"{settings.federation.name}.{party}.state")
    for partition in range(chosen.partitions):
        parameters = function.initial(settings.federation.seed, party)
        optimiser = optimiser_named(settings.optimiser, learning.learning_rate, function.size)
        versions = [parameters.copy()]
        gathered: list[tuple[str, NDArray[Any]]] = []
        for place, reply in replies:
            if place != partition or not reply.gradient:
                continue
            gathered.append((reply.entity, np.frombuffer(reply.gradient)))
            if len(gathered) == learning.batch_size:
                total = np.zeros(function.size)
                for entity, gradient in gathered:
                    done = function.forward(parameters, features[entity])
                    total += function.backward(parameters, done, gradient[np.newaxis])
                step = total / len(gathered) + learning.regularisation * parameters
                optimiser.step(parameters, step, len(versions))
                versions.append(parameters.copy())
                gathered = []
        for place, embedding in embeddings:
            if place != partition:
                continue
            _require(
                embedding.parameters_version < len(versions),
                f"{party}: {embedding.entity} is of version {embedding.parameters_version}, {len(versions) - 1} steps were taken",
            )
            made = function.forward(versions[embedding.parameters_version], features[embedding.entity]).outputs[0]
            apart = float(np.abs(made - np.frombuffer(embedding.values)).max())
            text = f"{party}: {embedding.entity} is {apart:g} from what version {embedding.parameters_version} makes"
            _require(apart <= ROUNDING, text)
        remembered = state.get((partition, b"array/parameters/0"))
        if remembered is not None or len(versions) > 1:
            apart = float(np.abs(np.frombuffer(remembered or b"") - parameters).max()) if remembered else float("inf")
            _require(apart <= ROUNDING, f"{party}, partition {partition}: the model is {apart:g} from what its gradients make")


def check_sums(bus: Bus, chosen: VaflScenario) -> None:
    """Under a sum all parties of one answer get the same gradient; where nobody comes later, all of an entity's are one answer."""
    if chosen.settings.learning.wait_for != len(chosen.settings.federation.parties):
        return
    gradients: dict[str, set[bytes]] = defaultdict(set)
    for party in chosen.settings.federation.parties:
        for _, reply in _sent(bus, f"{chosen.settings.federation.name}.{party}.gradients", REPLY.decode):
            if reply.gradient:
                gradients[reply.entity].add(reply.gradient)
    for entity, values in gradients.items():
        _require(len(values) == 1, f"{entity}: parties got {len(values)} different gradients of one sum")


def check_alike(bus: Bus, calm: Bus, chosen: VaflScenario) -> None:
    """Synchronous: every member's parameters are, but for rounding, those of a run without faults."""
    name = chosen.settings.federation.name
    for member in chosen.members:
        topic = f"{name}.{COORDINATOR if member == 'coordinator' else member}.state"
        found, expected = (_latest(one, topic).get((0, b"array/parameters/0")) for one in (bus, calm))
        _require((found is None) == (expected is None), f"{member}: only one of two runs learnt anything")
        if found is not None and expected is not None:
            apart = float(np.abs(np.frombuffer(found) - np.frombuffer(expected)).max(initial=0.0))
            _require(apart <= ROUNDING, f"{member}: the model is {apart:g} from that of a run without faults")


def _sent(bus: Bus, topic: str, decode: Any) -> list[tuple[int, Any]]:
    """Partition and message of each record that was not written again by a producer that was not sure."""
    repeated = bus.repeated if isinstance(bus, FaultyBus) else set()
    return [
        (record.partition, decode(record.value))
        for record in bus.read(topic)
        if (record.topic, record.partition, record.offset) not in repeated
    ]


def _latest(bus: Bus, topic: str) -> dict[tuple[int, bytes], bytes]:
    latest: dict[tuple[int, bytes], bytes | None] = {}
    for record in bus.read(topic):
        latest[record.partition, record.key or b""] = record.value
    return {place: value for place, value in latest.items() if value is not None}
