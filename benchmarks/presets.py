"""What a sample costs with the default preset, beside the paper's: all that a client does with it,
remembering included."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from benchmarks.client_core import BATCH, DIMENSION, role_of, samples
from benchmarks.federation import client_settings
from benchmarks.figures import Figure, best_seconds, size
from streamfl.contract.role import Received, Send
from streamfl.encoding.wire import encoded_size
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.roles import learner

# Until the latest samples of every client are as many as are kept.
WARM_UP, REPEATS, SENT = size(260, 2), size(30, 1), (1, 5)


def measure() -> Iterator[Figure]:
    batches = [samples(number, BATCH) for number in range(WARM_UP + REPEATS + 1)]
    for kernels in SENT:
        for lockstep in (False, True):
            clients = [new_client(preset, BATCH, kernels, lockstep) for preset in ("default", "paper")]
            for number in range(WARM_UP):
                for client in clients:
                    _step(client, batches[number], number)
            default, paper = best_seconds(
                [partial(_take, client, batches[WARM_UP:]) for client in clients],
                REPEATS,
            )
            name = f"M = {kernels}, {'lockstep' if lockstep else 'async'}"
            yield Figure(f"default preset, {name}: microseconds a sample", default / BATCH * 1e6, "us")
            what = f"default preset, {name}: time a sample against the paper's"
            yield Figure(what, default / paper, "x", 2.0, at_most=True)
        ratio = _bytes_of_an_upload("default", kernels) / _bytes_of_an_upload("paper", kernels)
        what = f"default preset, M = {kernels}: bytes of an upload against the paper's"
        yield Figure(what, ratio, "x", 1.0, at_most=True)


def new_client(preset: str, clients: int, kernels_per_upload: int, lockstep: bool) -> PofmklClient:
    """A client role of this preset with partition 0 open and some parameters."""
    made = learner(client_settings(clients, DIMENSION, preset=preset), DIMENSION)
    client = role_of(made, clients, preset, kernels_per_upload, lockstep)
    client.open(0)
    client.model.parameters[:] = 0.1 * np.random.default_rng(0).normal(size=client.model.parameters.shape)
    return client


def _take(client: PofmklClient, batches: Sequence[Sequence[Received]], number: int) -> None:
    """The batch of this number, after those of the warm-up."""
    _step(client, batches[number], WARM_UP + number)


def _step(client: PofmklClient, batch: Sequence[Received], number: int) -> None:
    # A new version: in lockstep every client may take one sample more.
    client.model.versions = (number + 1,)
    client.receive(batch, number * 0.1)
    client.receive([], number * 0.1)
    deque(client.changed_state(), maxlen=0)


def _bytes_of_an_upload(preset: str, kernels: int) -> float:
    client = new_client(preset, 1, kernels, lockstep=True)
    sent = 0
    for number in range(20):
        client.model.versions = (number + 1,)
        replies = client.receive(samples(number, 1), float(number))
        sent += sum(
            encoded_size(reply.key, reply.value)
            for reply in replies
            if isinstance(reply, Send) and reply.channel == "updates"
        )
    return sent / 20
