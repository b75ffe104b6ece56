"""What a client sends is unbiased: over the draw of the bin, the mean of an upload is the gradient step of
every kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pofmkl.makers import new_client

from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.messages import UPDATE, KernelParameters, ShardVersion, Update
from streamfl.records.samples import Sample

KERNELS, FEATURES, DIMENSION, IN_A_BIN = 5, 6, 3, 2
ETA, PENALTY, XI = 0.4, 0.05, 0.4
RNG = np.random.default_rng(8)
FREQUENCIES = RNG.standard_normal((KERNELS, FEATURES, DIMENSION)) * np.array([0.3, 1, 2, 4, 8])[:, None, None]
THETA = RNG.standard_normal((KERNELS, 2 * FEATURES))
EARLIER = [(RNG.standard_normal(DIMENSION), float(RNG.uniform())) for _ in range(6)]
WINDOW = [(RNG.standard_normal(DIMENSION), float(RNG.uniform())) for _ in range(4)]
Labelled = tuple[NDArray[np.float64], float | None]


class ChosenDraws:
    """Stands in for the client's uniform numbers: ``second`` decides the bin of its second upload."""

    second = 0.5

    def __init__(self, seed: int, *path: Any) -> None:
        pass

    def __getitem__(self, index: int) -> float:
        return self.second if index == 1 else 0.5


def upload(samples: list[Labelled], draw: float, monkeypatch: pytest.MonkeyPatch, one_by_one: bool) -> Update:
    """What an asynchronous client sends for ``samples``, after EARLIER has made its kernels' weights
    unequal."""
    monkeypatch.setattr("streamfl.pofmkl.client.client_registry.UniformSequence", ChosenDraws)
    monkeypatch.setattr(ChosenDraws, "second", draw)
    client = new_client(
        PaperLearner(
            features=FeatureMap(FREQUENCIES), learning_rate=ETA, regularisation=PENALTY, loss=SQUARE
        ),
        clients=1,
        learning={"exploration": XI},
        uplink={"kernels_per_upload": IN_A_BIN},
        encode=lambda prediction: b"",
    )
    client.open(0)
    messages: list[Any] = [
        KernelParameters(VERSION, kernel, encode_array(THETA[kernel])) for kernel in range(KERNELS)
    ]
    messages.append(ShardVersion(VERSION, 0, DIMENSION, 0, 1, 1))
    client.receive(
        [Received("model", message, Record("model", 0, 0, None, b"")) for message in messages], 0.0
    )
    client.receive([received(*sample) for sample in EARLIER], 0.0)
    client.receive([], 1.0)
    if one_by_one:
        for sample in samples:
            client.receive([received(*sample)], 2.0)
    else:
        client.receive([received(*sample) for sample in samples], 2.0)
    (send,) = client.receive([], 3.0)
    assert isinstance(send, Send)
    return UPDATE.decode(send.value)


def received(inputs: NDArray[np.float64], label: float | None) -> Received:
    return Received(
        "samples", Sample("a", "0", tuple(inputs.tolist()), label), Record("samples", 0, 0, b"a", b"")
    )


def features(inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """(4), one kernel after another."""
    phases = [frequencies @ inputs for frequencies in FREQUENCIES]
    return np.array([np.concatenate([np.sin(phase), np.cos(phase)]) for phase in phases]) / np.sqrt(FEATURES)


def gradient(inputs: NDArray[np.float64], label: float) -> NDArray[np.float64]:
    """grad l_i = 2 (f_i - y) z_i + 2 lambda theta_i."""
    z = features(inputs)
    error = (THETA * z).sum(axis=1) - label
    return 2 * error[:, None] * z + 2 * PENALTY * THETA


def bins_and_probabilities() -> tuple[list[NDArray[np.int64]], NDArray[np.float64]]:
    """(7) over EARLIER, then Algorithm 1 and (8)."""
    log_weights = np.zeros(KERNELS)
    for inputs, label in EARLIER:
        f = (THETA * features(inputs)).sum(axis=1)
        log_weights -= ETA * ((f - label) ** 2 + PENALTY * (THETA**2).sum(axis=1))
    weights = np.exp(log_weights)
    order = np.argsort(-weights)
    bins = [order[start : start + IN_A_BIN] for start in range(0, KERNELS, IN_A_BIN)]
    shares = np.array([weights[held].sum() for held in bins]) / weights.sum()
    return bins, (1 - XI) * shares + XI / len(bins)


@pytest.mark.parametrize(("labelled", "one_by_one"), [(1, False), (4, False), (4, True)])
def test_the_mean_upload_is_the_gradient_step(
    labelled: int, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects convergence: a bin drawn after its labels, or divided by another probability, would pull the
    model aside."""
    samples: list[Labelled] = [(WINDOW[0][0], None), *WINDOW[:labelled]]
    _, probabilities = bins_and_probabilities()
    assert probabilities.max() > 1.5 * probabilities.min()
    mean = np.zeros_like(THETA)
    for number, probability in enumerate(probabilities):
        draw = probabilities[:number].sum() + probability / 2
        update = upload(samples, draw, monkeypatch, one_by_one)
        assert update.samples == labelled
        assert update.model_version == 1
        steps = np.frombuffer(update.steps).reshape(len(update.kernels), -1)
        mean[list(update.kernels)] += probability * steps
    expected = ETA * sum(gradient(inputs, label) for inputs, label in WINDOW[:labelled])
    np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-14)
