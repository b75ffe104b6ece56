"""A federation's training without roles, messages or encryption: the same whole numbers, from the same
columns.

An encrypted run must have exactly these batches, weights, pairs and losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.quasi_newton.encryption.fixed_point import Kinds, kinds
from streamfl.quasi_newton.learning import taylor
from streamfl.quasi_newton.learning.descent import Descent, DescentSettings
from streamfl.quasi_newton.learning.own_columns import PRODUCTS, PartyArithmetic, column_sums, loss_product

__all__ = ["Party", "Trace", "partition", "train"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Party:
    """inputs: (rows, columns), after preprocessing.

    start: first weights, with the intercept's last at the guest; None for zeros.
    muted: rows that add nothing to the party's gradients, (rows,); None for none.
    """

    inputs: Floats
    start: Floats | None = None
    muted: NDArray[np.bool_] | None = None


@dataclass
class Trace:
    """The course of a training, complete enough to compute it again.

    batches: row numbers of each, (batches, size).
    weights: by party, (iterations + 1, columns), the first ones too.
    gradients: by party, X'D as whole numbers, by iteration.
    steps, curvatures: by party, s and v of each pair that was offered.
    visited: number of the batch, by iteration.
    coefficients: of the basis, by iteration.
    pairs: by pair that was offered, its iteration and whether it was kept.
    batch_losses: before each step.
    losses: their means by epoch.
    models: by epoch and party, the mean of the epoch's iterates; the last is the result.
    """

    batches: NDArray[np.intp]
    weights: list[list[Floats]]
    gradients: list[list[NDArray[Any]]]
    steps: list[list[Floats]]
    curvatures: list[list[Floats]]
    visited: list[int] = field(default_factory=list)
    coefficients: list[Floats] = field(default_factory=list)
    pairs: list[tuple[int, bool]] = field(default_factory=list)
    batch_losses: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    models: list[list[Floats]] = field(default_factory=list)
    converged: bool = False
    fallbacks: int = 0

    @property
    def epochs(self) -> int:
        return len(self.losses)

    @property
    def model(self) -> list[Floats]:
        """Weights of each party. The guest's end with the intercept."""
        return self.models[-1]

    def outputs(self, inputs: Sequence[Floats], guest: int = 0, epoch: int = -1) -> Floats:
        """u of other rows with the model of an epoch. inputs: by party, (rows, columns)."""
        total = np.zeros(len(inputs[0]))
        for number, (own, weights) in enumerate(zip(inputs, self.models[epoch], strict=True)):
            total += own @ (weights[:-1] if number == guest else weights) + (
                weights[-1] if number == guest else 0.0
            )
        return total


def partition(rows: int, size: int, seed: int) -> NDArray[np.intp]:
    """Rows 0 .. rows - 1 in batches that are drawn once, (rows // size, size). Rows that fill no batch are
    left out."""
    order = np.random.default_rng([seed, rows]).permutation(rows)
    return np.asarray(order[: rows // size * size].reshape(-1, size), dtype=np.intp)


def train(
    parties: Sequence[Party],
    labels: Floats,
    learning: DescentSettings,
    batches: NDArray[np.intp],
    *,
    guest: int = 0,
    numbers: Kinds | None = None,
) -> Trace:
    """Learn until two epochs' losses agree, or for the most epochs.

    labels: -1 and +1, the guest's.
    batches: from :func:`partition`, visited in this order in every epoch.
    guest: its number.
    numbers: fixed-point kinds of the messages' numbers; None for the defaults.
    """
    size = learning.batch
    if batches.ndim != 2 or batches.shape[1] != size or not len(batches):
        raise ValueError(f"batches of shape {batches.shape}: one or more of {size} rows each are needed")
    numbers = numbers or kinds(len(parties), size, size)
    own = [_own(party, learning, numbers, number == guest) for number, party in enumerate(parties)]
    signs = numbers.inputs.encode(labels)
    scaled = numbers.labels.encode(labels)
    trace = Trace(
        batches, [[party.weights] for party in own], [[] for _ in own], [[] for _ in own], [[] for _ in own]
    )
    descent = Descent(learning)
    while True:
        losses = []
        for number, rows in enumerate(batches):
            outputs = sum((party.outputs(rows) for party in own[1:]), own[0].outputs(rows))
            residuals = taylor.residuals(outputs, scaled[rows])
            sums = [column_sums(party.integers[rows], residuals, numbers.gradients) for party in own]
            found = [party.gradient(total) for party, total in zip(own, sums, strict=True)]
            loss = _loss([product for _, product in found], signs[rows], residuals, numbers, guest)
            products = _total(
                [party.products(gradient) for party, (gradient, _) in zip(own, found, strict=True)]
            )
            coefficients = descent.step(products)
            steps = [
                party.step(gradient, coefficients) for party, (gradient, _) in zip(own, found, strict=True)
            ]
            losses.append(loss)
            trace.visited.append(number)
            trace.coefficients.append(coefficients)
            for party, total, kept, weights in zip(own, sums, trace.gradients, trace.weights, strict=True):
                kept.append(total)
                weights.append(party.weights)
            changes = [step for step in steps if step is not None]
            if changes and not descent.frozen:
                _offer(own, changes, rows, numbers, descent, trace)
        trace.batch_losses += losses
        trace.losses.append(float(np.mean(losses)))
        trace.models.append([party.end_epoch() for party in own])
        if descent.end_epoch(trace.losses[-1], len(batches)):
            trace.converged, trace.fallbacks = descent.converged, descent.fallbacks
            return trace


def _own(party: Party, learning: DescentSettings, numbers: Kinds, guest: bool) -> PartyArithmetic:
    start = np.zeros(party.inputs.shape[1] + guest) if party.start is None else party.start
    return PartyArithmetic(party.inputs, learning, numbers, start, intercept=guest, muted=party.muted)


def _total(encoded: Sequence[NDArray[Any]]) -> Floats:
    """The sum over the parties, as the coordinator decodes it."""
    return PRODUCTS.decode(sum(encoded[1:], encoded[0].astype(object)))


def _loss(
    products: Sequence[float], signs: NDArray[Any], residuals: NDArray[Any], numbers: Kinds, guest: int
) -> float:
    label_residual = column_sums(signs[:, np.newaxis], residuals, numbers.gradients)
    encoded = [PRODUCTS.encode(np.array([product])).astype(object) for product in products]
    encoded[guest][0] = loss_product(products[guest], label_residual, numbers.gradients, len(signs))
    return taylor.loss_from_products(float(_total(encoded)[0]))


def _offer(
    own: Sequence[PartyArithmetic],
    changes: Sequence[Floats],
    rows: NDArray[np.intp],
    numbers: Kinds,
    descent: Descent,
    trace: Trace,
) -> None:
    """Offer a pair with the batch's curvature along s. All parties keep it, or none."""
    moved = [party.changes(rows, step) for party, step in zip(own, changes, strict=True)]
    along = sum(moved[1:], moved[0])
    curvatures = [
        party.curvature(column_sums(party.integers[rows], along, numbers.curvature), step)
        for party, step in zip(own, changes, strict=True)
    ]
    products = _total(
        [party.pair_products(*pair) for party, *pair in zip(own, changes, curvatures, strict=True)]
    )
    kept = descent.offer(products[0], products[1])
    trace.pairs.append((len(trace.visited), kept))
    for number, (party, step, curvature) in enumerate(zip(own, changes, curvatures, strict=True)):
        trace.steps[number].append(step)
        trace.curvatures[number].append(curvature)
        if kept:
            party.keep_pair(step, curvature)
