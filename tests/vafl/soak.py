"""VAFL under the soak: two parties with columns of their own, a coordinator with the labels, and what its
proof checks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
from soak.calm import run_calmly, written_again
from soak.subject import FEDERATION, PARTITIONS, Left, Member, Plan, SoakedSystem, Verdict
from vafl.proof.checks import check_alike, check_outcome
from vafl.proof.scenario import FOR_EVER, LABELS, ROUNDING, VaflScenario, decode_prediction

from streamfl.contract.role import Record
from streamfl.contract.seeding import rng_for
from streamfl.runtime.bus import Outgoing
from streamfl.testing.faults.fault_rates import Rates
from streamfl.testing.faults.federation import CheckFailed, Reading
from streamfl.vafl.config import COORDINATOR
from streamfl.vafl.coordinator.learning_head import HeadCounters
from streamfl.vafl.coordinator.remembered_entity import RememberedEntity
from streamfl.vafl.messages import REPLY
from streamfl.vafl.state import HEAD_COUNTERS

__all__ = ["SOAK"]

PARTIES = ("bank", "shop")
FEATURES, BATCH = 2, 4
# Entities between one and its label, where that is late.
LATER = 100
SHARED = """
[federation]
name = "{name}"
seed = {seed}
parties = ["bank", "shop"]
embedding_size = 2
# Batches differ from run to run, and with them how sums are rounded.
precision = "float64"
[embedding]
hidden = [4]
activation = "tanh"
[head]
kind = "network"
[learning]
learning_rate = 0.05
batch_size = {batch}
# What checks begin where the parties do.
seeded_start = true
{learning}
[alignment]
quorum = {quorum}
# What is forgotten by the clock depends on how long faults last.
expiry_seconds = {for_ever}
reply_seconds = {for_ever}
requests = 1000
keep = true
[role]
kind = "{kind}"
"""
PARTY = """
[party]
name = "{party}"
[samples]
topic = "samples-{party}"
features = "x"
dimension = {features}
"""
COORDINATORS = f"""
[labels]
topic = "{LABELS}"
label = "y"
"""
LEARNING = {
    # Whoever has shown an entity is learnt from, and asked anew where that is too long ago.
    "async": "wait_for = 1\nquorum = 1\nmax_staleness = 2",
    # Every step is of the same entities, whatever happens between.
    "lockstep": f"wait_for = 2\nin_flight = {BATCH}",
}


@dataclass(frozen=True)
class Entity:
    """A sample of the load.

    seen: by party that sees it, its features.
    late: whether its label comes :data:`LATER`; None: it never comes.
    again: whether another label comes after that.
    """

    name: str
    seen: Mapping[str, list[float]]
    label: float
    late: bool | None
    again: bool


def entity(plan: Plan, number: int) -> Entity:
    """The one of this number. In lockstep everybody sees everything, and all labels come at once."""
    draws = rng_for(plan.seed, "soak", number)
    inputs = draws.normal(size=(len(PARTIES), FEATURES))
    label = float(inputs.sum() + 0.3 * draws.normal() > 0)
    seen = dict(zip(PARTIES, inputs.tolist(), strict=True))
    absent, late, again = draws.random(3)
    if plan.mode == "lockstep":
        return Entity(f"e{number}", seen, label, False, False)
    if absent < 0.2:
        del seen[PARTIES[int(absent < 0.1)]]
    return Entity(f"e{number}", seen, label, bool(late < 0.3) if late < 0.9 else None, bool(again < 0.1))


def records(plan: Plan, number: int) -> list[Outgoing]:
    """What the parties see of an entity, its label, and the late labels of another."""
    one = entity(plan, number)
    found = [_record(f"samples-{party}", one, {"x": inputs}) for party, inputs in one.seen.items()]
    if one.late is False:
        found.append(_record(LABELS, one, {"y": one.label}))
    if number >= LATER:
        before = entity(plan, number - LATER)
        if before.late:
            found.append(_record(LABELS, before, {"y": before.label}))
        if before.again and before.late is not None:
            found.append(_record(LABELS, before, {"y": 1 - before.label}))
    return found


def _record(topic: str, one: Entity, content: Mapping[str, Any]) -> Outgoing:
    return Outgoing(topic, one.name.encode(), json.dumps(content).encode())


def members(plan: Plan) -> dict[str, Member]:
    """A coordinator and two parties, of which partitions can move at one at least."""

    def sections(kind: str, own: str) -> str:
        shared = SHARED.format(
            name=FEDERATION,
            seed=plan.seed,
            batch=BATCH,
            learning=LEARNING[plan.mode],
            quorum=len(PARTIES) if plan.mode == "lockstep" else 1,
            for_ever=FOR_EVER,
            kind=kind,
        )
        return shared + own

    parties = {
        party: sections("vafl-party", PARTY.format(party=party, features=FEATURES)) for party in PARTIES
    }
    return {
        "coordinator": Member(sections(COORDINATOR, COORDINATORS), 2 if plan.nodes > 1 else 1),
        **{party: Member(text, 2 if party == PARTIES[0] else 1) for party, text in parties.items()},
    }


def predicted(prediction: Mapping[str, Any]) -> str:
    """The entity's name."""
    return str(prediction["entity"])


def check(verdict: Verdict, left: Left) -> None:
    """Every entity predicted, every revision once, labels learnt as they lie in their topic, and what the
    proof checks."""
    chosen = scenario_of(left)
    check_predictions(verdict, left, chosen)
    check_labels(verdict, left, chosen)
    verdict.counts["embeddings"] = sum(len(left.of(f"{party}.embeddings")) for party in PARTIES)
    try:
        check_outcome(left, chosen)
        if chosen.synchronous:
            check_like_calm(verdict, left, chosen)
    except CheckFailed as failed:
        verdict.wrong.append(str(failed))


def scenario_of(left: Left) -> VaflScenario:
    """What the proof's checks need to know, from the users' topics alone."""
    settings: Any = left.settings["coordinator"]
    seen: dict[str, set[str]] = {}
    readings: list[Reading] = []
    for party in PARTIES:
        topic = f"samples-{party}"
        for record in left.read(topic):
            name = (record.key or b"").decode()
            seen.setdefault(name, set()).add(party)
            readings.append(Reading(topic, name, json.loads(record.value or b""), 0.0, True))
    labels: dict[str, float] = {}
    for record in left.read(LABELS):
        labels.setdefault((record.key or b"").decode(), json.loads(record.value or b"")["y"])
    return VaflScenario(
        seed=left.plan.seed,
        settings=settings,
        synchronous=left.plan.mode == "lockstep",
        workers=dict.fromkeys(left.settings, 1),
        partitions=PARTITIONS,
        readings=(tuple(readings),),
        last=(),
        seen={name: frozenset(parties) for name, parties in seen.items()},
        labels=labels,
        rates=Rates(),
        faulty_seconds=0.0,
    )


def check_predictions(verdict: Verdict, left: Left, chosen: VaflScenario) -> None:
    """Each entity has a prediction, and no revision of it comes twice."""
    predictions = [decode_prediction(record) for record in left.of("predictions")]
    found = Counter((one["entity"], one["revision"]) for one in predictions)
    lost = chosen.predictable - {name for name, _ in found}
    verdict.samples, verdict.lost = len(chosen.predictable), len(lost)
    verdict.doubled = sum(count - 1 for count in found.values())
    verdict.counts["predictions"] = len(predictions)
    verdict.require(not lost, f"{len(lost)} entities without a prediction: {sorted(lost)[:3]}")
    verdict.require(not verdict.doubled, f"{verdict.doubled} predictions too many: {found.most_common(3)}")


def check_labels(verdict: Verdict, left: Left, chosen: VaflScenario) -> None:
    """What the coordinator remembers counts each learning from an entity once, and of each entity the first
    label."""
    learnt = Counter[int]()
    remembered = {}
    for (partition, key), value in left.latest(f"{FEDERATION}.{COORDINATOR}.state").items():
        if key == HEAD_COUNTERS.prefix:
            counters = msgspec.msgpack.decode(value, type=HeadCounters)
            learnt[partition] = counters.steps * BATCH + counters.gathered
        elif key.startswith(b"entity/"):
            remembered[key.removeprefix(b"entity/").decode()] = msgspec.msgpack.decode(
                value, type=RememberedEntity
            ).label
    labelled = {name: label for name, label in remembered.items() if label is not None}
    other = {
        name
        for name in labelled.keys() | chosen.labels.keys()
        if labelled.get(name) != chosen.labels.get(name)
    }
    verdict.require(not other, f"{len(other)} labels are not the first that came: {sorted(other)[:3]}")
    told = [
        (one.partition, REPLY.decode(one.value)) for party in PARTIES for one in left.of(f"{party}.gradients")
    ]
    gradients = Counter(partition for partition, reply in told if reply.gradient)
    answered = {(partition, reply.entity) for partition, reply in told if reply.gradient}
    entities = Counter(partition for partition, _ in answered)
    for partition in range(PARTITIONS):
        # Parties that come together are answered together: in lockstep all, without it some.
        most = entities[partition] if chosen.synchronous else gradients[partition]
        text = f"of {entities[partition]} entities with {gradients[partition]} gradients"
        sound = entities[partition] <= learnt[partition] <= most
        verdict.require(sound, f"partition {partition}: {learnt[partition]} times learnt, {text}")
    counts = {
        "labels": len(left.topics[LABELS]),
        "entities_learnt": len(answered),
        "times_learnt": learnt.total(),
    }
    verdict.counts |= {**counts, "gradients": gradients.total(), "requests": len(told) - gradients.total()}


def check_like_calm(verdict: Verdict, left: Left, chosen: VaflScenario) -> None:
    """Every member's parameters, and predictions: as when the same entities meet no fault at all. CheckFailed
    of parameters."""
    users = [
        record
        for topic in (*(f"samples-{party}" for party in PARTIES), LABELS)
        for record in left.read(topic)
    ]

    def part(record: Record) -> int:
        return int((record.key or b"").removeprefix(b"e")) // (10 * BATCH * PARTITIONS)

    load = [written_again(some) for _, some in groupby(sorted(users, key=part), part)]
    calm = Left(left.plan, left.settings, run_calmly(left.settings, load))
    own = {one["entity"]: one for one in map(decode_prediction, left.of("predictions"))}
    for expected in map(decode_prediction, calm.of("predictions")):
        found = own.get(expected["entity"])
        alike = found is not None and abs(found["prediction"] - expected["prediction"]) <= ROUNDING
        verdict.require(alike, f"predicted {found}, a calm run predicts {expected}")
    verdict.counts["predictions_compared"] = len(own)
    check_alike(left, calm, chosen)


SOAK = SoakedSystem(("async", "lockstep"), members, records, predicted, check)
