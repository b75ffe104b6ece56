"""A party's arithmetic on its own columns, weights and pairs. Only whole numbers go in and out; everything
else stays inside.

Weights and vectors are 64-bit floats, and sums run in a fixed order, so that two machines compute the same
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint, Kinds
from streamfl.quasi_newton.learning import taylor
from streamfl.quasi_newton.learning.curvature import IterateMeans, OwnPairs
from streamfl.quasi_newton.learning.descent import DescentSettings

__all__ = ["PRODUCTS", "PartyArithmetic", "check_sums", "column_sums", "inner", "loss_product", "rounded"]

Floats = NDArray[np.float64]
PRODUCTS = FixedPoint.bounded(2.0**32, 56)
"""Kind of inner products of vectors. It has 56 fraction bits: near the end two changes of weights have
products of 1e-8 or less."""
LARGEST_STEP = 1e100
"""Largest change of one weight in one step: far above any meaningful one."""


class PartyArithmetic:
    """One party's arithmetic.

    inputs: (rows, columns), after preprocessing. They are clipped to the public bound and rounded first.
    kinds: fixed-point kinds of the messages' numbers.
    start: first weights, (columns,); with an intercept one more, the last.
    intercept: whether a column of ones is added as the last one, as at the guest.
    muted: rows that add nothing to gradients, (rows,). They are replaced by zeros, in the intercept's column
    too. None: no row."""

    def __init__(
        self,
        inputs: Floats,
        learning: DescentSettings,
        kinds: Kinds,
        start: Floats,
        *,
        intercept: bool = False,
        muted: NDArray[np.bool_] | None = None,
    ) -> None:
        if intercept:
            inputs = np.hstack([inputs, np.ones((len(inputs), 1))])
        if muted is not None:
            inputs = np.where(muted[:, np.newaxis], 0.0, inputs)
        columns = inputs.shape[1]
        if np.shape(start) != (columns,):
            raise ValueError(f"first weights of shape {np.shape(start)}: ({columns},) is needed")
        self._learning = learning
        self._kinds = kinds
        self.integers, self._rounded = rounded(kinds.inputs, inputs)
        # A penalty on the intercept would move the mean prediction away from the base rate.
        self._penalties = np.full(columns, learning.regularisation)
        if intercept:
            self._penalties[-1] = 0.0
        self.weights = np.array(start, dtype=np.float64)
        self._means = IterateMeans(learning.curvature_every, columns)
        self._pairs = OwnPairs(learning.memory, columns)
        self._epoch_sum, self._epoch_count = np.zeros(columns), 0

    def outputs(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """u of these rows as whole numbers; OutOfBounds beyond the public bound."""
        return self._kinds.inner_products.encode(inner(self._rounded[rows], self.weights))

    def gradient(self, sums: NDArray[Any]) -> tuple[Floats, float]:
        """Returns g with the regularisation, and w'g without it.

        sums: X'D of a batch as whole numbers, (columns,).
        """
        bare = taylor.gradient(self._kinds.gradients.decode(sums), self._learning.batch)
        return bare + self._penalties * self.weights, float(inner(bare[np.newaxis], self.weights)[0])

    def products(self, gradient: Floats) -> NDArray[Any]:
        """Inner products of g with the basis, as whole numbers, (2 pairs + 1,)."""
        return PRODUCTS.encode(inner(self._pairs.basis(gradient), gradient))

    def is_bounded(self, gradient: Floats, coefficients: Floats) -> bool:
        """Whether no weight changes by more than ``LARGEST_STEP`` in this step, so that weights and products
        stay finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool((np.abs(inner(self._pairs.basis(gradient).T, coefficients)) <= LARGEST_STEP).all())

    def step(self, gradient: Floats, coefficients: Floats) -> Floats | None:
        """Move the weights. Returns s at each L-th iteration except the first L-th, else None.

        coefficients: of the basis, from the coordinator.
        """
        self.weights = self.weights - inner(self._pairs.basis(gradient).T, coefficients)
        self._epoch_sum, self._epoch_count = self._epoch_sum + self.weights, self._epoch_count + 1
        return self._means.add(self.weights)

    def changes(self, rows: NDArray[np.intp], step: Floats) -> NDArray[Any]:
        """s'x of these rows as whole numbers."""
        return self._kinds.changes.encode(inner(self._rounded[rows], step))

    def curvature(self, sums: NDArray[Any], step: Floats) -> Floats:
        """v with the regularisation.

        sums: X'h of a batch as whole numbers, (columns,).
        step: s.
        """
        return (
            taylor.gradient(self._kinds.curvature.decode(sums), self._learning.batch) + self._penalties * step
        )

    def pair_products(self, step: Floats, curvature: Floats) -> NDArray[Any]:
        """Inner products of s, then of v, with the basis that has them as its newest pair: whole numbers, (2,
        2 pairs + 2)."""
        basis = self._pairs.basis(step)[:-1]
        half = len(basis) // 2
        longer = np.array([*basis[:half], step, *basis[half:], curvature])
        return PRODUCTS.encode(np.array([inner(longer, step), inner(longer, curvature)]))

    @property
    def pair_count(self) -> int:
        return len(self._pairs)

    def keep_pair(self, step: Floats, curvature: Floats) -> None:
        """Keep a pair that the coordinator has accepted."""
        self._pairs.keep(step, curvature)

    def end_epoch(self) -> Floats:
        """Returns the mean of the epoch's iterates, which is the model. The mean removes the batches'
        noise."""
        mean = self._epoch_sum / max(1, self._epoch_count)
        self._epoch_sum, self._epoch_count = np.zeros_like(mean), 0
        return mean

    @property
    def vectors(self) -> Floats:
        """The state without the pairs, for :meth:`restore`: (4, columns)."""
        last = self._means.last
        rows = [
            self.weights,
            self._means.sum,
            self._epoch_sum,
            np.zeros_like(self.weights) if last is None else last,
        ]
        return np.array(rows)

    @property
    def pairs(self) -> Floats:
        """The pairs, oldest first, for :meth:`restore`: (pairs, 2, columns)."""
        return self._pairs.pairs

    def restore(self, vectors: Floats, pairs: Floats, iterations: int, in_epoch: int) -> None:
        """Continue from this state.

        iterations, in_epoch: steps taken in all, and since the epoch began.
        """
        every = self._learning.curvature_every
        self.weights, self._epoch_sum, self._epoch_count = vectors[0], vectors[2], in_epoch
        self._means.restore(vectors[1], iterations % every, vectors[3] if iterations >= every else None)
        for step, curvature in pairs:
            self._pairs.keep(step, curvature)


def loss_product(product: float, label_residual: NDArray[Any], kind: FixedPoint, batch: int) -> int:
    """The guest's w'g less mean(y D) / 2, as a whole number. Half of its sum with the hosts' w'g is the loss
    up to a constant.

    product: the guest's w'g.
    label_residual: y'D of the batch, (1,).
    kind: of y'D.
    batch: rows.
    """
    mean = float(kind.decode(label_residual)[0]) / batch
    return int(PRODUCTS.encode(np.array([product]))[0]) - int(PRODUCTS.encode(np.array([mean / 2]))[0])


def column_sums(inputs: NDArray[Any], numbers: NDArray[Any], kind: FixedPoint) -> NDArray[Any]:
    """X'n exactly, (columns,). Under encryption a party computes the same without seeing n.

    inputs: whole numbers, (rows, columns).
    numbers: (rows,).
    kind: of the sums; Python integers are used if 64 bits are too few.
    """
    if kind.slot_bits > 63:
        inputs, numbers = inputs.astype(object), numbers.astype(object)
    return np.asarray(inputs.T @ numbers)


def check_sums(
    sums: Sequence[int], inputs: NDArray[Any], own: NDArray[Any], reach: int, kind: FixedPoint
) -> None:
    """BadRecord if no n within ``reach`` of the own numbers gives X'n. It checks |X'n - X'own| <= |X|'1
    reach.

    sums: X'n, (columns,).
    inputs: X as whole numbers, (rows, columns).
    own: (rows,).
    kind: of the sums.
    """
    parts, sizes = column_sums(inputs, own, kind).tolist(), np.abs(inputs).sum(axis=0).tolist()
    if any(abs(number - part) > size * reach for number, part, size in zip(sums, parts, sizes, strict=True)):
        raise BadRecord("out_of_bounds", "a sum is beyond what all rows at the public bounds add up to")


def rounded(kind: FixedPoint, inputs: Floats) -> tuple[NDArray[Any], Floats]:
    """Inputs cut to the public bound and rounded: as whole numbers, and as the floats that they represent."""
    integers: NDArray[Any] = kind.encode(kind.clip(inputs))
    # Exact, because these numbers are short, and quicker than decoding one by one.
    return integers, np.asfortranarray(np.ldexp(integers.astype(np.float64), -kind.fraction_bits))


def inner(rows: Floats, weights: Floats) -> Floats:
    """rows @ weights, added column by column, because a library's product rounds in a different order on each
    processor."""
    total = np.zeros(len(rows))
    for column, weight in enumerate(weights):
        total += rows[:, column] * weight
    return total
