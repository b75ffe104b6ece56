"""FDSKL under the soak: three parties with columns of their own, one of which has the labels."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec
from soak.subject import FEDERATION, PARTITIONS, Left, Member, Plan, SoakedSystem, Verdict

from streamfl.contract.seeding import rng_for
from streamfl.fdskl.messages import INCARNATION, PARTIAL_SUM, ROUND, identity_of
from streamfl.runtime.bus import Outgoing

__all__ = ["SOAK"]

PARTIES = ("bank", "shop", "phone")
ACTIVE, *OTHERS = PARTIES
LABELS = "labels"
# Samples between an entity and its label.
LATER = 40
SECTIONS = """
[federation]
name = "{name}"
seed = {seed}
parties = ["bank", "shop", "phone"]
[role]
kind = "fdskl-worker"
[party]
name = "{party}"
[samples]
topic = "samples-{party}"
features = ["{party}-0", "{party}-1"]
[learning]
solver = "{solver}"
block_instances = 20
block_features = 8
features_limit = 32
[aggregation]
round_seconds = 6
[alignment]
# What is forgotten, or predicted anew, by the clock depends on how long faults last.
reply_seconds = 5
revise = false
linger_ms = 0
expiry_seconds = 1e6
[standardisation]
first_entities = 4
"""
LABEL = f"""
[labels]
topic = "{LABELS}"
label = "y"
"""


def records(plan: Plan, number: int) -> list[Outgoing]:
    """What the parties see of an entity, and the label of an earlier one."""
    found = []
    for party, inputs in zip(PARTIES, _inputs(plan, number), strict=True):
        content = {f"{party}-{column}": value for column, value in enumerate(inputs)}
        found.append(Outgoing(f"samples-{party}", b"e%d" % number, json.dumps(content).encode()))
    if number >= LATER:
        label = float(sum(map(sum, _inputs(plan, number - LATER))) > 0)
        found.append(Outgoing(LABELS, b"e%d" % (number - LATER), json.dumps({"y": label}).encode()))
    return found


def _inputs(plan: Plan, number: int) -> list[list[float]]:
    inputs: list[list[float]] = rng_for(plan.seed, "soak", number).normal(size=(len(PARTIES), 2)).tolist()
    return inputs


def members(plan: Plan) -> dict[str, Member]:
    """Each party, of which partitions can move at one at least."""
    members = {}
    # In the order of an upgrade.
    for party in (*OTHERS, ACTIVE):
        text = SECTIONS.format(name=FEDERATION, seed=plan.seed, party=party, solver=plan.mode)
        members[party] = Member(
            text + (LABEL if party == ACTIVE else ""), 2 if party == ACTIVE and plan.nodes > 1 else 1
        )
    return members


def predicted(prediction: Mapping[str, Any]) -> str:
    """The entity's name."""
    return str(prediction["entity"])


def check(verdict: Verdict, left: Left) -> None:
    """Every entity predicted once, every label counted once, and what parties told one another."""
    entities = {(record.key or b"").decode() for record in left.read(f"samples-{ACTIVE}")}
    found = Counter(predicted(json.loads(record.value or b"")) for record in left.of("predictions"))
    lost = entities - found.keys()
    verdict.samples, verdict.lost = len(entities), len(lost)
    verdict.doubled = sum(count - 1 for count in found.values())
    verdict.require(not lost, f"{len(lost)} entities without a prediction: {sorted(lost)[:3]}")
    verdict.require(not verdict.doubled, f"{verdict.doubled} predictions too many: {found.most_common(3)}")
    counted = Counter[int]()
    iterations = Counter[int]()
    for (partition, key), value in left.latest(f"{FEDERATION}.{ACTIVE}.state").items():
        if key == b"labels":
            counted[partition] = msgspec.msgpack.decode(value)[0]
        elif key == b"model":
            iterations[partition] = msgspec.msgpack.decode(value)[0]
    written = Counter(record.partition for record in left.read(LABELS))
    verdict.require(
        counted == written, f"labels by partition: {dict(counted)} counted, {dict(written)} written"
    )
    check_lives(verdict, left)
    rounds = check_rounds(verdict, left)
    check_sums(verdict, left, rounds)
    verdict.counts |= {"labels": counted.total(), "iterations": iterations.total()}


def check_lives(verdict: Verdict, left: Left) -> None:
    """Each party tells all others of each of its lives, and no telling is lost or doubled."""
    lives: dict[tuple[str, int, int], dict[str, list[int]]] = defaultdict(
        lambda: {party: [] for party in PARTIES}
    )
    for receiver in PARTIES:
        for record in left.of(f"{receiver}.incarnations"):
            one = INCARNATION.decode(record.value)
            lives[one.sender, record.partition, one.number][receiver].append(one.telling)
    present = {
        (party, partition): msgspec.msgpack.decode(value)[:2]
        for party in PARTIES
        for (partition, key), value in left.latest(f"{FEDERATION}.{party}.state").items()
        if key == b"told"
    }
    for (sender, partition, number), tellings in lives.items():
        last, count = present.get((sender, partition), (0, 0))
        told = [telling for one in tellings.values() for telling in one]
        wanted = count if number == last else len(told)
        heard = {receiver for receiver, one in tellings.items() if one}
        sound = len(told) == len(set(told)) == wanted and len(heard) == len(PARTIES) - 1
        verdict.require(
            sound, f"partition {partition}: of life {number} of {sender} was told {told} to {sorted(heard)}"
        )


def check_rounds(verdict: Verdict, left: Left) -> dict[int, list[bytes]]:
    """Every round is announced to all others, and once. Returns the rounds of each partition, in order."""
    announced: dict[str, dict[int, list[bytes]]] = {}
    for party in OTHERS:
        rounds: dict[int, list[bytes]] = defaultdict(list)
        for record in left.of(f"{party}.rounds"):
            ROUND.decode(record.value)
            rounds[record.partition].append(identity_of(record.value or b"", FEDERATION, record.partition))
        announced[party] = dict(rounds)
    first = announced[OTHERS[0]]
    verdict.require(all(one == first for one in announced.values()), "not all were asked for the same rounds")
    twice = [one for rounds in first.values() for one, count in Counter(rounds).items() if count > 1]
    verdict.require(not twice, f"{len(twice)} rounds were announced twice")
    verdict.counts["rounds"] = sum(map(len, first.values()))
    return first


def check_sums(verdict: Verdict, left: Left, rounds: Mapping[int, list[bytes]]) -> None:
    """No party answers a round twice, or with numbers of another; and the last round, after which nothing
    moved, is whole."""
    answers: Counter[tuple[int, bytes, str]] = Counter()
    contents: Counter[bytes] = Counter()
    for receiver in PARTIES:
        # Whom nobody sends sums to has no topic for them.
        for record in left.topics.get(f"{FEDERATION}.{receiver}.sums", []):
            one = PARTIAL_SUM.decode(record.value)
            answers[record.partition, one.round, one.sender] += 1
            contents[one.values] += 1
    verdict.require(max(answers.values(), default=1) == 1, "a party answered a round twice")
    verdict.require(max(contents.values(), default=1) == 1, "two sums have the same masked numbers")
    for partition in range(PARTITIONS):
        last = rounds.get(partition, [])[-1:]
        missing = [party for party in OTHERS for one in last if not answers[partition, one, party]]
        verdict.require(not missing, f"partition {partition}: the last round has no answer of {missing}")
    verdict.counts["sums"] = answers.total()


SOAK = SoakedSystem(("newton", "sgd"), members, records, predicted, check)
