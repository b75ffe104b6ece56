"""Clients whose samples wait for the model go on in the order in which they were registered."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from pofmkl.makers import new_client

from streamfl.contract.role import Received, Record, Rejection, Send
from streamfl.encoding.wire import VERSION
from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.messages import MARKER_KEY, ShardVersion
from streamfl.records.samples import Sample


def samples(names: Iterable[str], first: int) -> list[Received]:
    return [
        Received(
            "samples",
            Sample(name, f"s{number}", (0.1,), 0.5),
            Record("samples", 0, number, name.encode(), b""),
        )
        for number, name in enumerate(names, first)
    ]


def new_model(version: int) -> Received:
    message = ShardVersion(VERSION, 0, 1, 0, version, version)
    return Received("model", message, Record("model", 0, version, MARKER_KEY, b""))


def predicted(replies: Iterable[Send | Rejection]) -> str:
    return "".join(
        (reply.key or b"").decode()
        for reply in replies
        if isinstance(reply, Send) and reply.channel == "predictions"
    )


@pytest.fixture
def client() -> PofmklClient:
    """In lockstep, so that a client's second sample waits for a new model."""
    learner = PaperLearner(
        features=FeatureMap(np.ones((2, 3, 1))), learning_rate=0.1, regularisation=1e-3, loss=SQUARE
    )
    role = new_client(
        learner, clients=5, learning={"staleness": "lockstep"}, uplink={"kernels_per_upload": 1}
    )
    role.open(0)
    assert predicted(role.receive(samples("cabd", 0), 10.0)) == "cabd"
    return role


def test_held_samples_go_on_in_the_order_of_registration(client: PofmklClient) -> None:
    """Protects runs that are compared record by record: the order depends on who was registered when, not on
    whose sample had to wait first."""
    assert predicted(client.receive(samples("bac", 4), 11.0)) == ""
    assert client.waiting == {"samples": 3}
    assert predicted(client.receive([*samples("e", 7), new_model(1)], 12.0)) == "ecab"
    assert client.waiting == {}
    assert not client._labels.pending.held, "a client would count as behind for ever"
    assert predicted(client.receive([new_model(2)], 13.0)) == ""


def test_what_is_forgotten_or_handed_on_is_not_held(client: PofmklClient) -> None:
    """Protects a worker whose partition or client goes away while a sample waits: nothing of it comes back
    with the next model."""
    client.receive(samples("ab", 4), 11.0)
    client.forget("a")
    assert predicted(client.receive([new_model(1)], 12.0)) == "b"
    client.receive(samples("b", 6), 13.0)
    client.close(0)
    client.open(0)
    assert predicted(client.receive([new_model(2)], 14.0)) == ""
