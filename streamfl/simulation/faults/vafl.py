"""A vertical federation under faults, by seed: its data, its processes, and what must hold of it."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

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
from streamfl.simulation.faults.staying import GONE, Staying, of_a_process
from streamfl.vafl.config import COORDINATOR, PARTY, VaflSettings
from streamfl.vafl.coordinator import VaflCoordinator, _Entity
from streamfl.vafl.messages import EMBEDDING, REPLY
from streamfl.vafl.party import VaflParty, _Shown
from streamfl.vafl.roles import embedding_function
from streamfl.vertical import EntityLabelsSection, EntitySamplesSection, PartySection

__all__ = ["VaflScenario", "scenario", "simulate", "simulate_liveness"]

LABELS = "labels"
# Longer than any run.
FOR_EVER = 1e6
LAST_ENTITIES = 3
# Sums of the same numbers in another order.
ROUNDING = 1e-8
# A bus keeps times in milliseconds.
CLOCK = 2e-3


@dataclass(frozen=True)
class VaflScenario:
    """A vertical federation under faults.

    synchronous: everybody sees everything, and each waits for all: then the model is that of a run without faults. seen: by entity,
    who sees it. labels: by entity, its first label. staying: the fault that stays, if any. absent: the party that may say no more.
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
    staying: Staying | None = None
    absent: str | None = None

    def __str__(self) -> str:
        learning, alignment = self.settings.learning, self.settings.alignment
        bound = "" if learning.max_staleness is None else f", at most {learning.max_staleness} steps old"
        if alignment.reply_seconds < FOR_EVER:
            bound += f", {alignment.reply_seconds:.3g} s for an answer"
        if self.forgets:
            bound += f", forgotten after {alignment.expiry_seconds:.3g} s"
        faults = ", ".join(f"{name} {value:.3g}" for name, value in dataclasses.asdict(self.rates).items() if value)
        return (
            f"vertical, {learning.loss}, head {self.settings.head.kind}, {self.settings.optimiser}, "
            f"{self.settings.bus.processing_guarantee}, "
            f"{len(self.settings.federation.parties)} parties, quorum {alignment.quorum}, waits for {learning.wait_for}{bound}, "
            f"{self.partitions} partitions, {dict(self.workers)} processes, {len(self.seen)} entities, "
            f"{len(self.labels)} labels; {faults}{f'; {self.staying}' if self.staying is not None else ''}"
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

    @property
    def forgets(self) -> bool:
        """Members forget entities within the run: then not everything is predicted and answered."""
        return self.settings.alignment.expiry_seconds < FOR_EVER

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
        gone = set() if self.staying is None else self.staying.processes.keys()
        present = [name for name, count in self.workers.items() if not {f"{name}-{n}" for n in range(count)} <= gone]
        return self.partitions * len(present)

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
        if self.forgets:
            # It is done when nobody has anything left to forget.
            return ""
        late = {reading.client for reading in self.last}
        before = {entity for entity in self._to_be_predicted() if last or entity not in late}
        predicted = {_prediction(record)["entity"] for record in bus.read(f"{self.settings.federation.name}.predictions")}
        missing = before - predicted
        if missing:
            return f"not predicted: {sorted(missing)[:3]}"
        if not self.once and self.settings.learning.max_staleness is not None:
            # A party that says less than it did before it was killed uses a number twice: that answer is taken for a repeated one.
            return ""
        answered: set[tuple[str, str]] = set()
        for party in self.settings.federation.parties:
            for record in bus.read(f"{self.settings.federation.name}.{party}.gradients"):
                reply = REPLY.decode(record.value)
                if reply.gradient:
                    answered.add((party, reply.entity))
        unanswered = {place for place in self._to_be_answered() if last or place[1] not in late} - answered
        return f"without a gradient: {sorted(unanswered)[:3]}" if unanswered else ""

    @property
    def predictable(self) -> set[str]:
        """What may be predicted."""
        return {entity for entity, parties in self.seen.items() if len(parties) >= self.settings.alignment.quorum}

    def _to_be_predicted(self) -> set[str]:
        return {entity for entity, parties in self._present.items() if len(parties) >= self.settings.alignment.quorum}

    @property
    def _present(self) -> dict[str, frozenset[str]]:
        """By entity, who sees it and says so for certain."""
        return {entity: parties - {self.absent} for entity, parties in self.seen.items()}

    def _to_be_answered(self) -> set[tuple[str, str]]:
        """Party and entity: whoever comes while fewer than wait_for have shown it waits for ever."""
        needed = max(self.settings.alignment.quorum, self.settings.learning.wait_for)
        return {
            (party, entity)
            for entity, parties in self._present.items()
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
    workers = {"coordinator": between(1, 2), **{name: between(1, 2) for name in names}}
    rates = drawn_rates(draws, seed, exactly_once)
    if not synchronous:
        patience = {
            # From what an answer takes at best to what a process takes to come back.
            "reply_seconds": float(10 ** draws.uniform(-2.0, 0.3)) if chance(0.6) else FOR_EVER,
            "expiry_seconds": float(draws.uniform(1.0, 25.0)) if chance(0.3) else FOR_EVER,
        }
        update: dict[str, Any] = {"alignment": settings.alignment.model_copy(update=patience)}
        if chance(0.7):
            # Parties have taken many steps between some embeddings and their labels.
            update["learning"] = settings.learning.model_copy(update={"batch_size": 1})
            waits = {entity: float(draws.exponential(8.0)) if chance(0.4) else 0.0 for entity in labels}
            late = (dataclasses.replace(one, at=one.at + waits[one.client]) for one in producers[-1])
            producers[-1] = tuple(sorted(late, key=lambda one: one.at))
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


def simulate_liveness(seed: int, bus: str = "memory") -> Verdict:
    """The same with a fault that stays: whatever does not depend on what is gone comes to its end."""
    chosen = _with_a_fault_that_stays(seed)
    return run(chosen, lambda faulty: check_outcome(faulty, chosen), bus)


def _with_a_fault_that_stays(seed: int) -> VaflScenario:
    draws = rng_for(seed, "simulation", "what stays, vertically")
    chosen = scenario(seed)
    parties, workers = chosen.settings.federation.parties, {name: max(2, count) for name, count in chosen.workers.items()}
    at = float(draws.uniform(0.0, chosen.faulty_seconds))
    patience = {"expiry_seconds": FOR_EVER, "reply_seconds": 2.0}
    kind = "process" if chosen.synchronous else ("process", "party", "partition")[int(draws.integers(3))]
    if kind == "process":
        settings = _changed(chosen.settings, patience)
        staying = of_a_process(draws, at, list(workers))
        return replace(chosen, settings=settings, workers=workers, staying=staying)
    absent = parties[int(draws.integers(len(parties)))]
    most = len(parties) - 1
    # Whatever waits for all of them cannot go on without one.
    learning = chosen.settings.learning
    settings = _changed(
        chosen.settings,
        {**patience, "quorum": min(most, chosen.settings.alignment.quorum)},
        # Parties that are asked for newer embeddings than they showed, one of which will not answer.
        {"wait_for": min(most, learning.wait_for), "max_staleness": learning.max_staleness or 0, "batch_size": 1},
    )
    if kind == "party":
        staying = Staying(f"{absent} never comes back", at, {f"{absent}-{n}": GONE for n in range(workers[absent])})
    else:
        place = f"samples-{absent}", int(draws.integers(chosen.partitions))
        staying = Staying(f"partition {place[1]} of {place[0]} cannot be read", at, {}, frozenset([place]))
    return replace(chosen, settings=settings, workers=workers, staying=staying, absent=absent)


def _changed(settings: VaflSettings, alignment: dict[str, Any], learning: dict[str, Any] | None = None) -> VaflSettings:
    return settings.model_copy(
        update={
            "alignment": settings.alignment.model_copy(update=alignment),
            "learning": settings.learning.model_copy(update=learning or {}),
        }
    )


class Sent(NamedTuple):
    """What was written to a topic, and when, in seconds."""

    partition: int
    at: float
    message: Any


def check_outcome(bus: FaultyBus, chosen: VaflScenario) -> None:
    """Counts, order, who was answered, and a replay of every party's model from what it was told."""
    name = chosen.settings.federation.name
    for member in chosen.members:
        letters = list(bus.read(chosen.of(member).dead_letters))
        _require(not letters, f"{member}: {len(letters)} records were refused: {[letter.headers for letter in letters[:1]]}")
    check_predictions(bus, chosen)
    shown, told = {}, {}
    for party in chosen.settings.federation.parties:
        embeddings = shown[party] = _sent(bus, f"{name}.{party}.embeddings", EMBEDDING.decode)
        replies = told[party] = _sent(bus, f"{name}.{party}.gradients", REPLY.decode)
        check_counts(chosen, party, embeddings, replies)
        if chosen.once:
            check_staleness(chosen, party, embeddings, replies)
            if party != chosen.absent:
                check_model(bus, chosen, party, embeddings, replies)
    if chosen.once:
        check_coordinator(bus, chosen, shown, told)
    if chosen.once and chosen.settings.head.kind == "sum":
        check_sums(bus, chosen)


def check_predictions(bus: Bus, chosen: VaflScenario) -> None:
    """Each entity that met its quorum, and no other, has its predictions in order, each of more parties than the one before.

    An entity that was forgotten begins anew, and may come to none.
    """
    quorum = chosen.settings.alignment.quorum
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in bus.read(f"{chosen.settings.federation.name}.predictions"):
        prediction = _prediction(record)
        found[prediction["entity"]].append((prediction["revision"], prediction["embeddings"]))
    expected = chosen._to_be_predicted()
    as_expected = found.keys() <= chosen.predictable and (chosen.forgets or expected <= found.keys())
    _require(as_expected, f"predicted were {sorted(found)}, not {sorted(expected)}")
    for entity, revisions in found.items():
        if chosen.once:
            begins = [place for place, (number, _) in enumerate(revisions) if number == 0]
            _require(chosen.forgets or len(begins) == 1, f"{entity}: revisions {revisions}")
            for begin, end in pairwise([*begins, len(revisions)]):
                life = revisions[begin:end]
                in_order = [number for number, _ in life] == list(range(len(life)))
                _require(in_order, f"{entity}: revisions {revisions}")
                _require(life[0][1] == quorum, f"{entity}: first predicted of {life[0][1]} embeddings, {quorum} are a quorum")
                grows = all(more > less for (_, less), (_, more) in pairwise(life))
                _require(grows, f"{entity}: {life} are not of more and more embeddings")
            _require(begins[:1] == [0], f"{entity}: revisions {revisions}")
        most = max(embeddings for _, embeddings in revisions)
        sent = len(chosen.seen[entity])
        _require(most <= sent, f"{entity}: predicted of {most} embeddings, {sent} were sent")


def check_counts(chosen: VaflScenario, party: str, embeddings: list[Sent], replies: list[Sent]) -> None:
    """Each entity is shown once and once more for every request, and each embedding is answered once at most.

    Who has forgotten an entity shows it no more.
    """
    asked = Counter(reply.entity for _, _, reply in replies if not reply.gradient)
    answered = Counter(reply.entity for _, _, reply in replies if reply.gradient)
    shown = Counter(embedding.entity for _, _, embedding in embeddings)
    seen = {entity for entity, parties in chosen.seen.items() if party in parties}
    as_seen = shown.keys() <= seen if party == chosen.absent else shown.keys() == seen
    _require(as_seen, f"{party} showed {sorted(shown)}, saw {sorted(seen)}")
    if not chosen.once:
        return
    sequences: dict[int, list[int]] = defaultdict(list)
    for partition, _, embedding in embeddings:
        sequences[partition].append(embedding.sequence)
    for partition, numbers in sequences.items():
        _require(numbers == list(range(1, len(numbers) + 1)), f"{party}, partition {partition}: sequence numbers {numbers}")
    for entity, count in shown.items():
        incomplete = chosen.forgets or party == chosen.absent
        as_asked = count <= 1 + asked[entity] if incomplete else count == 1 + asked[entity]
        _require(as_asked, f"{party}: {entity} shown {count} times, asked for {asked[entity]} times")
        _require(answered[entity] <= 1, f"{party}: {entity} answered {answered[entity]} times")
    due = {entity for who, entity in chosen._to_be_answered() if who == party}
    _require(chosen.forgets or due <= answered.keys(), f"{party}: never answered: {sorted(due - answered.keys())[:3]}")
    _require(answered.keys() <= chosen.labels.keys(), f"{party}: answered without a label: {sorted(answered)}")


def check_staleness(chosen: VaflScenario, party: str, embeddings: list[Sent], replies: list[Sent]) -> None:
    """No gradient goes to an embedding that is known to be older than it may be, but to one that came because it was asked for, and
    none is asked for that is not.

    That a newer one is known shows in a reply to it: replies lie in the order in which they were decided on.
    """
    bound = chosen.settings.learning.max_staleness
    versions = {(place, one.epoch, one.sequence): one.parameters_version for place, _, one in embeddings}
    newest: dict[int, tuple[int, int]] = {}
    asked: dict[str, int] = {}
    for partition, at, reply in replies:
        made = reply.epoch, versions[partition, reply.epoch, reply.sequence]
        known = newest[partition] = max(made, newest.get(partition, made))
        what = f"{party}: {reply.entity}, shown as {reply.sequence}, of version {made[1]}"
        if not reply.gradient:
            asked[reply.entity] = reply.sequence
            written = ((one.epoch, one.parameters_version) for place, when, one in embeddings if place == partition and when <= at)
            _require(bound is not None and _too_old(made, max(written), bound), f"{what}, is asked for anew without a reason")
        elif bound is not None and reply.sequence <= asked.get(reply.entity, reply.sequence):
            _require(not _too_old(made, known, bound), f"{what}, has a gradient after one of version {known[1]}")


def _too_old(made: tuple[int, int], known: tuple[int, int], bound: int) -> bool:
    """Epoch and version of an embedding, and of the newest."""
    return made[0] != known[0] or known[1] - made[1] > bound


def check_coordinator(
    bus: Bus, chosen: VaflScenario, embeddings: Mapping[str, list[Sent]], replies: Mapping[str, list[Sent]]
) -> None:
    """What the coordinator remembers of an entity is not ready to be learnt from, and is forgotten, or a party given up, no earlier
    than it may be. Who was not answered, though everybody was there, was forgotten.
    """
    settings, alignment = chosen.settings, chosen.settings.alignment
    parties = settings.federation.parties
    shown = {(party, place, one.epoch, one.sequence): at for party in parties for place, at, one in embeddings[party]}
    told = {(party, one.entity): at for party in parties for _, at, one in replies[party] if one.gradient}
    asked = {(party, place, one.epoch, one.sequence) for party in parties for place, _, one in replies[party] if not one.gradient}
    held: dict[tuple[int, str], _Entity] = {}
    forgotten: set[str] = set()
    for record in bus.read(f"{settings.federation.name}.{COORDINATOR}.state"):
        kind, _, key = (record.key or b"").partition(b"/")
        if kind != b"entity":
            continue
        name, now = key.decode(), record.timestamp + CLOCK
        before = held.pop((record.partition, name), None)

        def untold(entity: _Entity, name: str = name, now: float = now) -> list[str]:
            return [parties[number] for number in entity.held if told.get((parties[number], name), now + 1) > now]

        if record.value is None:
            if before is None or (before.held and not untold(before)):
                continue
            forgotten.add(name)
            for number, one in before.held.items():
                came = shown[parties[number], record.partition, one.epoch, one.sequence]
                _require(came + alignment.expiry_seconds <= now, f"{name} is forgotten {now - came:.3f} s after {parties[number]}")
            continue
        entity = held[record.partition, name] = msgspec.msgpack.decode(record.value, type=_Entity)
        if entity.label is not None and entity.asked_at is None and len(entity.held) >= alignment.quorum:
            waiting = untold(entity)
            _require(len(waiting) < settings.learning.wait_for, f"{name}: {waiting} wait for a gradient, and for nobody")
        if before is None:
            continue
        for number, one in before.held.items():
            if number in entity.held:
                continue
            forgotten.add(name)
            who = f"{name}: {parties[number]} is given up"
            _require((parties[number], record.partition, one.epoch, one.sequence) in asked, f"{who} and was asked for nothing")
            if before.asked_at is not None:
                _require(before.asked_at + alignment.reply_seconds <= now, f"{who} {now - before.asked_at:.3f} s after the request")
    lost = {entity for party, entity in chosen._to_be_answered() if (party, entity) not in told} - forgotten
    _require(not lost, f"neither answered nor forgotten: {sorted(lost)[:3]}")


def check_model(bus: Bus, chosen: VaflScenario, party: str, embeddings: list[Sent], replies: list[Sent]) -> None:
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
    forgotten, unclear = _forgotten(bus, chosen, party, replies) if chosen.forgets else (set(), set())
    for partition in set(range(chosen.partitions)) - unclear:
        parameters = function.initial(settings.federation.seed, party)
        optimiser = optimiser_named(settings.optimiser, learning.learning_rate, function.size)
        versions = [parameters.copy()]
        gathered: list[tuple[str, NDArray[Any]]] = []
        for place, _, reply in replies:
            if place != partition or not reply.gradient or (place, reply.sequence) in forgotten:
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
        for place, _, embedding in embeddings:
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


def _forgotten(bus: Bus, chosen: VaflScenario, party: str, replies: list[Sent]) -> tuple[set[tuple[int, int]], set[int]]:
    """Partition and sequence number of what the party had forgotten when its gradient came, and the partitions of which that cannot
    be told: the gradient was there when it was time to forget.
    """
    told = {(place, one.sequence): at for place, at, one in replies if one.gradient}
    shown: dict[tuple[int, bytes], _Shown] = {}
    forgotten: set[tuple[int, int]] = set()
    unclear: set[int] = set()
    for record in bus.read(f"{chosen.settings.federation.name}.{party}.state"):
        key = record.key or b""
        if not key.startswith(b"entity/"):
            continue
        place, now = (record.partition, key), record.timestamp + CLOCK
        if record.value is not None:
            shown[place] = msgspec.msgpack.decode(record.value, type=_Shown)
        elif (one := shown.pop(place, None)) is not None:
            came = told.get((record.partition, one.sequence))
            due = one.since + chosen.settings.alignment.expiry_seconds <= now
            text = f"{party}: {key!r} is forgotten {now - one.since:.3f} s after it came"
            _require(due or (came is not None and came <= now), text)
            if came is not None and came > now:
                forgotten.add((record.partition, one.sequence))
            elif came is not None and due:
                unclear.add(record.partition)
    return forgotten, unclear


def check_sums(bus: Bus, chosen: VaflScenario) -> None:
    """Under a sum all parties of one answer get the same gradient; where nobody comes later, all of an entity's are one answer."""
    if chosen.settings.learning.wait_for != len(chosen.settings.federation.parties):
        return
    gradients: dict[str, set[bytes]] = defaultdict(set)
    for party in chosen.settings.federation.parties:
        for _, _, reply in _sent(bus, f"{chosen.settings.federation.name}.{party}.gradients", REPLY.decode):
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


def _sent(bus: Bus, topic: str, decode: Any) -> list[Sent]:
    """Each record that was not written again by a producer that was not sure."""
    repeated = bus.repeated if isinstance(bus, FaultyBus) else set()
    return [
        Sent(record.partition, record.timestamp, decode(record.value))
        for record in bus.read(topic)
        if (record.topic, record.partition, record.offset) not in repeated
    ]


def _latest(bus: Bus, topic: str) -> dict[tuple[int, bytes], bytes]:
    latest: dict[tuple[int, bytes], bytes | None] = {}
    for record in bus.read(topic):
        latest[record.partition, record.key or b""] = record.value
    return {place: value for place, value in latest.items() if value is not None}
