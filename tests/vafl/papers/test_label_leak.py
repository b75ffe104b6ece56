"""What gradients tell parties about labels, and what noise on them changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from vafl.makers import Alignment, Steps, make_coordinator

from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.learning.accuracy import area_under_curve
from streamfl.records.labels import Label
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.functions.heads import LOGISTIC, Head, NetworkHead, OutputLoss, SumHead
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import REPLY, Embedding
from streamfl.vafl.tools.federation import VerticalFederation

PARTIES = ("a", "b")
# Of a9a.
ROWS = 8_000
ENTITIES = 200


def gradients(
    head: Head, loss: OutputLoss, noise: float, labels: NDArray[Any], size: int, repeats: int = 1
) -> NDArray[np.float64]:
    """What two parties are told of each entity, who show it so many times: (repeats, parties, entities,
    size).

    Embeddings are the same each time, and tell nothing of the label.
    """
    role = make_coordinator(
        parties=PARTIES,
        embedding_size=size,
        head=head,
        loss=loss,
        # Theta_0 stands still, for what is told to be comparable.
        steps=Steps("sgd", 1e-12, 10_000),
        alignment=Alignment(quorum=2, wait_for=2, keep=True),
        gradient_noise=noise,
        noise_secret="5e" * 32,
    )
    role.open(0)
    embeddings = np.random.default_rng(2).normal(size=(len(PARTIES), len(labels), size))
    told = np.full((repeats, *embeddings.shape), np.nan)

    def received(channel: str, message: Any, entity: str) -> Received:
        return Received(channel, message, Record(channel, 0, 0, entity.encode(), b""))

    role.receive(
        [
            received("labels", Label(str(one), str(one), float(label)), str(one))
            for one, label in enumerate(labels)
        ],
        0.0,
    )
    for repeat in range(repeats):
        batch = []
        for number, party in enumerate(PARTIES):
            for one in range(len(labels)):
                sequence = repeat * len(labels) + one + 1
                values = encode_array(embeddings[number, one])
                message = Embedding(VERSION, 0, str(one), 1, sequence, 0, values)
                batch.append(received(f"embeddings/{party}", message, str(one)))
        for reply in role.receive(batch, 0.0):
            assert isinstance(reply, Send), reply
            if reply.channel != "predictions":
                said = REPLY.decode(reply.value)
                number = PARTIES.index(reply.channel.removeprefix("gradients/"))
                told[repeat, number, int(said.entity)] = np.frombuffer(said.gradient)
    assert np.isfinite(told).all()
    return told


HEADS = {
    "sum": SumHead(np.float64),
    "network": NetworkHead(DenseNetwork([2, 4, 1], "tanh", dtype=np.float64)),
}


@pytest.mark.parametrize("kind", HEADS)
def test_repeats_and_other_parties_tell_nothing_more(kind: str) -> None:
    """Protects labels from whoever shows an entity again and again, and from parties that put their gradients
    together: every one of them is the same noisy difference of prediction and label, seen through the head.
    """
    labels = np.random.default_rng(1).integers(0, 2, ENTITIES)
    clean, noisy = (gradients(HEADS[kind], LOGISTIC, noise, labels, 1, 3)[..., 0] for noise in (0.0, 1.0))
    ratios = noisy / clean
    np.testing.assert_allclose(ratios, np.broadcast_to(ratios[0, 0], ratios.shape), rtol=1e-5)
    assert np.abs(ratios[0, 0] - 1).min() > 1e-6


def test_noise_on_gradients_hides_labels_and_leaves_the_model(data: Path, tmp_path: Path) -> None:
    """Protects what the documentation promises of reply_noise: a9a, columns split among two parties, one
    gradient of each entity.

    Without noise the model is that of gradient descent on the joined table, which another test shows, and is
    computed here so."""
    table = np.load(data / "a9a.npz")
    inputs, labels = table["X"], (table["y"] > 0).astype(float)
    tests, truth = table["X_test"], table["y_test"] > 0
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    batch, rate = 64, 0.1
    settings = VaflSettings(
        federation={"name": "leak", "seed": 3, "parties": list(PARTIES), "embedding_size": 1},  # type: ignore[arg-type]
        role={"kind": "simulation"},  # type: ignore[arg-type]
        # The joined table that it is compared with is as it is.
        embedding={"standardise": False},  # type: ignore[arg-type]
        learning={  # type: ignore[arg-type]
            "optimiser": "sgd",
            "learning_rate": rate,
            "batch_size": batch,
            "in_flight": batch,
            "wait_for": 2,
        },
        alignment={"quorum": 2},  # type: ignore[arg-type]
        privacy={"reply_noise": 1.0, "secret_file": str(secret)},  # type: ignore[arg-type]
    )
    order = np.random.default_rng(0).permutation(len(labels))[:ROWS]
    federation = VerticalFederation(settings, [inputs[:, :61], inputs[:, 61:]], labels)
    federation.write_labels(order.tolist())
    federation.replay([order.tolist()] * 2)
    federation.run()
    replies = [REPLY.decode(record.value) for record in federation.bus.read("leak.a.gradients")]
    assert len(replies) == ROWS
    told = np.array([np.frombuffer(reply.gradient, np.float32)[0] for reply in replies])
    area = area_under_curve(-told, labels[[int(reply.entity) for reply in replies]])
    noisy = federation.evaluate([tests[:, :61], tests[:, 61:]], truth.astype(float)).accuracy
    federation.close()
    joined, theta = np.hstack([inputs, np.ones((len(inputs), 2))]), np.zeros(125)
    for begin in range(0, len(order) - batch + 1, batch):
        rows = order[begin : begin + batch]
        theta -= rate * joined[rows].T @ (expit(joined[rows] @ theta) - labels[rows]) / batch
    clean = float(((np.hstack([tests, np.ones((len(tests), 2))]) @ theta > 0) == truth).mean())
    print(
        f"a9a, reply_noise 1: AUC of one gradient {area:.3f}, accuracy {noisy:.4f}, without noise {clean:.4f}"
    )
    # Phi(1 / sqrt(2)), which mu = 1 allows, is 0.760.
    assert area <= 0.76
    assert noisy is not None
    assert noisy >= clean - 0.012
