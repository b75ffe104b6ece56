"""The laws of a role (streamfl.role) on the client and the server of POF-MKL, over generated traffic with wrong messages in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.client import Learning, PofmklClient, Uplink
from streamfl.pofmkl.messages import UPDATE, KernelParameters, Prediction, ShardVersion, Update, decode_model
from streamfl.pofmkl.server import PofmklServer
from streamfl.role import PeerError, Received, Record, Rejection, Send
from streamfl.samples import Sample
from streamfl.testing.role_laws import RoleLaws, State, Subject, Traffic
from streamfl.wire import VERSION, encode_array

KERNELS, FEATURES, CLIENTS, FINGERPRINT, TIMEOUT = 5, 4, 3, 77, 30.0
DIMENSION = 2
FREQUENCIES = np.random.default_rng(4).standard_normal((KERNELS, FEATURES, DIMENSION))
MODES = ["lockstep", "bounded", "async", "budget", "lockstep-budget"]


def client(mode: str, shards: int, waiting_limit: int = 1000) -> PofmklClient:
    lockstep = mode.startswith("lockstep")
    ahead = 1 if lockstep else 3 if mode == "bounded" else None
    rate = 400.0 if mode.endswith("budget") else None
    return PofmklClient(
        features=FeatureMap(FREQUENCIES),
        learning=Learning(0.3, 1e-2, 0.5, SQUARE, lockstep=lockstep, samples_per_version=ahead, upload_interval=1.0),
        uplink=Uplink(2 if rate is None else None, rate),
        seed=1,
        clients=CLIENTS,
        shards=shards,
        fingerprint=FINGERPRINT,
        waiting_limit=waiting_limit,
    )


def server(lockstep: bool, shards: int) -> PofmklServer:
    return PofmklServer(
        clients=CLIENTS,
        kernels=KERNELS,
        features=FEATURES,
        shards=shards,
        lockstep=lockstep,
        round_timeout=TIMEOUT,
        fingerprint=FINGERPRINT,
        dtype=np.float64,
    )


def model_version(version: int, shards: int) -> list[Received]:
    messages: list[Received] = []
    for shard in range(shards):
        for kernel in range(shard, KERNELS, shards):
            row = np.random.default_rng([version, kernel]).standard_normal(2 * FEATURES)
            messages.append(arrived("model", shard, KernelParameters(VERSION, kernel, encode_array(row))))
        messages.append(arrived("model", shard, ShardVersion(VERSION, FINGERPRINT, DIMENSION, shard, version, version)))
    return messages


def arrived(channel: str, partition: int, message: Any, key: bytes | None = b"", at: float = 0.0) -> Received:
    return Received(channel, message, Record(channel, partition, 0, key, b"", timestamp=at))


@st.composite
def client_traffic(draw: st.DrawFn, shards: int) -> Traffic:
    """Batches of samples, some of them unlabelled, with a new model in front of some and quiet times between."""
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
            batch.append(arrived("samples", partition, Sample(name, f"{number}-{index}", features, label), name.encode(), now))
        batches.append((now, batch))
        if draw(st.booleans()):
            batches.append((now, []))
    return Traffic(batches, partitions=[0, 1], tables=["model"])


@st.composite
def server_traffic(draw: st.DrawFn, shards: int) -> Traffic:
    """Rounds in which clients answer in any order, twice, late or not at all, and times after which a round is over."""
    now = 1000.0
    batches: list[tuple[float, list[Received]]] = []
    sequences = dict.fromkeys(range(CLIENTS), 0)
    for version in range(draw(st.integers(1, 5))):
        batch: list[Received] = []
        for index in draw(st.lists(st.integers(0, CLIENTS - 1), max_size=5)) + draw(st.permutations(range(CLIENTS))):
            sequences[index] += draw(st.sampled_from([0, 1, 1, 1]))
            for shard in range(shards):
                batch.append(update(index, sequences[index], max(0, version - draw(st.integers(0, 1))), shard, shards, now))
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
        return len(one) == len(other) and np.allclose(np.frombuffer(one), np.frombuffer(other), rtol=1e-9, atol=1e-12)
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
    if key is not None and key.startswith(b"weights/"):
        return close(one, other)
    if key is not None and key.startswith((b"client/", b"window/")):
        return close(msgspec.msgpack.decode(one), msgspec.msgpack.decode(other))
    return one == other


def same_of_server(channel: str, key: bytes | None, one: bytes, other: bytes) -> bool:
    if channel == "model":
        return close(*(msgspec.structs.astuple(decode_model(key, value)) for value in (one, other)))
    return one == other


def renumbered(state: State) -> State:
    """A restored client counts its waiting samples from the first that is left: only their order has a meaning."""
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
    (wrong(model_version=10_000), "malformed"),
    (wrong(dimension=0), "malformed"),
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


def client_subject(mode: str, shards: int) -> Subject:
    return Subject(
        make=lambda: client(mode, shards),
        traffic=client_traffic(shards),
        bad=WRONG_MODEL_RECORDS,
        repeatable=["model"],
        same=same_of_client,
        same_restored=same_of_client,
        canonical=renumbered,
    )


def server_subject(lockstep: bool, shards: int) -> Subject:
    return Subject(
        make=lambda: server(lockstep, shards),
        traffic=server_traffic(shards),
        bad=WRONG_UPDATES,
        repeatable=["updates"],
        same=same_of_server,
    )


@pytest.mark.parametrize(
    "subject",
    [pytest.param(client_subject(mode, shards), id=f"{mode}-{shards}") for mode in MODES for shards in (1, 2)],
)
class TestClient(RoleLaws):
    """Lost, doubled or different uploads after a restart, and what a broken server could do, would all show here."""


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(server_subject(lockstep, shards), id=f"{'lockstep' if lockstep else 'async'}-{shards}")
        for lockstep in (True, False)
        for shards in (1, 2)
    ],
)
class TestServer(RoleLaws):
    """A model that depends on how updates were polled, on a restart or on a hostile client would show here."""


def test_another_version_of_the_protocol_is_named() -> None:
    """Protects mixed releases: their updates must be told apart before anything else of them is read."""
    value = UPDATE.encode(wrong(version=VERSION + 1).message)
    with pytest.raises(PeerError, match="version"):
        UPDATE.decode(value)


def refused(replies: Sequence[Send | Rejection]) -> list[tuple[Received, str]]:
    return [(reply.received, reply.error.reason) for reply in replies if isinstance(reply, Rejection)]


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_bounded(mode: str) -> None:
    """Protects law 6: a client too many is refused, a partition with too much waiting asks for no more."""
    role = client(mode, 1, waiting_limit=10)
    role.open(0)
    names = [f"client-{index}" for index in range(CLIENTS + 1)]
    samples = [arrived("samples", 0, Sample(name, str(n), (0.1, 0.2), 0.5), name.encode()) for n in range(10) for name in names]
    strangers = [(sample, "too_many_clients") for sample in samples if sample.message.client == names[-1]]
    assert refused(role.receive(samples, 1000.0)) == strangers
    assert bool(role.full) == (mode in ("lockstep", "bounded", "lockstep-budget"))
    crowded = server(mode.startswith("lockstep"), 1)
    crowded.open(0)
    crowd = [update(index, 1, 0, 0, 1) for index in range(50)]
    assert [reason for _, reason in refused(crowded.receive(crowd, 1000.0))] == ["too_many_clients"] * (50 - CLIENTS)
    remembered = {change.key: change.value for change in crowded.changed_state() if change.key.startswith(b"client/")}
    assert len(remembered) == CLIENTS
