"""A party's arithmetic in the rounds of a training: numbers of the present batch, decrypted gradients, and
steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import decode_array, encode_array
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint
from streamfl.quasi_newton.encryption.scheme import Scheme, scheme_of
from streamfl.quasi_newton.learning.iterates import Iterates
from streamfl.quasi_newton.learning.own_columns import PRODUCTS, check_sums, loss_product
from streamfl.quasi_newton.learning.taylor import residuals
from streamfl.quasi_newton.members.background_tasks import Own
from streamfl.quasi_newton.members.given import PartyGiven
from streamfl.quasi_newton.members.training_progress import OUTPUTS, TRAINED, TrainingProgress
from streamfl.quasi_newton.messages import StepDecision
from streamfl.quasi_newton.rows.training_rows import TrainingRows
from streamfl.state.changelog import ChangedParts

__all__ = ["TrainingRounds"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class TrainingRounds:
    """The rounds of one party. Holds the iterates and moves the progress from round to round."""

    def __init__(
        self,
        parts: ChangedParts,
        settings: QuasiNewtonSettings,
        given: PartyGiven,
        progress: TrainingProgress,
        rows: TrainingRows,
    ) -> None:
        self._settings = settings
        self._given = given
        self._progress = progress
        self._rows = rows
        self._signs: Floats | None = None
        self.iterates = Iterates(parts, settings.learning.descent, settings.kinds, settings.is_guest)

    @property
    def scheme(self) -> Scheme:
        return scheme_of(self._progress.modulus, self._given.secret if self._progress.modulus else b"")

    @property
    def hidden(self) -> Own:
        """The modulus and the secret that background tasks need to hide numbers."""
        return Own(self._progress.modulus, self._given.secret)

    @property
    def for_curvature(self) -> bool:
        return self._progress.round % 2 == 1

    @property
    def batch(self) -> NDArray[np.intp]:
        """Row numbers of the present batch."""
        size = self._rows.batches.size
        first = self._progress.round // 2 % self._progress.batches * size
        return np.arange(first, first + size)

    @property
    def matrix(self) -> NDArray[Any]:
        """The matrix X for the round's vector, as whole numbers. The guest's ends with the labels, except in
        a curvature round."""
        own = self.iterates.own.integers[self.batch]
        if not self._settings.is_guest or self.for_curvature:
            return own
        return np.hstack([own, self._settings.kinds.inputs.encode(self.signs)[:, np.newaxis]])

    @property
    def upload_kind(self) -> FixedPoint:
        return self._settings.kinds.curvature if self.for_curvature else self._settings.kinds.gradients

    @property
    def signs(self) -> Floats:
        """Labels of the present batch, -1 and 1."""
        if self._signs is None:
            self._signs = self._rows.signs
        return self._signs[self.batch]

    def own_numbers(self) -> NDArray[Any]:
        """u of the batch; in a round for curvature s'x. OutOfBounds beyond the public bound."""
        own = self.iterates.own
        return (
            own.changes(self.batch, self._vector(self._progress.step))
            if self.for_curvature
            else own.outputs(self.batch)
        )

    def begin(self, inputs: Floats, muted: Bools, start: Floats) -> None:
        """Start to learn from the party's rows.

        inputs, muted: from :meth:`TrainingRows.learnt`.
        start: first weights, (columns,).
        """
        self._signs = None
        self.iterates.begin(inputs, muted, start, self._rows.batches.size)

    def go_on(self) -> None:
        """Rebuild the arithmetic from the remembered state after a restart."""
        progress = self._progress
        if self.iterates.is_ready or not OUTPUTS <= progress.phase <= TRAINED:
            return
        inputs, muted = self._rows.learnt()
        size = self._rows.batches.size
        if len(inputs) != progress.batches * size:
            raise BadRecord("malformed", f"{len(inputs)} rows in state are not {progress.batches} batches")
        taken = (progress.round + 1) // 2
        in_epoch = progress.round // 2 % progress.batches + progress.round % 2
        self.iterates.go_on(inputs, muted, size, taken, in_epoch)

    def products(self, numbers: list[int]) -> list[int]:
        """Inner products of g, or of s and v in a round for curvature, with the basis. numbers: the decrypted
        product with X."""
        progress, own = self._progress, self.iterates.own
        sums = np.array(numbers[: len(own.weights)], dtype=object)
        if self.for_curvature:
            step = self._vector(progress.step)
            curvature = own.curvature(sums, step)
            progress.curvature = encode_array(curvature)
            return list(own.pair_products(step, curvature).ravel().tolist())
        gradient, product = own.gradient(sums)
        progress.gradient = encode_array(gradient)
        return [*own.products(gradient).tolist(), self._loss_number(numbers, product)]

    def check(self, numbers: list[int]) -> None:
        """BadRecord with reason out_of_bounds if no members within the public bounds can have produced the
        decrypted numbers."""
        kinds, others = self._settings.kinds, len(self._settings.federation.hosts)
        if self.for_curvature:
            own, reach = self.own_numbers(), others * kinds.changes.largest
        elif self._settings.is_guest:
            own = residuals(self.own_numbers(), kinds.labels.encode(self.signs))
            reach = others * kinds.inner_products.largest
        else:
            own, reach = self.own_numbers(), others * kinds.inner_products.largest + 2 * kinds.labels.largest
        check_sums(numbers, self.matrix, own, reach, self.upload_kind)

    def take(self, step: StepDecision) -> bool:
        """Take the coordinator's decision. Returns whether another round follows; the progress is then in
        that round."""
        progress, own, learning = self._progress, self.iterates.own, self._settings.learning
        iteration = progress.round // 2
        if step.over and not step.epoch_ends:
            raise BadRecord("implausible", "a training is over at the end of an epoch, and none ends")
        if self.for_curvature:
            if step.coefficients or step.pair:
                raise BadRecord("implausible", "a round for curvature has no step")
            if step.kept:
                self.iterates.keep_pair(self._vector(progress.step), self._vector(progress.curvature))
        else:
            coefficients = decode_array(
                step.coefficients, np.float64, (2 * own.pair_count + 1,), "coefficients"
            )
            taken = iteration + 1
            due = taken % learning.curvature_every == 0 and taken >= 2 * learning.curvature_every
            if not math.isfinite(step.loss) or (step.pair and not due):
                raise BadRecord("implausible", "no pair is due, or the loss is no number")
            if not own.is_bounded(self._vector(progress.gradient), coefficients):
                raise BadRecord(
                    "out_of_bounds", "the step is no step of these weights: they would not be numbers"
                )
            change = own.step(self._vector(progress.gradient), coefficients)
            self.iterates.remember()
            if step.pair:
                assert change is not None
                progress.round, progress.step = progress.round + 1, encode_array(change)
                return True
        if step.epoch_ends:
            self.iterates.end_epoch()
        if step.over:
            return False
        progress.round = 2 * (iteration + 1)
        progress.gradient = progress.step = progress.curvature = b""
        return True

    def _loss_number(self, numbers: list[int], product: float) -> int:
        """What this party adds to the loss: w'g. The guest subtracts half the mean of y D, from the last of
        ``numbers``."""
        if not self._settings.is_guest:
            return int(PRODUCTS.encode(np.array([product]))[0])
        label_residual = np.array(numbers[-1:], dtype=object)
        return loss_product(product, label_residual, self._settings.kinds.gradients, len(self.batch))

    def _vector(self, content: bytes) -> Floats:
        """Decodes one of the party's vectors in :class:`TrainingProgress`."""
        return decode_array(content, np.float64, self.iterates.own.weights.shape, "vector")
