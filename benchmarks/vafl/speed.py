"""VAFL: a vertical federation against a bare loop, on the memory bus and on a real broker, and each role
against its array work.

With catch_up_samples = 0: all that lies unread is shown at once. One row has the default, with which a party
shows it in step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import msgspec
import numpy as np

from benchmarks import end_to_end
from benchmarks.broker import running_broker
from benchmarks.figures import Figure, best_seconds, size
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import Received, Record, Role
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.learning.optimisers import optimiser_named
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.runtime.bus import Outgoing, Step, Subscription, connect
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.simulation.vertical.federation import VirtualFederation
from streamfl.simulation.vertical.members import HEAD
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.functions.models import embedding_function, head, output_loss
from streamfl.vafl.messages import Embedding, Prediction, Reply
from streamfl.vafl.metrics import PartyMetrics
from streamfl.vafl.party.role import VaflParty
from streamfl.vafl.roles import ROLES
from streamfl.vafl.tools.simulated_members import members

PARTIES = ("bank", "shop", "phone")
# Entities of a round: they are shown by all parties, then labelled.
FEATURES, ENTITIES, ROUNDS, REPEATS, BATCH = 16, size(256, 32), size(8, 1), size(20, 4), 16
HEADS: dict[str, dict[str, Any]] = {
    "sum": {"federation": {"embedding_size": 1}},
    "network": {
        "federation": {"embedding_size": 16},
        "embedding": {"hidden": [32]},
        "head": {"kind": "network", "hidden": [32]},
    },
}

AT_ONCE = "[learning]\ncatch_up_samples = 0\n"
_SHARED = """
[federation]
name = "{name}"
parties = ["bank"]
embedding_size = 1
[bus]
url = "{url}"
processing_guarantee = "exactly_once"
"""
CONFIGURATIONS = (
    _SHARED
    + f"""
[role]
kind = "vafl-party"
[party]
name = "bank"
[samples]
topic = "samples"
features = "x"
dimension = {FEATURES}
""",
    _SHARED
    + """
[role]
kind = "vafl-coordinator"
[labels]
topic = "labels"
label = "y"
""",
)


def measure() -> Iterator[Figure]:
    for kind in HEADS:
        yield from _end_to_end(kind)
    yield from _on_a_broker()
    for kind in HEADS:
        yield from _coordinator(kind)
    for kind in HEADS:
        yield from _party(kind)


def settings(kind: str, role: str) -> VaflSettings:
    """A member of a federation with this head, for labels 0 and 1; all that is not said as it is by
    default."""
    sections = HEADS[kind]
    return VaflSettings.model_validate(
        {
            **sections,
            "federation": {"name": "bench", "parties": list(PARTIES), **sections["federation"]},
            "role": {"kind": role},
            "party": {"name": PARTIES[0]},
            "samples": {"topic": "samples", "features": "x", "dimension": FEATURES},
            "labels": {"topic": "labels", "label": "y"},
            "learning": {"batch_size": BATCH, "catch_up_samples": 0},
        }
    )


def _names(number: int) -> list[str]:
    return [f"entity-{number * ENTITIES + index}" for index in range(ENTITIES)]


def _inputs(number: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of every party, (parties, entities, features)."""
    return np.random.default_rng(number).normal(size=(len(PARTIES), ENTITIES, FEATURES)).round(6)


def _labels(number: int) -> list[float]:
    return [float(one) for one in _inputs(number)[:, :, 0].sum(axis=0) > 0]


class Federation(VirtualFederation[VaflSettings, MemoryBus]):
    """A coordinator and its parties on a memory bus of their own, and what users will write."""

    prediction = Prediction

    def __init__(self, kind: str, rounds: int) -> None:
        inputs = np.concatenate([_inputs(number) for number in range(rounds)], axis=1)
        labels = np.concatenate([_labels(number) for number in range(rounds)])
        shared = settings(kind, "vafl-coordinator")
        super().__init__(shared, lambda clock: MemoryBus(clock=clock), list(inputs), labels)
        for name, own in members(shared.federation, self.columns).items():
            self.workers[name] = self._start(self.settings.model_copy(update=own))

    def run(self) -> None:
        """Every entity shown by all, predicted, labelled and learnt from."""
        for begin in range(0, len(self.labels), ENTITIES):
            rows = range(begin, begin + ENTITIES)
            self.write_samples(rows)
            self._step(*PARTIES, HEAD)
            self.write_labels(rows)
            self._step(HEAD, *PARTIES)

    def learnt(self) -> float:
        """Gradients that parties have learnt from."""
        return sum(self.figure(party, PartyMetrics.gradients) for party in PARTIES)

    def _step(self, *names: str) -> None:
        for name in names:
            self.workers[name].step(0)


class _Bare:
    """The same samples, each sent on as it came."""

    def __init__(self, rounds: int) -> None:
        self._bus = MemoryBus()
        self._bus.create([TopicSpec("samples", 1, False), TopicSpec("bare", 1, False)])
        encode = msgspec.json.Encoder().encode
        self._samples = [
            [
                Outgoing("samples", name.encode(), encode({"x": row}), 0)
                for rows in _inputs(number).tolist()
                for name, row in zip(_names(number), rows, strict=True)
            ]
            for number in range(rounds)
        ]

    def run(self) -> None:
        with closing(self._bus.session(Subscription("bare", ("samples",)))) as session:
            session.poll(0, 1)
            for samples in self._samples:
                self._bus.write(samples)
                records = session.poll(0, 4000).records
                positions = {("samples", 0): records[-1].offset + 1}
                session.commit(
                    Step(
                        positions,
                        [Outgoing("bare", record.key, record.value or b"", 0) for record in records],
                    )
                )


def _end_to_end(kind: str) -> Iterator[Figure]:
    federations = [Federation(kind, ROUNDS) for _ in range(REPEATS // 4 + 1)]
    loops = [_Bare(ROUNDS) for _ in federations]
    bare, own = best_seconds(
        [lambda number: loops[number].run(), lambda number: federations[number].run()], len(federations) - 1
    )
    embeddings = len(PARTIES) * ENTITIES * ROUNDS
    if any(federation.learnt() != embeddings for federation in federations):
        raise RuntimeError(f"not all of {embeddings} embeddings were answered and learnt from")
    yield Figure(f"vafl, {kind} head, all roles in one process: embeddings/s", embeddings / own, "1/s")
    yield Figure(f"vafl, {kind} head, all roles in one process: against the bare loop", bare / own, "x")


def _on_a_broker() -> Iterator[Figure]:
    """A party and the coordinator as processes, from a sample to the gradient that answers its embedding."""
    encode = msgspec.json.Encoder().encode
    inputs = np.random.default_rng(0).normal(size=(end_to_end.SAMPLES, FEATURES)).round(6)
    named = [(f"entity-{number}".encode(), row) for number, row in enumerate(inputs.tolist())]
    with running_broker() as broker, closing(connect(broker.url)) as bus:
        for topic in ("samples", "labels", "bare"):
            bus.create([TopicSpec(topic, end_to_end.PARTITIONS, False)])
        for start in range(0, len(named), 10_000):
            part = named[start : start + 10_000]
            bus.write([Outgoing("samples", name, encode({"x": row})) for name, row in part])
            bus.write([Outgoing("labels", name, encode({"y": float(row[0] > 0)})) for name, row in part])
        bare = end_to_end.bare_rate(broker.address, bus)

        def rate(name: str, more: str) -> float:
            configurations = [text.format(url=broker.url, name=name) + more for text in CONFIGURATIONS]
            return end_to_end.streamfl_rate(f"{name}.bank.gradients", configurations, bus)

        own, in_step = rate("bench", AT_ONCE), rate("in-step", "")
    yield Figure("vafl, sum head, on a broker: embeddings/s answered with a gradient", own, "1/s")
    yield Figure("vafl, sum head, on a broker: against the bare loop", own / bare, "x")
    yield Figure("vafl, sum head, on a broker, catching up in step: embeddings/s", in_step, "1/s")


def _coordinator(kind: str) -> Iterator[Figure]:
    """Embeddings that are predicted from, then labels that are learnt from, beside the same rows as
    arrays."""
    own, batches = settings(kind, "vafl-coordinator"), range(REPEATS + 1)
    role = cast(VaflCoordinator, ROLES["vafl-coordinator"].build(own))
    role.open(0)
    shown = [_embeddings(number, role) for number in batches]
    labelled = [
        [
            _received("labels", Label(name, name, y), name)
            for name, y in zip(_names(number), _labels(number), strict=True)
        ]
        for number in batches
    ]
    function, loss, generator = head(own), output_loss(own), np.random.default_rng(0)
    parameters = function.initial(0)
    optimiser = optimiser_named(own.optimiser, own.head_rate, function.size)
    rows = list(
        generator.normal(size=(len(PARTIES) * ENTITIES, len(PARTIES), role.embedding_size)).astype(np.float32)
    )
    labels = np.array(_labels(0))
    # Without parameters nothing changes between entities, and all of a poll are computed together.
    together = BATCH if function.size else ENTITIES

    def predicted(number: int) -> None:
        loss.prediction(function.forward(parameters, np.stack(rows))[0])

    def learnt(number: int) -> None:
        for start in range(0, ENTITIES, together):
            outputs, done = function.forward(parameters, np.stack(rows[start : start + together]))
            gradient, _ = function.backward(
                parameters, done, loss.gradient(outputs, labels[start : start + together])
            )
            if function.size:
                optimiser.step(parameters, gradient / together, number + 1)

    seconds = best_seconds(
        [
            lambda number: _step(role, shown[number]),
            lambda number: _step(role, labelled[number]),
            predicted,
            learnt,
        ],
        REPEATS,
    )
    yield from _multiples(f"vafl coordinator, {kind} head", "embedding", len(rows), seconds[0], seconds[2])
    yield from _multiples(
        f"vafl coordinator, {kind} head", "entity learnt from", ENTITIES, seconds[1], seconds[3]
    )


def _embeddings(number: int, role: VaflCoordinator) -> list[Received]:
    values = (
        np.random.default_rng(number)
        .normal(size=(len(PARTIES), ENTITIES, role.embedding_size))
        .astype(np.float32)
    )
    return [
        _received(
            f"embeddings/{party}",
            Embedding(
                VERSION, role.fingerprint, name, 1, number * ENTITIES + index + 1, 0, encode_array(row)
            ),
            name,
        )
        for party, rows in zip(PARTIES, values, strict=True)
        for index, (name, row) in enumerate(zip(_names(number), rows, strict=True))
    ]


def _party(kind: str) -> Iterator[Figure]:
    """Samples that are shown, then gradients that are learnt from, beside the same rows as arrays."""
    own, batches = settings(kind, "vafl-party"), range(REPEATS + 1)
    role = cast(VaflParty, ROLES["vafl-party"].build(own))
    role.open(0)
    samples = [
        [
            _received("samples", Sample(name, name, tuple(row), None), name)
            for name, row in zip(_names(number), _inputs(number)[0].tolist(), strict=True)
        ]
        for number in batches
    ]
    generator = np.random.default_rng(0)
    gradients = generator.normal(size=(ENTITIES, role.embedding_size)).astype(np.float32)
    replies = [
        [
            # The first embedding of a life that began at 0 seconds has number 1.
            _received(
                "gradients",
                Reply(
                    VERSION,
                    role.fingerprint,
                    name,
                    0,
                    number * ENTITIES + index + 1,
                    encode_array(gradients[index]),
                ),
                name,
            )
            for index, name in enumerate(_names(number))
        ]
        for number in batches
    ]
    function = embedding_function(own, FEATURES)
    parameters = function.initial(0, "bank")
    optimiser = optimiser_named(own.optimiser, own.party_rate(own.standardise), function.size)
    rows = list(_inputs(0)[0].astype(np.float32))

    def shown(number: int) -> None:
        function.forward(parameters, np.stack(rows))

    def learnt(number: int) -> None:
        for start in range(0, ENTITIES, BATCH):
            done = function.forward(parameters, np.stack(rows[start : start + BATCH]))
            gradient = function.backward(parameters, done, gradients[start : start + BATCH])
            optimiser.step(parameters, gradient / BATCH, number + 1)

    seconds = best_seconds(
        [
            lambda number: _step(role, samples[number]),
            lambda number: _step(role, replies[number]),
            shown,
            learnt,
        ],
        REPEATS,
    )
    yield from _multiples(f"vafl party, {kind} head", "embedding shown", ENTITIES, seconds[0], seconds[2])
    yield from _multiples(
        f"vafl party, {kind} head", "gradient learnt from", ENTITIES, seconds[1], seconds[3]
    )
    if next(one.value for one in role.measure() if one.name == "gradients") != ENTITIES * len(batches):
        raise RuntimeError("not every gradient was learnt from")


def _multiples(who: str, what: str, count: int, own: float, limit: float) -> Iterator[Figure]:
    yield Figure(f"{who}: microseconds a{'n' if what[0] == 'e' else ''} {what}", own / count * 1e6, "us")
    yield Figure(f"{who}, {what}: against its array work alone", own / limit, "x")


def _received(channel: str, message: Any, key: str) -> Received:
    return Received(channel, message, Record(channel, 0, 0, key.encode(), b""))


def _step(role: Role, batch: list[Received]) -> None:
    """What a worker does with a batch, what is to be remembered of it included."""
    role.receive(batch, 0.0)
    deque(role.changed_state(), maxlen=0)
