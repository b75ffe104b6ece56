"""The laws of a role on VAFL's party and coordinator."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vafl.makers import Alignment, Steps, make_coordinator, make_party

from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.records.entities import EntityLabelsSection, EntitySamplesSection
from streamfl.records.labels import Label, LabelReader
from streamfl.records.samples import Sample, SampleReader
from streamfl.testing.role_laws import (
    Extreme,
    RoleLaws,
    Subject,
    Traffic,
    law_accepted_can_be_written,
    law_batch_equals_singles,
)
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.functions.heads import LOGISTIC, NetworkHead, SumHead, softmax_loss
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import EMBEDDING, REPLY, Embedding, Prediction, Reply
from streamfl.vafl.party.role import VaflParty
from streamfl.vafl.privacy import BoundedOutput, Mechanism

FINGERPRINT, INPUTS, SIZE = 77, 2, 2
ENTITIES = [f"e{number}" for number in range(5)]
BEGIN = 1000.0
# The epoch of a partition that is opened at the time of the first batch.
EPOCH = int(BEGIN * 1e6)


def arrived(channel: str, partition: int, message: Any, key: str, now: float) -> Received:
    return Received(channel, message, Record(channel, partition, 0, key.encode(), b"", (), now))


def partition_of(entity: str) -> int:
    return int(entity[1:]) % 2


def party(kind: str) -> VaflParty:
    function: Any = DenseNetwork(
        [INPUTS, 3, SIZE], "tanh", dtype=np.float64, perturbation=0.1 if kind == "private" else 0.0
    )
    mechanism = None
    if kind == "private":
        function = BoundedOutput(function, 1.0, normalise=True)
        mechanism = Mechanism(1.0, 4.0, 1.0, 4.0, budget=1.3, secret="ab")
    return make_party(
        name="a",
        function=function,
        inputs=INPUTS,
        embedding_size=SIZE,
        steps=Steps(
            "adam" if kind == "private" else "adagrad",
            0.1,
            1 if kind == "behind" else 3,
            4 if kind == "paced" else None,
            1e-3,
            grows=kind == "soon",
        ),
        seed=1,
        fingerprint=FINGERPRINT,
        expiry=2.5,
        limit=3,
        waiting_limit=4,
        mechanism=mechanism,
        ledger_limit=2 if kind == "private" else 10,
        catch_up_samples=1 if kind == "behind" else 0,
        catch_up_patience=1.5,
    )


@st.composite
def party_traffic(draw: st.DrawFn, kind: str) -> Traffic:
    """Samples in any order, and gradients and requests for whatever embedding was sent in an earlier
    batch."""
    now = BEGIN
    twin = party(kind)
    for partition in (0, 1):
        twin.open(partition)
    sent: list[Embedding] = []
    batches: list[tuple[float, list[Received]]] = []
    for _ in range(draw(st.integers(1, 6))):
        batch, known = [], len(batches)
        for _ in range(draw(st.integers(0, 7))):
            if not sent or draw(st.booleans()):
                entity = draw(st.sampled_from(ENTITIES))
                features = (draw(st.floats(-3, 3)), draw(st.floats(-3, 3)))
                batch.append(
                    arrived("samples", partition_of(entity), Sample(entity, "s", features, None), entity, now)
                )
            else:
                gradient = (
                    b"" if draw(st.booleans()) else encode_array(np.array([draw(st.floats(-1, 1)), 0.5]))
                )
                shown = draw(st.sampled_from(sent))
                reply = Reply(VERSION, FINGERPRINT, shown.entity, shown.epoch, shown.sequence, gradient)
                batch.append(arrived("gradients", partition_of(shown.entity), reply, shown.entity, now))
        batches.append((now, batch))
        if draw(st.booleans()):
            batches.append((now, []))
        for _, messages in batches[known:]:
            sends = twin.receive(messages, now)
            sent += [EMBEDDING.decode(one.value) for one in sends if isinstance(one, Send)]
        now += draw(st.sampled_from([0.0, 0.5, 3.0]))
    return Traffic(batches, partitions=[0, 1])


def written(channel: str, content: object, key: str = "") -> tuple[str, Record]:
    """JSON of anything that has names, MessagePack of anything else."""
    value = json.dumps(content).encode() if isinstance(content, dict) else msgspec.msgpack.encode(content)
    return channel, Record(channel, 0, 0, key.encode(), value)


SAMPLES = EntitySamplesSection(topic="samples", entity="entity", features="x", dimension=INPUTS)
PARTY_DECODE = {
    "samples": SampleReader(SAMPLES.samples).decode,
    "gradients": lambda record: REPLY.decode(record.value),
}


def to_a_party(extreme: Extreme) -> list[tuple[str, Record]]:
    """Samples of two entities, a gradient and a request of each."""
    name, gradient = extreme.name, encode_array(np.full(SIZE, extreme.number))
    samples = [
        written("samples", {"entity": entity, "x": [extreme.number, extreme.number]}, "k")
        for entity in (name, "b", extreme.whole)
    ]
    replies = [
        written("gradients", [VERSION, FINGERPRINT, entity, epoch, sequence, content], entity)
        for entity, sequence in ((name, 1), ("b", 2), (name, 4))
        for epoch, content in ((extreme.whole, gradient), (EPOCH, b""), (EPOCH, gradient))
    ]
    return [*samples, *replies, *samples]


def close(one: bytes, other: bytes) -> bool:
    left, right = np.frombuffer(one), np.frombuffer(other)
    return left.shape == right.shape and bool(np.allclose(left, right, rtol=1e-9, atol=1e-12))


def alike(one: object, other: object) -> bool:
    """Equal, but for the rounding of numbers, raw ones included."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, bytes) and isinstance(other, bytes):
        return one == other or (len(one) % 8 == 0 and close(one, other))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-9, atol=1e-12))
    return one == other


def same(channel: str, key: bytes | None, one: bytes, other: bytes) -> bool:
    if channel == "predictions":
        left, right = (msgspec.json.decode(text, type=Prediction) for text in (one, other))
        return alike(left.prediction, right.prediction) and left == msgspec.structs.replace(
            right, prediction=left.prediction
        )
    if channel == "state" and key is not None and key.startswith(b"array/"):
        return close(one, other)
    return alike(msgspec.msgpack.decode(one), msgspec.msgpack.decode(other))


def reply(key: str = "e0", fingerprint: int = FINGERPRINT, gradient: bytes | None = None) -> Received:
    gradient = encode_array(np.zeros(SIZE)) if gradient is None else gradient
    return arrived("gradients", 0, Reply(VERSION, fingerprint, "e0", EPOCH, 1, gradient), key, BEGIN)


BAD_REPLIES = [
    (reply(key="e2"), "forged"),
    (reply(fingerprint=FINGERPRINT + 1), "configuration"),
    (reply(gradient=bytes(8)), "shape"),
    (reply(gradient=encode_array(np.array([np.nan, 0.0]))), "not_finite"),
    (reply(gradient=encode_array(np.array([1e300, 0.0]))), "not_finite"),
]


def party_subject(kind: str) -> Subject:
    return Subject(
        make=lambda: party(kind),
        traffic=party_traffic(kind),
        anybody=to_a_party,
        decode=PARTY_DECODE,
        bad=BAD_REPLIES,
        repeatable=["gradients"],
        # Replies are to the epochs of a clock that is right.
        paced=["embeddings"],
        same=same,
    )


@pytest.mark.parametrize(
    "subject", [pytest.param(party_subject(kind), id=kind) for kind in ("soon", "paced", "private")]
)
class TestParty(RoleLaws):
    pass


def one_at_a_time(traffic: Traffic) -> Traffic:
    """The same messages in batches of one sample at most, of which no party is behind."""
    batches: list[tuple[float, list[Received]]] = []
    for now, batch in traffic.batches:
        batches.append((now, []))
        for received in batch:
            if received.channel == "samples" and any(one.channel == "samples" for one in batches[-1][1]):
                batches.append((now, []))
            batches[-1][1].append(received)
    return Traffic(batches, traffic.partitions)


@pytest.mark.parametrize("subject", [pytest.param(party_subject("behind"), id="behind")])
class TestPartyThatIsBehind(RoleLaws):
    """What is waited for, and since when nobody answers, would show here if a restart lost it."""

    @given(data=st.data())
    @settings(max_examples=20, deadline=None)
    def test_a_batch_equals_its_messages(self, subject: Subject, data: st.DataObject) -> None:
        """A batch is what is in hand. Where that is not too much, how it was polled does not matter."""
        law_batch_equals_singles(subject, one_at_a_time(data.draw(subject.traffic)))


PARTIES = ("a", "b", "c")
ALIGNMENTS = {
    "async": Alignment(quorum=2, learning_quorum=2, wait_for=1, expiry=2.5, limit=3),
    "synchronous": Alignment(quorum=1, wait_for=3, expiry=1e6, limit=100, keep=True),
    "bounded": Alignment(
        quorum=1,
        learning_quorum=1,
        wait_for=2,
        max_staleness=1,
        reply_seconds=0.4,
        expiry=1e6,
        limit=100,
        revise=False,
    ),
    # There is room for two entities, and one that is learnt from makes room.
    "crowded": Alignment(quorum=1, learning_quorum=1, expiry=1e6, limit=2),
    # All are waited for, for a time.
    "patient": Alignment(
        quorum=1, max_staleness=1, requests=1, reply_seconds=0.4, expiry=2.5, limit=4, keep=True
    ),
}
# The sum has noise on its labels, and a ledger of them.
HEADS = {
    "async": "sum",
    "synchronous": "network",
    "bounded": "sum",
    "crowded": "network",
    "patient": "network",
}


def coordinator(kind: str, head: str) -> VaflCoordinator:
    network = DenseNetwork([len(PARTIES) * SIZE, 3, SIZE], "tanh", dtype=np.float64)
    return make_coordinator(
        parties=PARTIES,
        embedding_size=SIZE,
        head=SumHead(np.float64) if head == "sum" else NetworkHead(network),
        loss=softmax_loss(SIZE),
        steps=Steps("adam", 0.1, 2, regularisation=1e-3, grows=kind == "patient"),
        alignment=ALIGNMENTS[kind],
        seed=1,
        fingerprint=FINGERPRINT,
        dtype=np.float64,
        gradient_noise=0.1 if head == "sum" else 0.0,
        noise_secret="cd",
        # Each label costs sqrt(2) / 0.1 once: the third life of an entity is over it.
        budget=22.0,
        ledger_limit=2 if kind == "async" else 10,
    )


@st.composite
def coordinator_traffic(draw: st.DrawFn) -> Traffic:
    """Embeddings and labels of a few entities in any order; sequences of a party's partition grow, mostly."""
    now = BEGIN
    sequences: dict[tuple[str, int], int] = {}
    batches: list[tuple[float, list[Received]]] = []
    for _ in range(draw(st.integers(1, 6))):
        batch = []
        for _ in range(draw(st.integers(0, 9))):
            entity = draw(st.sampled_from(ENTITIES))
            place = partition_of(entity)
            if draw(st.integers(0, 3)) == 0:
                batch.append(
                    arrived(
                        "labels", place, Label(entity, entity, float(draw(st.integers(0, 1)))), entity, now
                    )
                )
                continue
            name = draw(st.sampled_from(PARTIES))
            grown = sequences.get((name, place), 0) + draw(st.sampled_from([1, 1, 1, 2, 0]))
            sequences[name, place] = grown
            values = encode_array(np.array([draw(st.floats(-2, 2)), draw(st.floats(-2, 2))]))
            message = Embedding(
                VERSION, FINGERPRINT, entity, draw(st.sampled_from([5, 5, 5, 4])), grown, grown // 2, values
            )
            batch.append(arrived(f"embeddings/{name}", place, message, entity, now))
        batches.append((now, batch))
        if draw(st.booleans()):
            batches.append((now, []))
        now += draw(st.sampled_from([0.0, 0.5, 3.0]))
    return Traffic(batches, partitions=[0, 1])


def embedding(
    key: str = "e0", fingerprint: int = FINGERPRINT, values: bytes | None = None, sequence: int = 10**6
) -> Received:
    values = encode_array(np.zeros(SIZE)) if values is None else values
    message = Embedding(VERSION, fingerprint, "e0", 5, sequence, 0, values)
    return arrived("embeddings/b", 0, message, key, BEGIN)


LABELS = EntityLabelsSection(topic="labels", entity="entity", label="y")
COORDINATOR_DECODE = {
    "labels": LabelReader(LABELS, None).decode,
    **{f"embeddings/{name}": lambda record: EMBEDDING.decode(record.value) for name in PARTIES},
}


def to_a_coordinator(extreme: Extreme) -> list[tuple[str, Record]]:
    """Embeddings of every party of two entities, with the label after the first, then newer ones."""
    name, values = extreme.name, encode_array(np.full(SIZE, extreme.number))

    def embeddings(party: str, sequence: int) -> list[tuple[str, Record]]:
        return [
            written(
                f"embeddings/{party}",
                [VERSION, FINGERPRINT, entity, extreme.whole, sequence + place, version, values],
                entity,
            )
            for place, (entity, version) in enumerate([(name, extreme.whole), ("b", 0)])
        ]

    labels = [written("labels", {"entity": entity, "y": label}) for entity, label in ((name, 1), ("b", 0))]
    first, *others = [embeddings(party, 1) for party in PARTIES]
    again = [embeddings(party, extreme.whole + 3) for party in PARTIES]
    return [*first, *labels, *[record for records in (*others, *again) for record in records]]


BAD_EMBEDDINGS = [
    (embedding(key="e2"), "forged"),
    (embedding(fingerprint=FINGERPRINT + 1), "configuration"),
    (embedding(values=bytes(8)), "shape"),
    (embedding(values=encode_array(np.array([np.inf, 0.0]))), "not_finite"),
    (embedding(values=encode_array(np.array([1e300, 0.0]))), "not_finite"),
    (arrived("labels", 0, Label("e0", "e0", 2.0), "e0", BEGIN), "label"),
    (arrived("labels", 0, Label("e0", "e0", 0.5), "e0", BEGIN), "label"),
]


def coordinator_subject(kind: str) -> Subject:
    return Subject(
        make=lambda: coordinator(kind, HEADS[kind]),
        traffic=coordinator_traffic(),
        anybody=to_a_coordinator,
        decode=COORDINATOR_DECODE,
        bad=BAD_EMBEDDINGS,
        # Of an entity that is forgotten once it was learnt from, a second label is not known to be one.
        repeatable=[f"embeddings/{name}" for name in PARTIES] + (["labels"] if ALIGNMENTS[kind].keep else []),
        same=same,
    )


@pytest.mark.parametrize(
    "subject", [pytest.param(coordinator_subject(kind), id=f"{kind}-{head}") for kind, head in HEADS.items()]
)
class TestCoordinator(RoleLaws):
    # Every kind reads and remembers the same fields. Two are tried below: with a ledger of labels, and with
    # entities that are kept and forgotten.
    test_what_it_accepts_can_be_written = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", ["async", "patient"])
def test_what_a_coordinator_accepts_can_be_written(kind: str) -> None:
    """Protects a coordinator from a message whose results do not fit into a record: it would fail at every
    start."""
    law_accepted_can_be_written(coordinator_subject(kind))


def test_the_logistic_loss_takes_no_other_labels() -> None:
    """Protects a classifier from labels of another scale."""
    assert [LOGISTIC.accepts(label) for label in (0.0, 1.0, 0.5, 2.0, -1.0)] == [
        True,
        True,
        False,
        False,
        False,
    ]
