"""POF-MKL under the soak: clients and servers, and the state as of a calm run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from soak.calm import run_calmly, written_again
from soak.subject import PARTITIONS, Left, Member, Plan, SoakedSystem, Verdict, latest

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import Record, StateChange
from streamfl.contract.seeding import rng_for
from streamfl.pofmkl.messages import MARKER_KEY, UPDATE, ShardVersion, SignedVersion, decode_model_record
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import find_kind

__all__ = ["CLIENTS", "FEATURES", "READINGS", "SOAK", "check_counters", "sample"]

READINGS = "soak.readings"
CLIENTS, FEATURES = 10, 5
CONFIGURATION = """
[federation]
name = "soak"
seed = {seed}
clients = {clients}
shards = {shards}
features = {features}
[role]
kind = "{kind}"
[samples]
topic = "{readings}"
features = "x"
label = "y"
label_range = [-2.0, 2.0]
input_norm = 5.0
[learning]
staleness = "{mode}"
# Batches differ from run to run, and with them how sums are rounded.
precision = "float64"
features_per_kernel = 20
round_timeout_seconds = 86400
[kernels]
bandwidths = [0.7, 2.8]
[uplink]
kernels_per_upload = 2
"""
# Places in what is remembered of a client that hold times of this run: of its state's begin, its byte budget,
# and its records. And its predictions without a model, which the release before did not count.
CLIENT_TIMES = (1, 7, 10, 14, 15, 16)
# Samples of one poll are multiplied together, and rounded by how many they are.
TOLERANCE = 1e-6
# Of kept samples: the error of a prediction, which differs by its rounding, in single precision.
KEPT_TOLERANCE = 1e-5


def members(plan: Plan) -> dict[str, Member]:
    """Two processes for the clients, and one for each shard of the model."""
    shards = 2 if plan.nodes > 1 else 1

    def sections(kind: str) -> str:
        return CONFIGURATION.format(
            seed=plan.seed,
            clients=CLIENTS,
            shards=shards,
            features=FEATURES,
            kind=kind,
            readings=READINGS,
            mode=plan.mode,
        )

    return {
        "client": Member(sections("pofmkl-client"), 2),
        "server": Member(sections("pofmkl-server"), shards),
    }


def records(plan: Plan, number: int) -> list[Outgoing]:
    """A sample of one client; clients take turns."""
    client = number % CLIENTS
    return [
        Outgoing(READINGS, b"client-%d" % client, sample(rng_for(plan.seed, "soak", number), client, number))
    ]


def sample(draws: np.random.Generator, client: int, number: int) -> bytes:
    """The value of one sample."""
    inputs = draws.normal(size=FEATURES)
    label = float(np.clip(np.sin(inputs[0]) + 0.5 * inputs[1] + 0.1 * client, -2, 2))
    return json.dumps({"n": number, "x": inputs.tolist(), "y": label}).encode()


def predicted(prediction: Mapping[str, Any]) -> str:
    """The sample's own name."""
    return str(prediction["sample"])


def check(verdict: Verdict, left: Left) -> None:
    """Nothing lost, nothing doubled, and the state as of a calm run; without rounds, as the counters say."""
    check_predictions(verdict, left)
    check_updates(verdict, left)
    if left.plan.mode == "lockstep":
        check_like_calm(verdict, left)
    else:
        topics = left.topics[READINGS], left.of("updates"), left.of("pofmkl-client.state")
        verdict.counts["state_compared"] = check_counters(verdict, left.settings["client"], *topics)


def check_predictions(verdict: Verdict, left: Left) -> None:
    """Each sample has one prediction."""
    expected = {f"{READINGS}-{record.partition}-{record.offset}" for record in left.topics[READINGS]}
    found = Counter(predicted(_content(record)) for record in left.of("predictions"))
    verdict.samples = len(expected)
    verdict.lost = len(expected - found.keys())
    verdict.doubled = sum(count - 1 for count in found.values())
    verdict.require(
        not verdict.lost,
        f"{verdict.lost} samples without a prediction: {sorted(expected - found.keys())[:3]}",
    )
    verdict.require(not verdict.doubled, f"{verdict.doubled} predictions too many: {found.most_common(3)}")
    verdict.require(
        found.keys() <= expected,
        f"predictions of samples that never were: {sorted(found.keys() - expected)[:3]}",
    )


def check_updates(verdict: Verdict, left: Left) -> None:
    """Sequence numbers without gap or repetition, every label in exactly one upload, every upload in the
    model."""
    labels = Counter((record.key or b"").decode() for record in left.topics[READINGS])
    updates = [(record.partition, UPDATE.decode(record.value)) for record in left.of("updates")]
    twice = [
        one for one, count in Counter((p, u.client, u.sequence) for p, u in updates).items() if count > 1
    ]
    verdict.require(not twice, f"updates sent twice: {twice[:3]}")
    uploads = {(update.client, update.sequence): update for _, update in updates}
    for client, count in labels.items():
        own = {sequence: update for (name, sequence), update in uploads.items() if name == client}
        verdict.require(sorted(own) == list(range(1, len(own) + 1)), f"{client}: sequence numbers have gaps")
        verdict.require(
            len({update.epoch for update in own.values()}) == 1, f"{client}: its state began anew"
        )
        told = sum(update.samples for update in own.values())
        verdict.require(told == count, f"{client}: {told} labels in its uploads, {count} were written")
    last: dict[int, ShardVersion] = {}
    for record in left.of("model"):
        found = decode_model_record(record)
        if isinstance(found, (ShardVersion, SignedVersion)):
            last[record.partition] = found.marker if isinstance(found, SignedVersion) else found
    total = 0
    settings: Any = left.settings["server"]
    for shard in range(settings.federation.shards):
        sent = sum(partition == shard for partition, _ in updates)
        applied = last[shard].updates if shard in last else 0
        total += applied
        verdict.require(applied == sent, f"shard {shard}: {applied} updates applied, {sent} sent")
    verdict.counts |= {"updates_sent": len(updates), "updates_applied": total}


def check_counters(
    verdict: Verdict,
    settings: RoleSettings,
    readings: Sequence[Record],
    updates: Sequence[Record],
    state: Sequence[Record],
) -> int:
    """Every client's state, taken back as a restart would, counts every label and every upload. Returns how
    many clients."""
    role: Any = find_kind("pofmkl-client").build(settings)
    for partition in range(PARTITIONS):
        role.open(partition)
    for (partition, key), value in latest(state).items():
        role.restore(StateChange("state", partition, key, value))
    labels = Counter((record.partition, (record.key or b"").decode()) for record in readings)
    uploads: Counter[str] = Counter()
    for record in updates:
        update = UPDATE.decode(record.value)
        uploads[update.client] = max(uploads[update.client], update.sequence)
    clients = role.snapshot()
    verdict.require(clients.keys() == labels.keys(), "other clients are remembered than have sent samples")
    for key, client in clients.items():
        learnt = client.labels
        verdict.require(
            learnt == labels[key], f"{key[1]}: its state has learnt {learnt} of {labels[key]} labels"
        )
        sent = client.uploads_sent
        verdict.require(
            sent == uploads[key[1]], f"{key[1]}: its state has sent {sent} uploads of {uploads[key[1]]}"
        )
    return len(clients)


def check_like_calm(verdict: Verdict, left: Left) -> None:
    """Predictions, model and what clients and server remember: as when the same samples meet no fault at
    all."""
    ordered = sorted(left.topics[READINGS], key=lambda record: _content(record)["n"])
    step = 20 * CLIENTS
    load = [written_again(ordered[start : start + step]) for start in range(0, len(ordered), step)]
    calm = Left(left.plan, left.settings, run_calmly(left.settings, load))
    own = {one["sample"]: one for one in map(_content, left.of("predictions"))}
    for record in calm.of("predictions"):
        expected = _content(record)
        found = own.get(expected["sample"])
        alike = (
            found is not None
            and found["model_version"] == expected["model_version"]
            and np.isclose(found["prediction"], expected["prediction"], rtol=0, atol=TOLERANCE)
        )
        verdict.require(alike, f"predicted {found}, a calm run predicts {expected}")
    compared = equal = 0
    for name in ("model", "pofmkl-client.state"):
        found, expected = latest(left.of(name)), latest(calm.of(name))
        verdict.require(
            found.keys() == expected.keys(),
            f"{name}: other keys: {sorted(found.keys() ^ expected.keys())[:3]}",
        )
        for key in found.keys() & expected.keys():
            one, other = _without_times(key[1], found[key]), _without_times(key[1], expected[key])
            compared += 1
            equal += one == other
            alike = _alike(one, other) or _close_kept(key[1], found[key], expected[key])
            verdict.require(alike, f"{name}, {key}: not as after a calm run")
    verdict.counts |= {"state_compared": compared, "state_bitwise_equal": equal}


def _content(record: Record) -> Any:
    return json.loads(record.value or b"")


def _without_times(key: bytes, value: bytes) -> Any:
    """The fields of what is remembered or published as a row of fields, but for times; else the value."""
    if not key.startswith((b"client/", b"kernel/")) and key != MARKER_KEY:
        return value
    times = CLIENT_TIMES if key.startswith(b"client/") else ()
    return [field for place, field in enumerate(msgspec.msgpack.decode(value)) if place not in times]


def _alike(found: Any, expected: Any) -> bool:
    if isinstance(found, list) and isinstance(expected, list):
        # Fields that a later release added at the end, and that nobody used.
        fewer = min(len(found), len(expected))
        return all(map(_alike, found[:fewer], expected[:fewer])) and not any(
            [*found[fewer:], *expected[fewer:]]
        )
    return bool(found == expected) or _close(found, expected)


def _close_kept(key: bytes, found: Any, expected: Any) -> bool:
    """Whether two kept samples of a client, raw numbers in single precision, are equal up to rounding."""
    name = 2 + int.from_bytes(key[5:7], "big")
    if not key.startswith(b"part/") or key[5 + name : 6 + name] != b"k" or len(found) != len(expected):
        return False
    numbers = [np.frombuffer(content, "<f4") for content in (found, expected)]
    return bool(np.allclose(*numbers, rtol=0, atol=KEPT_TOLERANCE, equal_nan=True))


def _close(found: Any, expected: Any) -> bool:
    """Whether two arrays of raw double precision numbers are equal up to rounding; what is no number has to
    be equal."""
    if (
        not isinstance(found, bytes)
        or not isinstance(expected, bytes)
        or len(found) != len(expected)
        or len(found) % 8
    ):
        return False
    words = [np.frombuffer(content, "<u8") for content in (found, expected)]
    differing = words[0] != words[1]
    numbers = [word.view("<f8")[differing] for word in words]
    # Counters read as floating point are smaller than any number that was computed.
    computed = all(bool(np.all((number == 0) | (np.abs(number) > 1e-200))) for number in numbers)
    return computed and bool(np.allclose(*numbers, rtol=TOLERANCE, atol=TOLERANCE))


SOAK = SoakedSystem(("lockstep", "async"), members, records, predicted, check, turn=CLIENTS)
