"""The laws of a role on the client of POF-MKL with the default learner, whose state is a snapshot, a journal
and a ring."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pofmkl.laws import test_role_laws as pofmkl_laws
from pofmkl.makers import new_client, pace, room

from streamfl.contract.role import BadRecord, Received, Record
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.kernels import LOGISTIC, SQUARE, Loss
from streamfl.learning.own_models import OwnModel
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning import client_journal, local_experts
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.views import ViewedFeatures
from streamfl.pofmkl.messages import UPDATE, KernelParameters, Prediction, ShardVersion, Update
from streamfl.records.imputation import RunningMeans
from streamfl.records.inputs import InputSection
from streamfl.records.samples import Sample, SampleColumns, SampleReader, SamplesSection
from streamfl.testing.role_laws import Extreme, RoleLaws, Subject, Traffic, law_batch_equals_singles

FEATURES, CLIENTS, FINGERPRINT, DIMENSION = 4, 3, 77, 2
BANDWIDTHS = (0.7, 2.8)
VIEWS = {
    2: ("standardised", "centred-lags"),
    4: ("standardised", "centred", "standardised-lags", "centred-lags"),
}
SNAPSHOT_EVERY, RING = 3, 4


@pytest.fixture(autouse=True, scope="module")
def _short_memory() -> Iterator[None]:
    """Snapshots so often and a ring so short that a few samples cross them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_journal, "SNAPSHOT_EVERY", SNAPSHOT_EVERY)
        patch.setattr(local_experts, "MOST_KEPT", RING)
        yield


def client(
    mode: str,
    shards: int,
    loss: Loss,
    views: int,
    missing: bool = False,
    river: Sequence[str | OwnModel] = (),
) -> PofmklClient:
    features = ViewedFeatures(VIEWS[views], BANDWIDTHS, FEATURES, DIMENSION, seed=3, dtype=np.float64)
    patience = {"catch_up_samples": 2 if mode == "behind" else 0, "catch_up_patience_seconds": 2.0}
    return new_client(
        DefaultLearner(features=features, loss=loss, seed=3, river=river),
        clients=CLIENTS,
        federation={"shards": shards},
        learning={**pace(mode), **patience, "exploration": 0.5},
        uplink=room(mode),
        fingerprint=FINGERPRINT,
        means=RunningMeans((0,), (), relative=True) if missing else RunningMeans(),
    )


def arrived(channel: str, partition: int, message: object, key: bytes = b"", at: float = 0.0) -> Received:
    return Received(channel, message, Record(channel, partition, 0, key, b"", timestamp=at))


def model_version(version: int, shards: int, kernels: int) -> list[Received]:
    messages: list[Received] = []
    for shard in range(shards):
        for kernel in range(shard, kernels, shards):
            row = np.random.default_rng([version, kernel]).standard_normal(2 * FEATURES)
            messages.append(arrived("model", shard, KernelParameters(VERSION, kernel, encode_array(row))))
        messages.append(
            arrived("model", shard, ShardVersion(VERSION, FINGERPRINT, DIMENSION, shard, version, version))
        )
    return messages


@st.composite
def traffic(draw: st.DrawFn, shards: int, loss: Loss, views: int, missing: bool = False) -> Traffic:
    """Batches of samples, some unlabelled, with a new model in front of some; many to one client, so that its
    memory overflows."""
    now, version = 1000.0, 0
    labels: st.SearchStrategy[float] = st.floats(-10, 10) if loss is SQUARE else st.sampled_from([0.0, 1.0])
    batches: list[tuple[float, list[Received]]] = []
    for number in range(draw(st.integers(1, 5))):
        now += draw(st.sampled_from([0.0, 0.25, 1.0, 3.0]))
        batch: list[Received] = []
        if draw(st.booleans()):
            # It holds every update: what is counted of those that it lacks is not remembered, and after a
            # restart any will do.
            version += 100
            batch += model_version(version, shards, len(BANDWIDTHS) * views)
        for index in range(draw(st.integers(0, 8))):
            features = (draw(st.floats(-5, 5)), draw(st.floats(-5, 5)))
            if missing and draw(st.booleans()):
                features = (math.nan, 1.0)
            label = draw(st.one_of(st.none(), labels, labels))
            client_number = draw(st.sampled_from([0, 0, 0, 1, 2]))
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


def close(one: object, other: object) -> bool:
    return np.allclose(np.asarray(one), np.asarray(other), rtol=1e-9, atol=1e-9, equal_nan=True)


def close_bytes(one: bytes, other: bytes, dtype: str = "<f8") -> bool:
    return len(one) == len(other) and close(np.frombuffer(one, dtype), np.frombuffer(other, dtype))


def alike(one: object, other: object) -> bool:
    """Equal, but for the rounding of numbers, those that are kept as bytes included."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, bytes) and isinstance(other, bytes):
        return close_bytes(one, other)
    if isinstance(one, float) and isinstance(other, float):
        return close(one, other)
    return one == other


def same_part(kind: bytes, one: bytes, other: bytes) -> bool:
    """A snapshot begins with two whole numbers, an entry of the journal (whole, input, label) with one; all
    else is numbers.

    Kept samples, and models that counted them, are equal.
    """
    if kind == b"s":
        return one[:32] == other[:32] and close_bytes(one[32:], other[32:])
    if kind in (b"i", b"j", b"l"):
        return one[:8] == other[:8] and close_bytes(one[8:], other[8:])
    if kind == b"o":
        return close_bytes(one, other)
    assert kind in (b"k", b"m")
    return one == other


def same(channel: str, key: bytes | None, one: bytes, other: bytes) -> bool:
    if channel == "predictions":
        left, right = (msgspec.json.decode(text, type=Prediction) for text in (one, other))
        return close(left.prediction, right.prediction) and left == msgspec.structs.replace(
            right, prediction=left.prediction
        )
    if channel == "updates":
        left_update, right_update = UPDATE.decode(one), UPDATE.decode(other)
        return close_bytes(left_update.steps, right_update.steps) and _but_steps(left_update) == _but_steps(
            right_update
        )
    if key is not None and key.startswith(b"part/"):
        end = 7 + int.from_bytes(key[5:7], "big")
        return same_part(key[end : end + 1], one, other)
    if key is not None and key.startswith(b"client/"):
        return alike(msgspec.msgpack.decode(one), msgspec.msgpack.decode(other))
    return one == other


def _but_steps(update: Update) -> Update:
    return msgspec.structs.replace(update, steps=b"")


ROW = encode_array(np.ones(2 * FEATURES))
WRONG_MODEL_RECORDS = [
    (arrived("model", 0, message), reason)
    for message, reason in (
        (KernelParameters(VERSION, 100, ROW), "kernel"),
        (KernelParameters(VERSION, 0, ROW[:-8]), "shape"),
        (KernelParameters(VERSION, 0, encode_array(np.full(2 * FEATURES, np.inf))), "not_finite"),
        (ShardVersion(VERSION, FINGERPRINT + 1, DIMENSION, 0, 9, 9), "configuration"),
    )
]
NOT_PROBABLE = (arrived("samples", 0, Sample("client-0", "?", (0.1, 0.2), 0.5), b"client-0"), "label")


def anybody(shards: int, kernels: int, loss: Loss) -> Callable[[Extreme], list[tuple[str, Record]]]:
    """As with the other preset; with the logistic loss labels are not anybody's choice."""

    def records(extreme: Extreme) -> list[tuple[str, Record]]:
        samples = pofmkl_laws.samples_of_anybody(
            extreme, [0.5, extreme.number, 0.25] if loss is SQUARE else [1, 0, 1]
        )
        return [*samples, *pofmkl_laws.model_of_anybody(extreme, shards, kernels, FEATURES), *samples]

    return records


# Records as anybody writes them; the second number, and whether it is there.
MAY_LACK = SampleReader(
    SamplesSection(
        topic="t",
        inputs=[InputSection(field="x[1]", missing="mean", indicator=True)],
        client="client",
        sample_id="id",
        label="y",
    ),
    fills_means=True,
)


def subject(
    mode: str,
    shards: int,
    loss: Loss,
    views: int,
    missing: bool = False,
    river: Sequence[str | OwnModel] = (),
) -> Subject:
    return Subject(
        make=lambda: client(mode, shards, loss, views, missing, river),
        traffic=traffic(shards, loss, views, missing),
        anybody=anybody(shards, len(BANDWIDTHS) * views, loss),
        decode=pofmkl_laws.CLIENT_DECODE | ({"samples": MAY_LACK.decode} if missing else {}),
        bad=[*WRONG_MODEL_RECORDS, *([NOT_PROBABLE] if loss is LOGISTIC else [])],
        repeatable=["model"],
        # Where the model is waited for, so are the bytes, and a sample with them. By another clock other
        # labels share an upload, and the kernels that are drawn for it may all be of one shard.
        paced=["updates", "predictions"] if mode.endswith("budget") else ["updates"] if shards > 1 else [],
        same=same,
        same_restored=same,
        canonical=pofmkl_laws.renumbered,
        together={"samples": SampleColumns.of},
    )


@pytest.mark.parametrize(
    "subject",
    [
        # Each loss and number of views, not each with each: it is the time that they take.
        pytest.param(subject("lockstep", 2, LOGISTIC, 4), id="lockstep-2-logistic-4"),
        pytest.param(subject("lockstep-budget", 2, SQUARE, 2), id="lockstep-budget-2-square-2"),
    ],
)
class TestClient(RoleLaws):
    """A prediction that depends on how samples were polled, or on where a client's snapshot was, would show
    here."""


def not_too_much_at_once(traffic: Traffic) -> Traffic:
    """The same messages in batches of which no client has more than it may learn at once, so that none is
    behind."""
    batches: list[tuple[float, list[Received]]] = []
    for now, batch in traffic.batches:
        counts: Counter[str] = Counter()
        batches.append((now, []))
        for received in batch:
            if received.channel == "samples":
                counts[received.message.client] += 1
                if counts[received.message.client] > 1:
                    counts = Counter([received.message.client])
                    batches.append((now, []))
            batches[-1][1].append(received)
    return Traffic(
        [(now, batch) for (now, batch) in batches if batch or (now, []) in traffic.batches], [0, 1], ["model"]
    )


@pytest.mark.parametrize(
    "subject",
    [pytest.param(subject("behind", 2, SQUARE, 2), id="2")],
)
class TestClientThatIsBehind(RoleLaws):
    """What is learnt when, who waits, and since when nobody answers, would show here if a restart lost it."""

    @given(data=st.data())
    @settings(max_examples=20, deadline=None)
    def test_a_batch_equals_its_messages(self, subject: Subject, data: st.DataObject) -> None:
        """A batch is what is in hand. Where no client has too much of it, how it was polled does not
        matter."""
        law_batch_equals_singles(subject, not_too_much_at_once(data.draw(subject.traffic)))


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(subject("lockstep", 2, SQUARE, 2, missing=True), id="lockstep"),
    ],
)
class TestClientWithMissingInputs(RoleLaws):
    """Means that depend on how samples were polled, that a restart loses, or that waiting samples get late,
    would show here."""


COUNTING = (
    OwnModel("counting", "guest_models:Counting"),
    OwnModel("growing", "guest_models:growing", state_bytes=4),
)


# Nobody waits for the model, or too few labels would be learnt for a model to be remembered.
@pytest.mark.parametrize(
    "subject", [pytest.param(subject("async", 1, SQUARE, 2, river=COUNTING), id="async")]
)
class TestClientWithModelsOfOnesOwn(RoleLaws):
    """A model that is remembered at another sample, or twice, because of how samples were polled, would show
    here."""


def test_parts_of_another_learner_are_refused() -> None:
    """Protects a client whose preset was changed: what is remembered of another learner must not be taken for
    this one's."""
    role, other = client("async", 1, SQUARE, 2), pofmkl_laws.client("async", 1)
    role.open(0)
    other.open(0)
    role.receive(pofmkl_laws.labels_of("a", 0.5), 1000.0)
    first = next(change for change in role.changed_state() if change.key.startswith(b"part/"))
    with pytest.raises(BadRecord, match="preset"):
        other.restore(first)
