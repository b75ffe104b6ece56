"""The losses of Table 1 with their curvature, for labels -1 and +1 or real ones, over arrays of any shape
that broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, expit

from streamfl.contract.role import BadRecord, ConfigurationError

__all__ = [
    "LOGISTIC",
    "LOSSES",
    "SMOOTH_HINGE",
    "SQUARE",
    "MarginLoss",
    "loss_named",
    "prediction_of",
    "sign_of",
]

Floats = NDArray[np.float64]


class MarginLoss(Protocol):
    """L(f, y), convex in f.

    name: what the configuration calls it.
    classifies: labels are -1 and +1; otherwise they are real.
    """

    @property
    def name(self) -> str: ...

    @property
    def classifies(self) -> bool: ...

    def value(self, outputs: Any, labels: Any) -> Floats:
        """L(f, y)."""

    def gradient(self, outputs: Any, labels: Any) -> Floats:
        """d L / d f."""

    def curvature(self, outputs: Any, labels: Any) -> Floats:
        """d^2 L / d f^2, or an upper bound where it is not continuous: a Newton step divides by it."""

    def of_constant(self, count: float, total: float, squares: float) -> float:
        """min over c of sum_n L(c, y_n): the loss of the best constant in hindsight.

        count, total, squares: how many labels, their sum, the sum of their squares.
        """


class _Square:
    """(f - y)^2."""

    name = "square"
    classifies = False

    def value(self, outputs: Any, labels: Any) -> Floats:
        return np.asarray(np.square(np.subtract(outputs, labels, dtype=np.float64)), dtype=np.float64)

    def gradient(self, outputs: Any, labels: Any) -> Floats:
        return np.asarray(2.0 * np.subtract(outputs, labels, dtype=np.float64), dtype=np.float64)

    def curvature(self, outputs: Any, labels: Any) -> Floats:
        return np.full(np.broadcast_shapes(np.shape(outputs), np.shape(labels)), 2.0)

    def of_constant(self, count: float, total: float, squares: float) -> float:
        return max(0.0, squares - total * total / count) if count else 0.0


class _Logistic:
    """log(1 + exp(-z)), z = y f."""

    name = "logistic"
    classifies = True

    def value(self, outputs: Any, labels: Any) -> Floats:
        return np.asarray(np.logaddexp(0.0, -_margins(outputs, labels)), dtype=np.float64)

    def gradient(self, outputs: Any, labels: Any) -> Floats:
        return np.asarray(
            -np.asarray(labels, dtype=np.float64) * expit(-_margins(outputs, labels)), dtype=np.float64
        )

    def curvature(self, outputs: Any, labels: Any) -> Floats:
        margins = _margins(outputs, labels)
        return np.asarray(
            np.square(labels, dtype=np.float64) * expit(margins) * expit(-margins), dtype=np.float64
        )

    def of_constant(self, count: float, total: float, squares: float) -> float:
        # c is the logarithm of the odds, so this is the entropy of the labels in nats.
        return (
            float(entr([(count + total) / (2 * count), (count - total) / (2 * count)]).sum() * count)
            if count
            else 0.0
        )


class _SmoothHinge:
    """1/2 - z where z <= 0; (1 - z)^2 / 2 where 0 < z < 1; 0 where z >= 1, z = y f. Its curvature is bounded
    by 1."""

    name = "smooth-hinge"
    classifies = True

    def value(self, outputs: Any, labels: Any) -> Floats:
        margins = _margins(outputs, labels)
        short = np.clip(1.0 - margins, 0.0, 1.0)
        return np.asarray(0.5 * short * short + np.maximum(-margins, 0.0), dtype=np.float64)

    def gradient(self, outputs: Any, labels: Any) -> Floats:
        short = np.clip(1.0 - _margins(outputs, labels), 0.0, 1.0)
        return np.asarray(-np.asarray(labels, dtype=np.float64) * short, dtype=np.float64)

    def curvature(self, outputs: Any, labels: Any) -> Floats:
        # The second derivative is 0 wherever the loss is linear: Newton's step would be without bound there.
        return np.ones(np.broadcast_shapes(np.shape(outputs), np.shape(labels)))

    def of_constant(self, count: float, total: float, squares: float) -> float:
        if not count:
            return 0.0
        # c = 1 - few / many has the sign of the label that is more frequent, and margins c and -c.
        many, few = (count + abs(total)) / 2, (count - abs(total)) / 2
        return few * few / (2 * many) + few * (1.5 - few / many)


@dataclass(frozen=True)
class _Weighted:
    """A loss for labels -1 and +1 in which +1 counts ``positive`` times as much."""

    loss: MarginLoss
    positive: float

    @property
    def name(self) -> str:
        return self.loss.name

    @property
    def classifies(self) -> bool:
        return self.loss.classifies

    def value(self, outputs: Any, labels: Any) -> Floats:
        return self._weights(labels) * self.loss.value(outputs, labels)

    def gradient(self, outputs: Any, labels: Any) -> Floats:
        return self._weights(labels) * self.loss.gradient(outputs, labels)

    def curvature(self, outputs: Any, labels: Any) -> Floats:
        return self._weights(labels) * self.loss.curvature(outputs, labels)

    def of_constant(self, count: float, total: float, squares: float) -> float:
        positive = self.positive * (count + total) / 2
        negative = (count - total) / 2
        return self.loss.of_constant(positive + negative, positive - negative, positive + negative)

    def _weights(self, labels: Any) -> Floats:
        return np.where(np.asarray(labels) > 0, self.positive, 1.0)


def _margins(outputs: Any, labels: Any) -> Floats:
    return np.asarray(np.multiply(outputs, labels, dtype=np.float64), dtype=np.float64)


SQUARE: MarginLoss = _Square()
LOGISTIC: MarginLoss = _Logistic()
SMOOTH_HINGE: MarginLoss = _SmoothHinge()
LOSSES: Mapping[str, MarginLoss] = MappingProxyType(
    {loss.name: loss for loss in (LOGISTIC, SQUARE, SMOOTH_HINGE)}
)


def loss_named(name: str, positive: float = 1.0) -> MarginLoss:
    """The loss that the configuration calls ``name``; ConfigurationError for any other name.

    positive: weight of a label +1. A label -1 has the weight 1.

    >>> float(loss_named("smooth-hinge").value(0.5, 1.0))
    0.125
    """
    if name not in LOSSES:
        raise ConfigurationError(f"loss {name!r} is not one of {', '.join(LOSSES)}")
    loss = LOSSES[name]
    return loss if positive == 1.0 else _Weighted(loss, positive)


def prediction_of(loss: str, low: float, high: float) -> Callable[[float], float]:
    """Maps f to what is published: the probability of label 1; smooth hinge: f from -1 to 1 as 0 to 1; or the
    label's unit."""
    if loss == "logistic":
        return lambda output: float(expit(output))
    if loss == "smooth-hinge":
        return lambda output: float((np.clip(output, -1.0, 1.0) + 1.0) / 2.0)
    return lambda output: low + output * (high - low)


def sign_of(label: float) -> float:
    """Labels 0 and 1 as -1 and 1. BadRecord for any other."""
    if label not in (0.0, 1.0):
        raise BadRecord("label", f"the label is {label:g}, 0 or 1 is expected")
    return 2.0 * label - 1.0
