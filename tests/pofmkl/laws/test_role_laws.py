"""The laws of a role on the client and the server of POF-MKL, over generated traffic with wrong messages in
it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st
from largest_settings import written
from numpy.typing import NDArray
from pofmkl.makers import new_client, new_server, pace, room, staleness

from streamfl.contract.role import BadRecord, Received, Record, Rejection, Send
from streamfl.contract.seeding import uniform
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.messages import (
    MARKER_KEY,
    UPDATE,
    KernelParameters,
    Prediction,
    ShardVersion,
    Update,
    decode_model,
    kernel_key,
)
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.records.samples import Sample, SampleColumns, SampleReader, SamplesSection
from streamfl.testing.role_laws import Extreme, RoleLaws, State, Subject, Traffic, law_batch_equals_singles

KERNELS, FEATURES, CLIENTS, FINGERPRINT, TIMEOUT = 5, 4, 3, 77, 30.0
DIMENSION = 2
FREQUENCIES = np.random.default_rng(4).standard_normal((KERNELS, FEATURES, DIMENSION))


class EachAlone(PaperLearner):
    """A learner whose steps may not be added up."""

    summed = False


def paper(kind: type[PaperLearner] = PaperLearner) -> Learner:
    return kind(features=FeatureMap(FREQUENCIES), learning_rate=0.3, regularisation=1e-2, loss=SQUARE)


def client(
    mode: str, shards: int, waiting_limit: int = 1000, learner: Callable[[], Learner] = paper
) -> PofmklClient:
    role = new_client(
        learner(),
        clients=CLIENTS,
        federation={"shards": shards},
        learning={**pace(mode), "exploration": 0.5},
        uplink=room(mode),
        fingerprint=FINGERPRINT,
    )
    role.waiting_limit = waiting_limit
    return role


def server(lockstep: bool, shards: int) -> PofmklServer:
    return new_server(
        clients=CLIENTS,
        kernels=KERNELS,
        features=FEATURES,
        dimension=DIMENSION,
        fingerprints=(FINGERPRINT,),
        federation={"shards": shards},
        learning={"staleness": staleness(lockstep), "round_timeout_seconds": TIMEOUT, "precision": "float64"},
    )


def model_version(version: int, shards: int) -> list[Received]:
    messages: list[Received] = []
    for shard in range(shards):
        for kernel in range(shard, KERNELS, shards):
            row = np.random.default_rng([version, kernel]).standard_normal(2 * FEATURES)
            messages.append(arrived("model", shard, KernelParameters(VERSION, kernel, encode_array(row))))
        messages.append(
            arrived("model", shard, ShardVersion(VERSION, FINGERPRINT, DIMENSION, shard, version, version))
        )
    return messages


def arrived(channel: str, partition: int, message: Any, key: bytes | None = b"", at: float = 0.0) -> Received:
    return Received(channel, message, Record(channel, partition, 0, key, b"", timestamp=at))


@st.composite
def client_traffic(draw: st.DrawFn, shards: int) -> Traffic:
    """Batches of samples, some of them unlabelled, with a new model in front of some and quiet times
    between."""
    now, version = 1000.0, 0
    batches: list[tuple[float, list[Received]]] = []
    for number in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]))
        batch: list[Received] = []
        if draw(st.booleans()):
            version += 1
            batch += model_version(version, shards)
        for index in range(draw(st.integers(0, 5))):
            features = (draw(st.floats(-1, 1)), draw(st.floats(-1, 1)))
            label = draw(st.one_of(st.none(), st.floats(0, 1), st.floats(0, 1)))
            client_number = draw(st.integers(0, CLIENTS - 1))
            name, partition = f"client-{client_number}", client_number % 2
            batch.append(
                arrived(
                    "samples",
                    partition,
                    Sample(name, f"{number}-{index}", features, label),
                    name.encode(),
                    now,
                )
            )
        batches.append((now, batch))
        if draw(st.booleans()):
            batches.append((now, []))
    return Traffic(batches, partitions=[0, 1], tables=["model"])


@st.composite
def server_traffic(
    draw: st.DrawFn, update: Callable[..., Received], shards: int, rounds: int, others: int
) -> Traffic:
    """Rounds in which clients answer in any order, twice, late or not at all, and times after which a round
    is over.

    update: makes an answer.
    rounds: so many at most.
    others: the most answers of a round beside one of each client.
    """
    now = 1000.0
    batches: list[tuple[float, list[Received]]] = []
    sequences = dict.fromkeys(range(CLIENTS), 0)
    for version in range(draw(st.integers(1, rounds))):
        batch: list[Received] = []
        for index in draw(st.lists(st.integers(0, CLIENTS - 1), max_size=others)) + draw(
            st.permutations(range(CLIENTS))
        ):
            sequences[index] += draw(st.sampled_from([0, 1, 1, 1]))
            for shard in range(shards):
                batch.append(
                    update(
                        index, sequences[index], max(0, version - draw(st.integers(0, 1))), shard, shards, now
                    )
                )
            if draw(st.booleans()):
                batches.append((now, batch))
                batch = []
                now += draw(st.sampled_from([0.0, 1.0, TIMEOUT]))
                if draw(st.booleans()):
                    batches.append((now, []))
        batches.append((now, batch))
    return Traffic(batches, partitions=range(shards))


def update(index: int, sequence: int, version: int, shard: int, shards: int, at: float = 0.0) -> Received:
    rng = np.random.default_rng([index, sequence, shard])
    owned = np.arange(shard, KERNELS, shards)
    kernels = tuple(int(kernel) for kernel in owned[rng.random(len(owned)) < 0.6])
    steps = encode_array(rng.standard_normal((len(kernels), 2 * FEATURES)))
    name = f"client-{index}"
    message = Update(VERSION, FINGERPRINT, DIMENSION, name, 1, sequence, version, 1, kernels, steps)
    return arrived("updates", shard, message, name.encode(), at)


def close(one: Any, other: Any) -> bool:
    """Equal, but for rounding of numbers; bytes are arrays of numbers."""
    if isinstance(one, bytes):
        return len(one) == len(other) and np.allclose(
            np.frombuffer(one), np.frombuffer(other), rtol=1e-9, atol=1e-12
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float):
        return bool(one == pytest.approx(other, rel=1e-9, abs=1e-12))
    return bool(one == other)


def same_of_client(channel: str, key: bytes | None, one: bytes, other: bytes) -> bool:
    if channel == "predictions":
        predictions = (msgspec.json.decode(text, type=Prediction) for text in (one, other))
        return close(*map(msgspec.structs.astuple, predictions))
    if channel == "updates":
        return close(*(msgspec.structs.astuple(UPDATE.decode(value)) for value in (one, other)))
    if key is not None and key.startswith(b"part/"):
        return close(one, other)
    if key is not None and key.startswith(b"client/"):
        return close(msgspec.msgpack.decode(one), msgspec.msgpack.decode(other))
    return one == other


def same_of_server(channel: str, key: bytes | None, one: bytes, other: bytes) -> bool:
    if channel == "model":
        return close(*(msgspec.structs.astuple(decode_model(key, value)) for value in (one, other)))
    if key == b"published":
        # Versions must be the same. Digests are of numbers that differ by rounding, and turns and copies are
        # by the commit.
        return bool(msgspec.msgpack.decode(one)[:3] == msgspec.msgpack.decode(other)[:3])
    return len(one) == len(other) if key is not None and key.startswith(b"copy/") else one == other


def renumbered(state: State) -> State:
    """A restored client counts its waiting samples from the first that is left: only their order has a
    meaning."""
    result: State = {}
    counts: dict[bytes, int] = {}
    for channel, partition, key in sorted(state):
        value = state[channel, partition, key]
        if key.startswith(b"waiting/"):
            name = key[len(b"waiting/") + 8 :]
            counts[name] = counts.get(name, 0) + 1
            result[channel, partition, b"waiting/%d/" % counts[name] + name] = value
        else:
            result[channel, partition, key] = value
    return result


def wrong(**changes: Any) -> Received:
    """A good update to one of one or two shards, with something in it changed."""
    sent = update(1, 1000, 0, 0, 2)
    message = msgspec.structs.replace(sent.message, **changes)
    return Received("updates", message, sent.record)


def steps_of(number: float) -> dict[str, Any]:
    return {"kernels": (0,), "steps": encode_array(np.full((1, 2 * FEATURES), number))}


WRONG_UPDATES = [
    (wrong(kernels=(KERNELS,), steps=bytes(16 * FEATURES)), "kernel"),
    (wrong(steps=bytes(8)), "shape"),
    (wrong(**steps_of(np.nan)), "not_finite"),
    (wrong(**steps_of(1e200)), "not_finite"),
    (wrong(client="somebody-else"), "forged"),
    (wrong(fingerprint=FINGERPRINT + 1), "configuration"),
    (wrong(epoch=2**53), "implausible"),
    (wrong(dimension=DIMENSION + 1), "configuration"),
]

ROW = encode_array(np.ones(2 * FEATURES))
WRONG_MODEL_RECORDS = [
    (arrived("model", 0, message), reason)
    for message, reason in (
        (KernelParameters(VERSION, KERNELS, ROW), "kernel"),
        (KernelParameters(VERSION, -1, ROW), "kernel"),
        (KernelParameters(VERSION, 0, ROW[:-8]), "shape"),
        (KernelParameters(VERSION, 0, encode_array(np.full(2 * FEATURES, np.inf))), "not_finite"),
        (ShardVersion(VERSION, FINGERPRINT + 1, DIMENSION, 0, 9, 9), "configuration"),
    )
]


READER = SampleReader(
    SamplesSection(
        topic="samples", client="client", sample_id="id", features="x", dimension=DIMENSION, label="y"
    )
)
CLIENT_DECODE = {"samples": READER.decode, "model": lambda record: decode_model(record.key, record.value)}
SERVER_DECODE = {"updates": lambda record: UPDATE.decode(record.value)}


def samples_of_anybody(extreme: Extreme, labels: Sequence[float] = ()) -> list[tuple[str, Record]]:
    """Of two clients, each with something extreme in it, more than may be taken on one model. labels:
    three."""
    contents: list[dict[str, object]] = [
        {"client": extreme.name, "id": extreme.name, "x": [0.1, 0.2]},
        {"client": "b", "id": extreme.whole, "x": [extreme.number, extreme.number]},
        {"client": extreme.name, "id": extreme.name[1:] + "?", "x": [0.3, -extreme.number]},
        {"client": extreme.name, "id": 4, "x": [0.1, 0.2]},
    ]
    for content, label in zip(contents, labels, strict=False):
        content["y"] = label
    return [written(extreme.key, content) for content in contents]


def model_of_anybody(extreme: Extreme, shards: int, kernels: int, features: int) -> list[tuple[str, Record]]:
    row = encode_array(np.full(2 * features, extreme.number))
    records = []
    for shard in range(shards):
        for kernel in range(shard, kernels, shards):
            records.append(written(kernel_key(kernel), [VERSION, kernel, row], "model", shard))
        marker = [VERSION, FINGERPRINT, DIMENSION, shard, extreme.whole, extreme.whole]
        records.append(written(MARKER_KEY, marker, "model", shard))
    return records


def clients_of_anybody(shards: int) -> Callable[[Extreme], list[tuple[str, Record]]]:
    """Samples before and after a model, so that some wait and some are taken."""

    def anybody(extreme: Extreme) -> list[tuple[str, Record]]:
        samples = samples_of_anybody(extreme, [0.5, extreme.number, 0.25])
        return [*samples, *model_of_anybody(extreme, shards, KERNELS, FEATURES), *samples]

    return anybody


def updates_of_anybody(shards: int) -> Callable[[Extreme], list[tuple[str, Record]]]:
    """Two clients' updates of the first kernel of each shard."""

    def anybody(extreme: Extreme) -> list[tuple[str, Record]]:
        steps = encode_array(np.full(2 * FEATURES, extreme.number))
        return [
            written(
                name.encode(),
                [
                    VERSION,
                    FINGERPRINT,
                    DIMENSION,
                    name,
                    extreme.whole,
                    extreme.whole,
                    0,
                    extreme.whole,
                    [shard],
                    steps,
                ],
                "updates",
                shard,
            )
            for name in (extreme.name, "b")
            for shard in range(shards)
        ]

    return anybody


def client_subject(mode: str, shards: int) -> Subject:
    return Subject(
        make=lambda: client(mode, shards),
        traffic=client_traffic(shards),
        anybody=clients_of_anybody(shards),
        decode=CLIENT_DECODE,
        bad=WRONG_MODEL_RECORDS,
        # Where the model is waited for, so are the bytes, and a sample with them.
        paced=["updates", "predictions"] if mode.endswith("budget") else [],
        repeatable=["model"],
        same=same_of_client,
        same_restored=same_of_client,
        canonical=renumbered,
        together={"samples": SampleColumns.of},
    )


def server_subject(lockstep: bool, shards: int) -> Subject:
    return Subject(
        make=lambda: server(lockstep, shards),
        traffic=server_traffic(update, shards, rounds=5, others=5),
        anybody=updates_of_anybody(shards),
        decode=SERVER_DECODE,
        bad=WRONG_UPDATES,
        repeatable=["updates"],
        same=same_of_server,
    )


@pytest.mark.parametrize(
    "subject",
    [
        # Not each mode with both numbers of shards: it is the time that they take.
        pytest.param(client_subject(mode, 1 + number % 2), id=f"{mode}-{1 + number % 2}")
        for number, mode in enumerate(["lockstep", "async", "bounded-budget"])
    ],
)
class TestClient(RoleLaws):
    """Lost, doubled or different uploads after a restart, and what a broken server could do, would all show
    here."""


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(server_subject(True, 2), id="lockstep-2"),
        pytest.param(server_subject(False, 1), id="async-1"),
    ],
)
class TestServer(RoleLaws):
    """A model that depends on how updates were polled, on a restart or on a hostile client would show
    here."""


def test_another_version_of_the_protocol_is_named() -> None:
    """Protects mixed releases: their updates must be told apart before anything else of them is read."""
    value = UPDATE.encode(wrong(version=VERSION + 1).message)
    with pytest.raises(BadRecord, match="version"):
        UPDATE.decode(value)


def refused(replies: Sequence[Send | Rejection]) -> list[tuple[Received, str]]:
    return [(reply.received, reply.error.reason) for reply in replies if isinstance(reply, Rejection)]


@pytest.mark.parametrize("mode", ["lockstep", "budget"])
def test_memory_is_bounded(mode: str) -> None:
    """Protects law 6: a client too many is refused, a partition with too much waiting asks for no more."""
    role = client(mode, 1, waiting_limit=10)
    role.open(0)
    names = [f"client-{index}" for index in range(CLIENTS + 1)]
    samples = [
        arrived("samples", 0, Sample(name, str(n), (0.1, 0.2), 0.5), name.encode())
        for n in range(10)
        for name in names
    ]
    strangers = [(sample, "too_many_clients") for sample in samples if sample.message.client == names[-1]]
    assert refused(role.receive(samples, 1000.0)) == strangers
    assert bool(role.full) == (mode == "lockstep")
    crowded = server(mode == "lockstep", 1)
    crowded.open(0)
    # An update of nothing asks for no seat.
    crowd = [one for index in range(50) if (one := update(index, 1, 0, 0, 1)).message.kernels]
    assert [reason for _, reason in refused(crowded.receive(crowd, 1000.0))] == ["too_many_clients"] * (
        len(crowd) - CLIENTS
    )
    remembered = {
        change.key: change.value for change in crowded.changed_state() if change.key.startswith(b"client/")
    }
    assert len(remembered) == CLIENTS


def uploads(replies: Sequence[Send | Rejection]) -> list[Update]:
    return [
        UPDATE.decode(reply.value)
        for reply in replies
        if isinstance(reply, Send) and reply.channel == "updates"
    ]


def labels_of(name: str, *labels: float | None) -> list[Received]:
    return [
        arrived("samples", 0, Sample(name, str(n), (0.1, 0.2), label), name.encode())
        for n, label in enumerate(labels)
    ]


def norms(update: Update) -> NDArray[np.float64]:
    return np.linalg.norm(np.frombuffer(update.steps).reshape(len(update.kernels), -1), axis=1)


def test_steps_that_may_not_be_added_up_travel_alone() -> None:
    """Protects learners whose server needs each sample: an upload a label, at once, its bin from the next
    uniform number."""
    role = client("async", 1, learner=lambda: paper(EachAlone))
    role.open(0)
    sent = uploads(
        role.receive(
            [*labels_of("a", 0.1, None, 0.2), *labels_of("b", 0.3), *labels_of("a", 0.4, 0.5, 0.6)], 1000.0
        )
    )
    # No upload waits for its second. Only a server that stays silent would wake it.
    assert role.wake_at is not None
    assert role.wake_at > 1001.0
    # (8) with equal weights, xi = 0.5 and five kernels in bins of two.
    probabilities = [0.5 * held / KERNELS + 0.5 / 3 for held in (2, 2, 1)]
    edges = np.cumsum(probabilities)
    for name, labels in (("a", [0.1, 0.2, 0.4, 0.5, 0.6]), ("b", [0.3])):
        drawn = np.searchsorted(edges, uniform(len(labels), 1, "bin", name))
        assert len(set(drawn)) > 1 or name == "b"
        own = [update for update in sent if update.client == name]
        assert [(update.sequence, update.samples) for update in own] == [
            (n, 1) for n in range(1, len(labels) + 1)
        ]
        assert [update.kernels for update in own] == [((0, 1), (2, 3), (4,))[number] for number in drawn]
        for update, label, number in zip(own, labels, drawn, strict=True):
            # (9) where the parameters are 0, and z has norm 1.
            assert norms(update) == pytest.approx(0.6 * label / probabilities[number])
    assert uploads(role.receive(labels_of("a", 0.7), 1000.0))[0].sequence == 6


def test_each_upload_of_a_sample_has_its_own_bytes() -> None:
    """Protects the budget where samples travel alone: bytes that are lacking are skipped and counted, or
    waited for."""
    for mode, skipped in (("budget", 3), ("bounded-budget", 0)):
        role = client(mode, 1, learner=lambda: paper(EachAlone))
        role.open(0)
        replies = role.receive(labels_of("a", 0.1, 0.2, 0.3, 0.4), 1000.0)
        assert [update.samples for update in uploads(replies)] == [1]
        assert (
            sum(reply.channel == "predictions" for reply in replies if isinstance(reply, Send)) == 1 + skipped
        )
        assert next(figure.value for figure in role.measure() if figure.name == "skipped_updates") == skipped
        assert role.wake_at is not None
        assert (role.wake_at > 1001.0) == (mode == "budget")
        later = uploads(role.receive(labels_of("a", 0.2) if mode == "budget" else [], 1001.0))
        assert [update.sequence for update in later] == [2]


def test_asking_for_bytes_changes_nothing_that_is_remembered() -> None:
    """Protects law 2 under a byte budget: a label that waits for bytes asked for them after its client had
    been remembered."""
    name = "client-0"
    first = arrived("samples", 0, Sample(name, "0", (0.1, 0.2), 0.5), name.encode())
    unlabelled = arrived("samples", 0, Sample(name, "1", (0.3, 0.2), None), name.encode())
    waiting = arrived("samples", 0, Sample(name, "2", (0.4, 0.2), 0.25), name.encode())
    batches = [(1000.0, [first]), (1000.25, [*model_version(1, 1), unlabelled, waiting])]
    law_batch_equals_singles(client_subject("lockstep-budget", 1), Traffic(batches, [0, 1], ["model"]))
