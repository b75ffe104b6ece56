"""Quasi-Newton under the soak: a guest with the labels, a host, a coordinator, each entity scored once with
the first model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from quasi_newton.proof.observed_messages import messages_of
from soak.subject import FEDERATION, Left, Member, Plan, SoakedSystem, Verdict

from streamfl.contract.seeding import rng_for
from streamfl.quasi_newton.messages import Message, StepDecision, read_content
from streamfl.quasi_newton.rows.alignment import set_digest
from streamfl.runtime.bus import Outgoing

__all__ = ["SOAK"]

GUEST, HOST = "bank", "shop"
LABELS = "labels"
SECTIONS = """
[federation]
name = "{name}"
seed = {seed}
parties = ["bank", "shop"]
[role]
kind = "quasi-newton-{kind}"
[learning]
optimiser = "{optimiser}"
batch = 100
min_batch = 64
min_support = 2
epochs = 4
[encryption]
precision = "plain"
study = true
[alignment]
entities = 200
settle_seconds = 0
held_out = 0
limit = 100000
[scoring]
interval_seconds = 0.2
"""
PARTY = """
[party]
name = "{party}"
[samples]
topic = "samples-{party}"
features = ["{party}-0", "{party}-1"]
"""
LABEL = f"""
[labels]
topic = "{LABELS}"
label = "y"
"""


# By topic, what is said there in every round, once a training, or in every session of scores.
SAID = {
    f"{GUEST}.uploads": ("joined", "gradient", "sums"),
    f"{HOST}.uploads": ("joined", "gradient"),
    f"{GUEST}.decisions": ("begin", "opened", "step"),
    f"{HOST}.decisions": ("begin", "opened", "step"),
    f"{HOST}.outputs": ("answer", "outputs", "dots"),
    f"{HOST}.residuals": ("blinded", "aligned", "residuals"),
    f"{HOST}.questions": ("chosen",),
    f"{HOST}.answers": ("found", "points"),
}
ONCE = dict.fromkeys(("joined", "begin", "answer", "blinded", "aligned"), 1)
IN_SESSIONS = ("chosen", "found", "points")


def records(plan: Plan, number: int) -> list[Outgoing]:
    """What the parties see of an entity, and its label."""
    inputs = rng_for(plan.seed, "soak", number).normal(size=(2, 2)).tolist()
    found = []
    for party, own in zip((GUEST, HOST), inputs, strict=True):
        content = {f"{party}-{column}": value for column, value in enumerate(own)}
        found.append(Outgoing(f"samples-{party}", b"e%d" % number, json.dumps(content).encode()))
    label = float(sum(map(sum, inputs)) > 0)
    return [*found, Outgoing(LABELS, b"e%d" % number, json.dumps({"y": label}).encode())]


def members(plan: Plan) -> dict[str, Member]:
    """Each has one partition, which can move where there are two processes."""
    found = {}
    for party, kind in ((GUEST, "guest"), (HOST, "host"), ("", "coordinator")):
        text = SECTIONS.format(name=FEDERATION, seed=plan.seed, kind=kind, optimiser=plan.mode)
        text += PARTY.format(party=party) if party else ""
        found[party or "coordinator"] = Member(
            text + (LABEL if party == GUEST else ""), 2 if party == GUEST else 1
        )
    return found


def predicted(prediction: Mapping[str, Any]) -> str:
    """The entity's name."""
    return str(prediction["entity"])


def check(verdict: Verdict, left: Left) -> None:
    """Every entity scored once, and one training of which each message was said once."""
    entities = {(record.key or b"").decode() for record in left.read(f"samples-{GUEST}")}
    said = [json.loads(record.value or b"") for record in left.of("predictions")]
    # Who was scored before there was a calibration is published once more when there is one.
    found = Counter(
        (predicted(one), one["model"], one["revision"], one["probability"] is None) for one in said
    )
    lost = entities - {predicted(one) for one in said}
    verdict.samples, verdict.lost = len(entities), len(lost)
    verdict.doubled = sum(count - 1 for count in found.values())
    verdict.require(not lost, f"{len(lost)} entities without a prediction: {sorted(lost)[:3]}")
    verdict.require(not verdict.doubled, f"{verdict.doubled} predictions too many: {found.most_common(3)}")
    messages = {topic: messages_of(left, f"{FEDERATION}.{topic}") for topic in SAID}
    told = {topic: Counter((one.kind, one.run, one.round) for one in own) for topic, own in messages.items()}
    twice = [(topic, one) for topic, counts in told.items() for one, count in counts.items() if count > 1]
    verdict.require(not twice, f"said twice: {twice[:3]}")
    places = {
        (topic, kind): {one[1:] for one in told[topic] if one[0] == kind}
        for topic, kinds in SAID.items()
        for kind in kinds
    }
    # Where none of the entities in question was chosen, the host has nothing to answer.
    some = {
        (one.run, one.round)
        for one in messages[f"{HOST}.questions"]
        if one.kind == "chosen" and names_any(one)
    }
    rounds = places[f"{GUEST}.decisions", "step"] | places[f"{HOST}.decisions", "step"]
    for (topic, kind), found_there in places.items():
        if kind in ONCE:
            verdict.require(
                len(found_there) == ONCE[kind], f"{topic}: {kind} is said {len(found_there)} times"
            )
        elif kind in IN_SESSIONS:
            asked = some if kind == "points" else places[f"{HOST}.questions", "chosen"]
            verdict.require(
                found_there == asked, f"{topic}: {kind} in sessions {sorted(found_there ^ asked)[:3]} alone"
            )
        else:
            verdict.require(
                found_there == rounds, f"{topic}: {kind} in rounds {sorted(found_there ^ rounds)[:3]} alone"
            )
    # A host is ready for another training at once; the guest decides when there is one.
    ready = {
        topic: sum(one[0] == "ready" for one in told[topic])
        for topic in (f"{GUEST}.uploads", f"{HOST}.uploads")
    }
    verdict.require(list(ready.values()) == [1, 2], f"ready: {ready}")
    steps = [one for one in messages_of(left, f"{FEDERATION}.{GUEST}.decisions") if one.kind == "step"]
    over = [one.run for one in steps if read_content(one.content, StepDecision).over]
    verdict.require(over == [1], f"trainings that came to their end: {over}")
    verdict.counts |= {"steps": len(steps)}


def names_any(chosen: Message) -> bool:
    """Whether an entity was chosen. The content is sealed: the digest of the set tells."""
    session = msgspec.msgpack.encode((FEDERATION, "scoring", chosen.run, chosen.round, GUEST, HOST))
    return chosen.alignment != set_digest((), session)


SOAK = SoakedSystem(("quasi-newton", "sgd"), members, records, predicted, check)
