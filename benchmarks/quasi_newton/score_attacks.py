"""What scores in operation tell the guest of a host's columns and weights: points are x_A'w_A, rounded to a
quantum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.attacks import Attack
from benchmarks.commands import Floats
from benchmarks.quasi_newton.gradient_attacks import HOST, Federation, fixed, make
from streamfl.quasi_newton.learning.descent import DescentSettings

QUANTUM, COARSE = 1 / 64, 1 / 4
LEARNING = DescentSettings(batch=300, memory=24, epochs=10)


@cache
def _federation() -> Federation:
    return make(6_000, 1_500)


@cache
def versions(count: int) -> Floats:
    """The host's weights in so many versions of the model, each trained on newer batches: (versions,
    columns)."""
    return np.array([trace.model[HOST] for trace in fixed(_federation(), LEARNING, retrainings=count - 1)])


def points(inputs: Floats, weights: Floats, quantum: float) -> Floats:
    """What the guest is told. quantum: 0 for exact numbers."""
    outputs = inputs @ weights
    return np.rint(outputs / quantum) * quantum if quantum else outputs


def explained(found: Floats, truth: Floats) -> float:
    """Share of the truth's variance about its mean that is found; 0 where a guess of the mean is better."""
    return max(0.0, 1 - float(np.sum((found - truth) ** 2) / np.sum((truth - truth.mean(axis=0)) ** 2)))


def columns_from_versions(count: int, quantum: float) -> float:
    """Share of the columns' variance found by who knows the weights of so many versions, and the points of
    each.

    Columns have mean 0 and deviation 1, as after preprocessing: the attacker knows that, and how the quantum
    rounds.
    """
    inputs, weights = _federation().host, versions(count)
    told = points(inputs, weights.T, quantum)
    ridge = quantum**2 / 12 + 1e-12
    found = np.linalg.solve(weights.T @ weights + ridge * np.eye(weights.shape[1]), weights.T @ told.T).T
    return explained(found.astype(np.float64), inputs)


def weights_from_customers(count: int, quantum: float) -> float:
    """Share of another customer's output's variance that is explained by weights found from so many
    customers' columns."""
    inputs, weights = _federation().host, versions(1)[0]
    told = points(inputs[:count], weights, quantum)
    found = np.linalg.lstsq(inputs[:count], told, rcond=None)[0]
    return explained(inputs[count:] @ found, inputs[count:] @ weights)


def columns_of_a_customer(folder: Path) -> Iterator[Attack]:
    """One equation for a customer's columns from each version."""
    columns = _federation().host.shape[1]
    by, figure = "the guest, if it knows the weights", "share of the columns' variance"
    exact = columns_from_versions(columns, 0.0)
    name = f"points of {columns} versions, {columns} columns"
    for quantum in (QUANTUM, COARSE):
        found = columns_from_versions(columns, quantum)
        yield Attack(name, by, figure, exact, f"points rounded to 1/{1 / quantum:.0f}", found, chance=0.0)
    few = columns_from_versions(3, QUANTUM)
    yield Attack(name, by, figure, exact, f"3 versions, rounded to 1/{1 / QUANTUM:.0f}", few, chance=0.0)


def weights_of_the_host(folder: Path) -> Iterator[Attack]:
    """One equation for the weights from each customer whose columns are known from elsewhere."""
    columns = _federation().host.shape[1]
    by, figure = "the guest, if it knows some customers", "share of other outputs' variance"
    for count in (columns, 5 * columns):
        exact, rounded = (weights_from_customers(count, quantum) for quantum in (0.0, QUANTUM))
        name = f"points of {count} known customers, {columns} columns"
        yield Attack(name, by, figure, exact, f"points rounded to 1/{1 / QUANTUM:.0f}", rounded, chance=0.0)
