"""What has to hold in the end, read from the topics as anybody could: nothing lost, nothing doubled, the state as of a calm run."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from soak.federation import KINDS, PARTITIONS, Federation

from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import MARKER_KEY, SHARD_VERSION, UPDATE
from streamfl.role import Record, StateChange
from streamfl.runtime.bus import Outgoing, connect
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.tasks import POSITION_KEY
from streamfl.settings import Bus, RoleSection, load_settings

__all__ = ["TOPICS", "Verdict", "judge", "judge_topics", "replay"]

TOPICS = ("readings", "predictions", "updates", "model", "pofmkl-client.state", "pofmkl-server.state", "dead-letters")
# Places in what is remembered of a client that hold a time of this run: when its state began and its byte budget was filled.
CLIENT_TIMES = (1, 7, 10)
# Samples of one poll are multiplied together, and rounded by how many they are.
TOLERANCE = 1e-6


@dataclass
class Verdict:
    """samples: in the topic. lost, doubled: predictions. updates: sent, and applied by the model's own count. wrong: what does not
    hold, in words.
    """

    samples: int = 0
    lost: int = 0
    doubled: int = 0
    updates_sent: int = 0
    updates_applied: int = 0
    bitwise_equal_state: int = 0
    compared_state: int = 0
    wrong: list[str] = field(default_factory=list)

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            self.wrong.append(text)


def judge(federation: Federation) -> Verdict:
    """Read everything that the federation left behind and check it; its processes have ended."""
    with closing(connect(federation.url, {})) as bus:
        topics = {name: list(bus.read(f"soak.{name}")) for name in TOPICS}
    verdict = judge_topics(load_settings(federation.configuration, PofmklSettings), topics)
    check_inputs(verdict, federation, topics["readings"])
    return verdict


def judge_topics(settings: PofmklSettings, topics: dict[str, list[Record]]) -> Verdict:
    """What can be said of a federation by its topics, records by the names of :data:`TOPICS`."""
    verdict = Verdict(samples=len(topics["readings"]))
    check_predictions(verdict, topics)
    check_updates(verdict, settings, topics)
    check_positions(verdict, topics)
    if settings.learning.staleness == "lockstep":
        check_like_calm(verdict, settings, topics)
    else:
        check_counters(verdict, settings, topics)
    return verdict


def check_inputs(verdict: Verdict, federation: Federation, readings: list[Record]) -> None:
    """The writer's own account: what was acknowledged is there, once."""
    load = federation.load
    verdict.require(not load.failures, f"{len(load.failures)} samples failed: {load.failures[:1]}")
    places = {(record.partition, record.offset) for record in readings}
    missing = set(load.acknowledged) - places
    verdict.require(not missing, f"{len(missing)} acknowledged samples are not in the topic: {sorted(missing)[:3]}")
    numbers = Counter(json.loads(record.value or b"")["n"] for record in readings)
    verdict.require(sorted(numbers) == list(range(load.written)), f"{len(numbers)} of {load.written} samples are in the topic")
    verdict.require(max(numbers.values(), default=1) == 1, "the writer's samples are doubled")


def check_predictions(verdict: Verdict, topics: dict[str, list[Record]]) -> None:
    expected = {f"soak.readings-{record.partition}-{record.offset}" for record in topics["readings"]}
    found = Counter(json.loads(record.value or b"")["sample"] for record in topics["predictions"])
    verdict.lost = len(expected - found.keys())
    verdict.doubled = sum(count - 1 for count in found.values())
    verdict.require(not verdict.lost, f"{verdict.lost} samples without a prediction: {sorted(expected - found.keys())[:3]}")
    verdict.require(not verdict.doubled, f"{verdict.doubled} predictions too many: {found.most_common(3)}")
    verdict.require(found.keys() <= expected, f"predictions of samples that never were: {sorted(found.keys() - expected)[:3]}")
    verdict.require(not topics["dead-letters"], f"{len(topics['dead-letters'])} dead letters")


def check_updates(verdict: Verdict, settings: PofmklSettings, topics: dict[str, list[Record]]) -> None:
    """Sequence numbers without gap or repetition, every label in exactly one upload, every upload in the model."""
    labels = Counter((record.key or b"").decode() for record in topics["readings"])
    updates = [(record.partition, UPDATE.decode(record.value)) for record in topics["updates"]]
    verdict.updates_sent = len(updates)
    twice = [one for one, count in Counter((p, u.client, u.sequence) for p, u in updates).items() if count > 1]
    verdict.require(not twice, f"updates sent twice: {twice[:3]}")
    uploads = {(update.client, update.sequence): update for _, update in updates}
    for client, count in labels.items():
        own = {sequence: update for (name, sequence), update in uploads.items() if name == client}
        verdict.require(sorted(own) == list(range(1, len(own) + 1)), f"{client}: sequence numbers have gaps")
        verdict.require(len({update.epoch for update in own.values()}) == 1, f"{client}: its state began anew")
        told = sum(update.samples for update in own.values())
        verdict.require(told == count, f"{client}: {told} labels in its uploads, {count} were written")
    last = {record.partition: SHARD_VERSION.decode(record.value) for record in topics["model"] if record.key == MARKER_KEY}
    for shard in range(settings.federation.shards):
        sent = sum(partition == shard for partition, _ in updates)
        applied = last[shard].updates if shard in last else 0
        verdict.updates_applied += applied
        verdict.require(applied == sent, f"shard {shard}: {applied} updates applied, {sent} sent")


def check_positions(verdict: Verdict, topics: dict[str, list[Record]]) -> None:
    """The changelog's own account of the samples that its state reflects."""
    for partition in range(PARTITIONS):
        end = sum(record.partition == partition for record in topics["readings"])
        key = (partition, POSITION_KEY + b"soak.readings")
        value = latest(topics["pofmkl-client.state"], positions=True).get(key, struct.pack("<q", 0))
        verdict.require(value == struct.pack("<q", end), f"partition {partition}: the state reflects {value!r} of {end} samples")


def check_counters(verdict: Verdict, settings: PofmklSettings, topics: dict[str, list[Record]]) -> None:
    """Every client's state, taken back as a restart would, counts every label and every upload."""
    role: Any = find_kind(KINDS[0]).build(settings)
    for partition in range(PARTITIONS):
        role.open(partition)
    for (partition, key), value in latest(topics["pofmkl-client.state"]).items():
        role.restore(StateChange("state", partition, key, value))
    labels = Counter((record.partition, (record.key or b"").decode()) for record in topics["readings"])
    uploads: Counter[str] = Counter()
    for record in topics["updates"]:
        update = UPDATE.decode(record.value)
        uploads[update.client] = max(uploads[update.client], update.sequence)
    clients = role.snapshot()
    verdict.require(clients.keys() == labels.keys(), "other clients are remembered than have sent samples")
    for key, client in clients.items():
        learnt = client.labels
        verdict.require(learnt == labels[key], f"{key[1]}: its state has learnt {learnt} of {labels[key]} labels")
        sent = client.uploads_sent
        verdict.require(sent == uploads[key[1]], f"{key[1]}: its state has sent {sent} uploads of {uploads[key[1]]}")
        verdict.compared_state += 1


def check_like_calm(verdict: Verdict, settings: PofmklSettings, topics: dict[str, list[Record]]) -> None:
    """Predictions, model and what clients and server remember: as when the same samples meet no fault at all."""
    calm = replay(settings, topics["readings"])
    own = {one["sample"]: one for one in map(_content, topics["predictions"])}
    for record in calm.read("soak.predictions"):
        expected = _content(record)
        found = own.get(expected["sample"])
        alike = (
            found is not None
            and found["model_version"] == expected["model_version"]
            and np.isclose(found["prediction"], expected["prediction"], rtol=0, atol=TOLERANCE)
        )
        verdict.require(alike, f"predicted {found}, a calm run predicts {expected}")
    for name in ("model", "pofmkl-client.state"):
        found, expected = latest(topics[name]), latest(calm.read(f"soak.{name}"))
        verdict.require(found.keys() == expected.keys(), f"{name}: other keys: {sorted(found.keys() ^ expected.keys())[:3]}")
        for key in found.keys() & expected.keys():
            one, other = _without_times(key[1], found[key]), _without_times(key[1], expected[key])
            verdict.compared_state += 1
            verdict.bitwise_equal_state += one == other
            verdict.require(_alike(one, other), f"{name}, {key}: not as after a calm run")


def replay(settings: PofmklSettings, readings: list[Record]) -> MemoryBus:
    """One server and one client without faults on the same samples in the same partitions and order."""
    bus = MemoryBus()
    workers = []
    for kind in KINDS:
        own = settings.model_copy(update={"role": RoleSection(kind=kind), "bus": Bus(commit_interval_ms=0)})
        bus.create([replace(topic, partitions=topic.partitions or PARTITIONS) for topic in find_kind(kind).topics(own)])
        workers.append(build_worker(own, bus))
    ordered = sorted(readings, key=lambda record: _content(record)["n"])
    step = 20 * settings.federation.clients
    for start in range(0, len(ordered), step):
        bus.write([Outgoing(one.topic, one.key, one.value, one.partition) for one in ordered[start : start + step]])
        while any(worker.step(0.0) for worker in workers):
            pass
    return bus


def latest(records: Iterable[Record], positions: bool = False) -> dict[tuple[int, bytes], bytes]:
    """What compaction would leave of state, or of a worker's own positions beside it."""
    found: dict[tuple[int, bytes], bytes | None] = {}
    for record in records:
        key = record.key or b""
        if key.startswith(POSITION_KEY) == positions:
            found[record.partition, key] = record.value
    return {key: value for key, value in found.items() if value is not None}


def _content(record: Record) -> Any:
    return json.loads(record.value or b"")


def _without_times(key: bytes, value: bytes) -> Any:
    """The fields of what is remembered or published as a row of fields, but for times; else the value."""
    if not key.startswith((b"client/", b"kernel/")) and key != MARKER_KEY:
        return value
    times = CLIENT_TIMES if key.startswith(b"client/") else ()
    return [field for place, field in enumerate(msgspec.msgpack.decode(value)) if place not in times]


def _alike(found: Any, expected: Any) -> bool:
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return all(map(_alike, found, expected))
    return bool(found == expected) or _close(found, expected)


def _close(found: Any, expected: Any) -> bool:
    """Whether two arrays of raw double precision numbers are equal up to rounding; what is no number has to be equal."""
    if not isinstance(found, bytes) or not isinstance(expected, bytes) or len(found) != len(expected) or len(found) % 8:
        return False
    words = [np.frombuffer(content, "<u8") for content in (found, expected)]
    differing = words[0] != words[1]
    numbers = [word.view("<f8")[differing] for word in words]
    # Counters read as floating point are smaller than any number that was computed.
    computed = all(bool(np.all((number == 0) | (np.abs(number) > 1e-200))) for number in numbers)
    return computed and bool(np.allclose(*numbers, rtol=TOLERANCE, atol=TOLERANCE))

