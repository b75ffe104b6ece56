"""The laws of a role on the client of POF-MKL when labels come on a topic of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st
from largest_settings import written
from pofmkl.laws import test_default_laws as default_laws
from pofmkl.laws import test_role_laws as pofmkl_laws
from pofmkl.laws.test_default_laws import (
    BANDWIDTHS,
    CLIENTS,
    DIMENSION,
    FEATURES,
    FINGERPRINT,
    VIEWS,
    arrived,
    model_version,
)
from pofmkl.makers import new_client, pace, room

from streamfl.contract.role import Received, Record
from streamfl.kernels import LOGISTIC, SQUARE, FeatureMap, Loss, frequencies, grid
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning import client_journal, local_experts
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.learning.views import ViewedFeatures
from streamfl.records.labels import Label, LabelReader, LabelsSection
from streamfl.records.samples import Sample
from streamfl.testing.role_laws import Extreme, RoleLaws, Subject, Traffic

SNAPSHOT_EVERY, RING = 3, 4
# Of the join: so tight that samples and labels are displaced and expire, and so wide that none is.
TIGHT, WIDE = (3, 2.5), (100, 1e6)
KERNELS = 4


@pytest.fixture(autouse=True, scope="module")
def _short_memory() -> Iterator[None]:
    """Snapshots so often and a ring so short that a few samples cross them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_journal, "SNAPSHOT_EVERY", SNAPSHOT_EVERY)
        patch.setattr(local_experts, "MOST_KEPT", RING)
        yield


def learner(preset: str, loss: Loss) -> Learner:
    if preset == "default":
        features = ViewedFeatures(VIEWS[2], BANDWIDTHS, FEATURES, DIMENSION, seed=3, dtype=np.float64)
        return DefaultLearner(features=features, loss=loss, seed=3)
    drawn = frequencies(grid(["gaussian"], [0.3, 0.7, 1.5, 3.0]), FEATURES, DIMENSION, 3, dtype=np.float64)
    return PaperLearner(features=FeatureMap(drawn), learning_rate=0.5, regularisation=0.01, loss=loss)


def client(preset: str, mode: str, shards: int, loss: Loss, kept: tuple[int, float]) -> PofmklClient:
    return new_client(
        learner(preset, loss),
        clients=CLIENTS,
        federation={"shards": shards},
        learning={**pace(mode), "exploration": 0.5},
        uplink=room(mode),
        labels={"limit": kept[0], "expiry_seconds": kept[1]},
        fingerprint=FINGERPRINT,
    )


@st.composite
def traffic(draw: st.DrawFn, shards: int, loss: Loss) -> Traffic:
    """Samples and labels of a few names in any order, so that labels come late, early, twice, never and after
    expiry."""
    now, version = 1000.0, 0
    labels: st.SearchStrategy[float] = st.floats(-10, 10) if loss is SQUARE else st.sampled_from([0.0, 1.0])
    batches: list[tuple[float, list[Received]]] = []
    for _ in range(draw(st.integers(1, 6))):
        now += draw(st.sampled_from([0.0, 0.25, 1.0, 3.0]))
        batch: list[Received] = []
        if draw(st.booleans()):
            version += 1
            batch += model_version(version, shards, KERNELS)
        for _ in range(draw(st.integers(0, 8))):
            client_number = draw(st.sampled_from([0, 0, 0, 1, 2]))
            name = f"client-{client_number}"
            partition = client_number % 2
            identity = f"{draw(st.integers(0, 6))}"
            if draw(st.booleans()):
                features = (draw(st.floats(-5, 5)), draw(st.floats(-5, 5)))
                batch.append(
                    arrived("samples", partition, Sample(name, identity, features, None), name.encode(), now)
                )
            else:
                batch.append(
                    arrived("labels", partition, Label(name, identity, draw(labels)), name.encode(), now)
                )
        batches.append((now, batch))
        if draw(st.booleans()):
            batches.append((now, []))
    return Traffic(batches, partitions=[0, 1], tables=["model"])


def same(channel: str, key: bytes | None, one: bytes, other: bytes) -> bool:
    if key is not None and key.startswith(b"join/") and channel == "state":
        return default_laws.alike(msgspec.msgpack.decode(one), msgspec.msgpack.decode(other))
    return default_laws.same(channel, key, one, other)


NOT_PROBABLE = (arrived("labels", 0, Label("client-0", "0", 0.5), b"client-0"), "label")


LABELS = LabelReader(LabelsSection(topic="labels", client="client", sample_id="id", label="y"), (0.0, 1.0))
DECODE = {**pofmkl_laws.CLIENT_DECODE, "labels": LABELS.decode}


def anybody(shards: int, loss: Loss) -> Callable[[Extreme], list[tuple[str, Record]]]:
    """Samples whose labels come before them, after them, and after the model that they wait for."""

    def records(extreme: Extreme) -> list[tuple[str, Record]]:
        samples = pofmkl_laws.samples_of_anybody(extreme)
        number = extreme.number if loss is SQUARE else 1
        early = [{"client": extreme.name, "id": f"{extreme.name[1:]}!", "y": 1}]
        late = [
            {"client": extreme.name, "id": extreme.name, "y": number},
            {"client": extreme.name, "id": extreme.name[1:] + "?", "y": 1},
            {"client": "b", "id": extreme.whole, "y": number},
        ]
        before, after = (
            [written(extreme.key, label, "labels") for label in labels] for labels in (early, late)
        )
        return [
            *samples[:1],
            *before,
            *samples[1:],
            *after,
            *pofmkl_laws.model_of_anybody(extreme, shards, KERNELS, FEATURES),
        ]

    return records


def subject(preset: str, mode: str, shards: int, loss: Loss, room: tuple[int, float]) -> Subject:
    return Subject(
        make=lambda: client(preset, mode, shards, loss, room),
        traffic=traffic(shards, loss),
        anybody=anybody(shards, loss),
        decode=DECODE,
        bad=[NOT_PROBABLE] if loss is LOGISTIC else [],
        # A label whose pair is forgotten by now is not known again.
        paced=["updates"] if mode.endswith("budget") else [],
        repeatable=["model", "labels"] if room is WIDE else ["model"],
        same=same,
        same_restored=same,
    )


@pytest.mark.parametrize(
    "subject",
    [
        # Not each with each: it is the time that they take.
        pytest.param(subject("paper", "async", 2, SQUARE, WIDE), id="paper-async-2-square"),
        pytest.param(
            subject("default", "lockstep-budget", 1, LOGISTIC, TIGHT), id="default-lockstep-budget-1-logistic"
        ),
    ],
)
class TestClientWithLateLabels(RoleLaws):
    """A label that is lost, learnt twice or learnt with another sample's features would show here."""
