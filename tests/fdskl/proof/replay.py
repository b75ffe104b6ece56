"""Computes every iteration again from the equations: each version of the model from the one before and what
it learnt from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from fdskl.proof.oracle import Oracle, RememberedModel
from fdskl.proof.scenario import FdsklScenario
from numpy.typing import NDArray
from scipy.special import expit

from streamfl.testing.faults.observed_messages import require

__all__ = ["check_learning"]

Floats = NDArray[np.float64]
# Newton's features are float32, and so is what it adds to f in each iteration.
CLOSE = 2e-3


def check_learning(
    chosen: FdsklScenario, oracle: Oracle, partition: int, models: dict[int, RememberedModel]
) -> None:
    """Require that each version is what its iteration makes of the version before and of the entities that it
    began with.

    An iteration that was given up may have begun with other entities, so one of all that began has to fit.
    """
    for version, after in models.items():
        before = models.get(version - 1)
        begun = chosen.observed.begun.get((partition, version - 1), [])
        if before is None and version == 1 and begun:
            before = RememberedModel(0, 0, 0, after.bandwidth, 0, np.zeros(0))
        if before is None or not begun:
            continue
        step = _sgd if chosen.settings.learning.solver == "sgd" else _newton
        apart = min(step(chosen, oracle, partition, before, after, entities) for entities in begun)
        require(
            apart <= CLOSE,
            f"partition {partition}: version {version} is {apart:g} from what its iteration makes",
        )


def _sgd(
    chosen: FdsklScenario,
    oracle: Oracle,
    partition: int,
    before: RememberedModel,
    after: RememberedModel,
    entities: list[str],
) -> float:
    """alpha_new = -gamma / (B R) sum_b L'(f(x_b), y_b) phi_new(x_b); all others times (1 - gamma lambda)."""
    learning = chosen.settings.learning
    size, gamma = learning.block_features, learning.step
    if not entities:
        new = np.zeros(size)
    else:
        kept = _features(oracle, partition, before, after, entities, before.first, len(before.alphas))
        added = _features(oracle, partition, before, after, entities, before.next, size)
        new = (
            -gamma
            / added.size
            * added.T
            @ _slope(learning.loss, kept @ before.alphas, _labels(chosen, entities))
        )
    expected = np.concatenate([before.alphas * (1 - gamma * learning.regularisation), new])[
        after.first - before.first :
    ]
    return _apart(after.alphas, expected)


def _newton(
    chosen: FdsklScenario,
    oracle: Oracle,
    partition: int,
    before: RememberedModel,
    after: RememberedModel,
    entities: list[str],
) -> float:
    """(Phi' diag(L'') Phi / n + lambda C I) step = -(Phi' L' / n + lambda C alpha), for one block after
    another."""
    learning = chosen.settings.learning
    size = learning.block_features
    limit = learning.features_limit // size * size
    if not entities:
        return _apart(after.alphas, before.alphas) if len(after.alphas) == len(before.alphas) else 0.0
    labels = _labels(chosen, entities)
    features = _features(oracle, partition, before, after, entities, before.first, after.next - before.first)
    alphas = np.concatenate([before.alphas, np.zeros(after.next - before.next)])
    gone = after.first - before.first
    alphas[:gone] = 0.0
    outputs = features @ alphas
    count = after.cursor - before.cursor
    if len(after.alphas) > len(before.alphas):
        blocks = [before.next + number * size for number in range(count)]
    elif gone:
        others = len(after.alphas) // size - 1
        blocks = [
            before.next,
            *(after.first + (before.cursor + number) % others * size for number in range(count - 1)),
        ]
    else:
        blocks = [before.first + (before.cursor + number) % (limit // size) * size for number in range(count)]
    penalty = learning.regularisation * max(1.0, 1024 / len(entities)) * limit
    apart = 0.0
    for first in blocks:
        part = slice(first - before.first, first - before.first + size)
        phi, own = features[:, part], alphas[part]
        slope, bend = _slope(learning.loss, outputs, labels), _bend(learning.loss, outputs, labels)
        gradient = phi.T @ slope / len(labels) + penalty * own
        hessian = phi.T @ (phi * bend[:, np.newaxis]) / len(labels) + penalty * np.eye(size)
        whole = -np.linalg.solve(hessian, gradient)
        made = after.alphas[first - after.first :][:size] - own
        if blocks.count(first) == 1:
            # The step may have been halved. Where rounding decides that, either is right.
            halves = [
                _apart(made, whole * 2.0**-halved)
                for halved in (range(4) if learning.loss == "logistic" else (0,))
            ]
            apart = max(apart, min(halves))
        alphas[part] = own + made
        outputs = outputs + phi @ made
    return apart


def _features(
    oracle: Oracle,
    partition: int,
    before: RememberedModel,
    after: RememberedModel,
    entities: list[str],
    first: int,
    count: int,
) -> Floats:
    """phi of entities that all parties know, (n, count)."""
    del before
    rows = [next(oracle.features(partition, entity, after, first, count))[2] for entity in entities]
    return np.array(rows).reshape(len(entities), count)


def _labels(chosen: FdsklScenario, entities: list[str]) -> Floats:
    labels = np.array([chosen.labels[entity] for entity in entities])
    return labels if chosen.settings.learning.loss == "square" else 2 * labels - 1


def _slope(loss: str, outputs: Floats, labels: Floats) -> Floats:
    """L' of Table 1."""
    if loss == "square":
        return 2 * (outputs - labels)
    if loss == "logistic":
        return np.asarray(-labels * expit(-labels * outputs))
    return np.asarray(-labels * np.clip(1 - labels * outputs, 0.0, 1.0))


def _bend(loss: str, outputs: Floats, labels: Floats) -> Floats:
    """L''; for the smooth hinge its bound."""
    if loss == "square":
        return np.full(len(outputs), 2.0)
    return np.asarray(expit(outputs) * expit(-outputs)) if loss == "logistic" else np.ones(len(outputs))


def _apart(found: NDArray[Any], expected: NDArray[Any]) -> float:
    if found.shape != expected.shape:
        return math.inf
    return float(np.abs(found - expected).max(initial=0.0) / (1 + np.abs(expected).max(initial=0.0)))
