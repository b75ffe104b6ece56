"""The client's core against the loop that it replaces and against the arithmetic that it cannot avoid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from benchmarks.federation import client_settings
from benchmarks.figures import Figure, best_seconds, size
from streamfl.contract.role import Received, Record
from streamfl.kernels import SQUARE, FeatureMap, frequencies, paper_dictionary
from streamfl.pofmkl.client.given import ClientGiven
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.records.samples import Sample

KERNELS, FREQUENCIES, DIMENSION, BATCH = 51, 100, 16, size(256, 32)
REPEATS, LOOP_SAMPLES = size(40, 1), size(16, 1)
LEARNING_RATE, REGULARISATION = 0.03, 1e-3


def measure() -> Iterator[Figure]:
    directions = frequencies(paper_dictionary(), FREQUENCIES, DIMENSION, seed=0)
    generator = np.random.default_rng(0)
    parameters = generator.normal(size=(KERNELS, 2 * FREQUENCIES)).astype(np.float32)
    batches = [samples(number, BATCH) for number in range(REPEATS + 1)]
    inputs = np.array([received.message.features for received in batches[0]])
    labels = np.array([received.message.label for received in batches[0]])
    asynchronous, lockstep = (new_client(BATCH, directions, lockstep) for lockstep in (False, True))
    shared_directions = frequencies(
        paper_dictionary(), FREQUENCIES, DIMENSION, seed=0, shared_directions=True
    )
    sharing = new_client(BATCH, shared_directions, lockstep=False, shared=True)
    for client in (asynchronous, lockstep, sharing):
        client.model.parameters[:] = parameters
        client.model.squared_norms[:] = np.square(parameters, dtype=np.float64).sum(axis=1)
    loop = _Loop(directions.astype(np.float64), parameters.astype(np.float64), BATCH)
    limit = _Limit(inputs.astype(np.float32), directions)

    def run_lockstep(number: int) -> None:
        # A new round: every client may take one sample more.
        lockstep.model.versions = (number,)
        lockstep.receive(batches[number], number * 0.1)

    seconds = best_seconds(
        (
            lambda number: loop.learn(inputs[:LOOP_SAMPLES], labels[:LOOP_SAMPLES]),
            lambda number: limit.whole(),
            lambda number: limit.blocked(),
            lambda number: _step(asynchronous, batches[number], number * 0.1),
            run_lockstep,
            lambda number: _step(sharing, batches[number], number * 0.1),
        ),
        REPEATS,
    )
    by_loop = seconds[0] / LOOP_SAMPLES * BATCH
    floor = min(seconds[1], seconds[2])
    for name, own in (("async", seconds[3]), ("lockstep", seconds[4])):
        yield Figure(f"client core, {name}: samples/s", BATCH / own, "1/s")
        yield Figure(f"client core, {name}: against the per-sample loop", by_loop / own, "x", goal=60.0)
        yield Figure(
            f"client core, {name}: against product, sine and cosine alone", floor / own, "x", goal=0.8
        )
    yield Figure("client core, async, shared directions: samples/s", BATCH / seconds[5], "1/s")
    yield Figure(
        "client core, async, shared directions: against the per-sample loop", by_loop / seconds[5], "x"
    )


def _step(client: PofmklClient, batch: list[Received], now: float) -> None:
    """What a worker does with a client that has uploads due: the batch, then a tick."""
    client.receive(batch, now)
    client.receive([], now)


def new_client(clients: int, directions: np.ndarray, lockstep: bool, shared: bool = False) -> PofmklClient:
    """A client role with partition 0 open and M = 1."""
    learner = PaperLearner(
        features=FeatureMap(directions, paper_dictionary() if shared else None),
        learning_rate=LEARNING_RATE,
        regularisation=REGULARISATION,
        loss=SQUARE,
    )
    client = role_of(learner, clients, "paper", 1, lockstep)
    client.open(0)
    return client


def role_of(learner: Learner, clients: int, preset: str, kernels: int, lockstep: bool) -> PofmklClient:
    """A client role with this learner, without an open partition. kernels: M."""
    pace: dict[str, Any] = {
        "staleness": "lockstep" if lockstep else "async",
        "catch_up_samples": 0,
        "exploration": 1.0,
    }
    settings = client_settings(clients, DIMENSION, preset=preset, kernels=kernels, **pace)
    given = ClientGiven(learner=learner, fingerprint=0, encode=msgspec.json.Encoder().encode)
    return PofmklClient(settings, given)


def samples(number: int, clients: int, first: int = 0) -> list[Received]:
    """Sample ``number`` of each of ``clients`` clients, counted from ``first``."""
    generator = np.random.default_rng((number, first))
    inputs = generator.random((clients, DIMENSION)).tolist()
    labels = generator.random(clients).tolist()
    batch = []
    for index in range(clients):
        name = f"client-{first + index}"
        offset = number * clients + index
        sample = Sample(name, f"samples-0-{offset}", tuple(inputs[index]), labels[index])
        batch.append(Received("samples", sample, Record("samples", 0, offset, name.encode(), b"")))
    return batch


class _Loop:
    """Equations (4) and (6) to (9) one sample and one kernel at a time, in float64, as the authors' code
    goes: three passes."""

    def __init__(self, directions: np.ndarray, parameters: np.ndarray, clients: int) -> None:
        self.directions, self.parameters = directions, parameters
        self.weights = np.ones((clients, KERNELS))
        self.steps = np.zeros((clients, KERNELS, 2 * FREQUENCIES))
        self.generator = np.random.default_rng(1)

    def learn(self, inputs: np.ndarray, labels: np.ndarray) -> list[float]:
        predictions = []
        for client, (sample, label) in enumerate(zip(inputs, labels, strict=True)):
            features, kernel_predictions = np.empty((KERNELS, 2 * FREQUENCIES)), np.empty(KERNELS)
            for kernel in range(KERNELS):
                phases = self.directions[kernel] @ sample
                features[kernel] = np.concatenate([np.sin(phases), np.cos(phases)]) / np.sqrt(FREQUENCIES)
                kernel_predictions[kernel] = self.parameters[kernel] @ features[kernel]
            weights = self.weights[client]
            predictions.append(float(weights @ kernel_predictions / weights.sum()))
            order = np.argsort(-weights, kind="stable")
            for kernel in range(KERNELS):
                loss = (kernel_predictions[kernel] - label) ** 2
                loss += REGULARISATION * (self.parameters[kernel] @ self.parameters[kernel])
                weights[kernel] *= np.exp(-LEARNING_RATE * loss)
            drawn = order[self.generator.integers(KERNELS)]
            for kernel in range(KERNELS):
                if kernel == drawn:
                    gradient = 2 * (kernel_predictions[kernel] - label) * features[kernel]
                    gradient += 2 * REGULARISATION * self.parameters[kernel]
                    self.steps[client, kernel] += LEARNING_RATE * KERNELS * gradient
        return predictions


class _Limit:
    """The float32 product, sine and cosine of one batch and nothing else, whole and in blocks that fit a
    cache."""

    ROWS = 32

    def __init__(self, inputs: np.ndarray, directions: np.ndarray) -> None:
        self.inputs = inputs
        self.directions = np.ascontiguousarray(directions.reshape(-1, DIMENSION).T)
        self.phases = np.empty((BATCH, KERNELS * FREQUENCIES), np.float32)
        self.sines = np.empty_like(self.phases)

    def whole(self) -> None:
        np.matmul(self.inputs, self.directions, out=self.phases)
        np.sin(self.phases, out=self.sines)
        np.cos(self.phases, out=self.phases)

    def blocked(self) -> None:
        phases, sines = self.phases[: self.ROWS], self.sines[: self.ROWS]
        for start in range(0, BATCH, self.ROWS):
            np.matmul(self.inputs[start : start + self.ROWS], self.directions, out=phases)
            np.sin(phases, out=sines)
            np.cos(phases, out=phases)
