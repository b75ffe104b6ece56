"""FDSKL: masked sums and a whole federation against their array work, one on a real broker against a bare
loop, and iterations by topology.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
from fdskl.proof.direct import Party, learn
from kafka import KafkaProducer

from benchmarks import end_to_end
from benchmarks.broker import running_broker
from benchmarks.fdskl.federations import federation_of, named, rows_by_iteration, show
from benchmarks.fdskl.iterations import MESSAGE_SECONDS, PARTIES, iteration_times
from benchmarks.figures import Figure, best_seconds, size
from streamfl.contract.channels import TopicSpec
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.section import KernelLearningSection
from streamfl.fdskl.messages import PHASES, FeatureRange, Round
from streamfl.fdskl.sums.circle import to_circle
from streamfl.fdskl.sums.contributions import Contributions
from streamfl.fdskl.sums.frequencies import Frequencies, SpectralDensity
from streamfl.fdskl.sums.keystream import Keystream
from streamfl.runtime.bus import Bus, Outgoing, connect

# A round as predictions have it: so many entities of so many features fit into a record.
ENTITIES, FEATURES, COLUMNS, REPEATS = 120, 2048, 30, size(40, 1)
BANDWIDTH, SECRET = 5.0, b"a secret of this benchmark alone"
SUM_GOAL = 0.5
# A federation in one process: entities, each predicted and then learnt from with the defaults, and the
# columns of each party.
SHOWN, SPLIT, FEDERATION_GOAL = size(6_000, 320), (8, 7, 7), 0.6
# Of the broker: entities that are learnt from, then those that are counted; columns of a party.
LEARNT, COUNTED, BROKER_COLUMNS = 256, size(12_000, 480), 16

_SHARED = """
[federation]
name = "bench"
parties = ["bank", "shop"]
[bus]
url = "{url}"
processing_guarantee = "exactly_once"
[role]
kind = "fdskl-worker"
[standardisation]
first_entities = 128
[learning]
bandwidth = 5.0
window = 256
visits = 16
"""
_PARTY = """
[party]
name = "{party}"
[samples]
topic = "{party}"
features = "{party}"
"""
_LABELS = """
[labels]
topic = "labels"
label = "y"
"""


def measure() -> Iterator[Figure]:
    yield from _masked_sums()
    yield from _in_one_process()
    yield from _iterations()
    yield from _on_a_broker()


def _masked_sums() -> Iterator[Figure]:
    """A party's part of a round, from columns to the numbers that it sends, beside the same without any
    mask."""
    for parties in (2, 4, 8):
        own, alone, cipher = best_seconds(_of_a_round(parties), REPEATS)
        who = f"fdskl, masked sums, q = {parties}"
        yield Figure(f"{who}: phases/s a worker", ENTITIES * FEATURES / own, "1/s")
        yield Figure(f"{who}: against the array work alone", alone / own, "x", goal=SUM_GOAL)
        yield Figure(f"{who}: against the array work and the cipher alone", (alone + cipher) / own, "x")


def _of_a_round(parties: int) -> list[Callable[[int], None]]:
    """A party's part, its array work alone, and its peers' keystreams alone."""
    names = [f"column {number}" for number in range(COLUMNS)]
    rows = np.random.default_rng(0).normal(size=(ENTITIES, COLUMNS))
    entities = [f"entity-{number}" for number in range(ENTITIES)]
    party = {
        "federation": {"name": "bench", "parties": [str(number) for number in range(parties)]},
        "role": {"kind": "fdskl-worker"},
        "party": {"name": "1"},
        "samples": {"topic": "samples", "features": names},
    }
    parts = Contributions(FdsklSettings.model_validate(party), SECRET, "", 0)
    ranges = [FeatureRange(0, FEATURES)]
    announced = Round(VERSION, 0, "bank", [0] * parties, 0, PHASES, BANDWIDTH, ranges, entities)
    secrets = {peer: bytes([peer + 1]) * 32 for peer in range(parties) if peer != 1}
    drawn = Frequencies(SpectralDensity("gaussian", BANDWIDTH), names, 0, SECRET, parties, 1, 0)
    block = np.empty(32_768, np.uint32)

    def whole(number: int) -> None:
        parts.numbers(announced, b"round %d" % number, secrets, rows)

    def array_work(number: int) -> None:
        to_circle(drawn.partial_phases(rows, [(0, FEATURES)]), 32)

    def streams(number: int) -> None:
        for peer in range(parties - 1):
            stream = Keystream(bytes([peer, number]) * 16, 32)
            for start in range(0, ENTITIES * FEATURES, len(block)):
                stream.fill(block[: ENTITIES * FEATURES - start])

    return [whole, array_work, streams]


def _in_one_process() -> Iterator[Figure]:
    """Three parties, their workers and the memory bus, beside the same features, predictions and solves in
    arrays of one table."""
    columns = named({f"p{number}": count for number, count in enumerate(SPLIT)})
    whole = np.random.default_rng(0).normal(size=(SHOWN, sum(SPLIT)))
    labels = (np.sin(2 * whole[:, 0]) + whole[:, 9] * whole[:, 17] > 0).astype(float)
    learning = KernelLearningSection()
    parties = [
        Party(own, rows, bytes([number]) * 32)
        for number, (own, rows) in enumerate(
            zip(columns.values(), np.split(whole, np.cumsum(SPLIT)[:-1], axis=1), strict=True)
        )
    ]
    ours, arrays = [], []
    for _ in range(2):
        with closing(federation_of(columns, whole, labels, standardisation={"columns": False})) as federation:
            began = time.process_time()
            for rows in rows_by_iteration(learning, SHOWN):
                show(federation, rows)
            ours.append(time.process_time() - began)
        began = time.process_time()
        learn(parties, 2 * labels - 1, learning, bits=32)
        arrays.append(time.process_time() - began)
    who = "fdskl, three parties in one process"
    yield Figure(f"{who}: processor time of an entity", 1e6 * min(ours) / SHOWN, "us")
    yield Figure(f"{who}: against the array work alone", min(arrays) / min(ours), "x", goal=FEDERATION_GOAL)


def _iterations() -> Iterator[Figure]:
    for parties in PARTIES:
        times = iteration_times(parties)
        least = min(one.computed for one in times.values())
        for topology, one in times.items():
            who = f"fdskl, {topology}, q = {parties}, an iteration"
            yield Figure(f"{who}: virtual seconds, a message {1000 * MESSAGE_SECONDS:g} ms", one.virtual, "s")
            yield Figure(f"{who}: computing against the least topology's", one.computed / least, "x")


def _on_a_broker() -> Iterator[Figure]:
    """Two parties as processes, from columns to predictions, beside a loop that does one party's array work
    and sends it."""
    with running_broker() as broker, closing(connect(broker.url)) as bus:
        for topic in ("bank", "shop", "labels", "bare", "numbers"):
            bus.create([TopicSpec(topic, 1, False)])
        _write(bus, range(COUNTED), "counted", ("bare",))
        bare = _bare_rate(broker.address, bus)
        own = _federation_rate(broker.url, bus)
    yield Figure(
        "fdskl, on a broker: rows x features/s of a bare loop of one party without masks",
        bare * FEATURES,
        "1/s",
    )
    yield Figure("fdskl, on a broker: rows x features/s of two parties, predicted", own * FEATURES, "1/s")
    yield Figure("fdskl, on a broker: against the bare loop", own / bare, "x")


def _write(bus: Bus, numbers: range, kind: str, topics: tuple[str, ...]) -> None:
    """Columns of these entities, to each of the topics; with a topic of labels, these too."""
    encode = msgspec.json.Encoder().encode
    inputs = np.random.default_rng(1).normal(size=(numbers.stop, len(topics), BROKER_COLUMNS)).round(6)
    records = []
    for number in numbers:
        for topic, row in zip(topics, inputs[number].tolist(), strict=True):
            content = {"y": float(row[0] > 0)} if topic == "labels" else {topic: row}
            records.append(Outgoing(topic, f"{kind}-{number}".encode(), encode(content), 0))
    bus.write(records)


def _bare_rate(address: str, bus: Bus) -> float:
    """Rows a second: phases of each poll, whole numbers in records as large as a round's."""
    generator, decode = np.random.default_rng(0), msgspec.json.Decoder(dict[str, list[float]]).decode
    frequencies = generator.normal(size=(BROKER_COLUMNS, FEATURES)) / BANDWIDTH
    offsets = generator.uniform(0, 2 * math.pi, FEATURES)

    def send_phases(producer: KafkaProducer, records: list[Any]) -> None:
        rows = np.array([decode(record.value)["bare"] for record in records])
        producer.send("numbers", value=to_circle(rows @ frequencies + offsets, 32).tobytes())

    end_to_end.bare_loop(address, "bare", COUNTED, send_phases, ENTITIES)
    found = [(record.timestamp, len(record.value or b"") // (4 * FEATURES)) for record in bus.read("numbers")]
    # What the first record holds was computed before it.
    return (sum(rows for _, rows in found) - found[0][1]) / end_to_end.span([at for at, _ in found])


def _federation_rate(url: str, bus: Bus) -> float:
    """Entities that are predicted by all features a second, once these are learnt."""
    shared = _SHARED.format(url=url)
    sections = [_PARTY.format(party=party) + f"dimension = {BROKER_COLUMNS}\n" for party in ("bank", "shop")]
    probes = 0

    def predicted(kind: str) -> list[tuple[float, int]]:
        """When, and by which version of the model."""
        records = [
            record
            for record in bus.read("bench.predictions")
            if (record.key or b"").startswith(kind.encode())
        ]
        return [(record.timestamp, json.loads(record.value or b"")["model"]) for record in records]

    def learnt() -> bool:
        nonlocal probes
        probes += 1
        _write(bus, range(probes, probes + 1), "probe", ("bank", "shop"))
        return any(version for _, version in predicted("probe"))

    with end_to_end.running([shared + sections[0] + _LABELS, shared + sections[1]]) as wait:
        _write(bus, range(LEARNT), "learnt", ("bank", "shop", "labels"))
        wait(learnt, "a model was learnt")
        _write(bus, range(COUNTED), "counted", ("bank", "shop"))
        wait(lambda: len(predicted("counted")) >= COUNTED, "every entity was predicted")
    times = [at for at, _ in predicted("counted")]
    if len(times) != COUNTED:
        raise RuntimeError(f"{len(times)} predictions were made of {COUNTED} entities")
    return (COUNTED - 1) / end_to_end.span(times)
