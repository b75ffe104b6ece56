"""Losses of a prediction, convex in it, for arrays of any shape that broadcast together."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from streamfl.contract.role import ConfigurationError

__all__ = ["LOGISTIC", "LOSSES", "SQUARE", "Loss", "loss_named"]


class Loss(Protocol):
    """A loss without its regularisation term, which depends on the parameters and not on the prediction."""

    @property
    def name(self) -> str:
        """The loss's name in the configuration."""

    def value(self, prediction: Any, label: Any) -> NDArray[np.float64]:
        """The loss, shape of prediction and label broadcast together, float64."""

    def gradient(self, prediction: Any, label: Any) -> NDArray[np.float64]:
        """Its derivative by the prediction, same shape."""


class _Square:
    """(f - y)^2, the loss of POF-MKL's experiments; unit: the label's, squared."""

    name = "square"

    def __reduce__(self) -> str:
        # A copy is the same object: learners compare losses by identity.
        return "SQUARE"

    def value(self, prediction: Any, label: Any) -> NDArray[np.float64]:
        return np.asarray(np.square(np.subtract(prediction, label, dtype=np.float64)), dtype=np.float64)

    def gradient(self, prediction: Any, label: Any) -> NDArray[np.float64]:
        return np.asarray(2.0 * np.subtract(prediction, label, dtype=np.float64), dtype=np.float64)


class _Logistic:
    """log(1 + exp(f)) - y f: minus the log-likelihood of label y in {0, 1} (nats) when f is the log-odds of
    label 1."""

    name = "logistic"

    def __reduce__(self) -> str:
        return "LOGISTIC"

    def value(self, prediction: Any, label: Any) -> NDArray[np.float64]:
        log_odds = np.asarray(prediction, dtype=np.float64)
        # log(1 + exp(f)) overflows, and subtracting y f from it cancels. This form does neither.
        label = np.asarray(label, dtype=np.float64)
        value = label * np.logaddexp(0.0, -log_odds) + (1.0 - label) * np.logaddexp(0.0, log_odds)
        return np.asarray(value, dtype=np.float64)

    def gradient(self, prediction: Any, label: Any) -> NDArray[np.float64]:
        return np.asarray(expit(np.asarray(prediction, dtype=np.float64)) - label, dtype=np.float64)


SQUARE: Loss = _Square()
LOGISTIC: Loss = _Logistic()
LOSSES: Mapping[str, Loss] = MappingProxyType({loss.name: loss for loss in (SQUARE, LOGISTIC)})


def loss_named(name: str) -> Loss:
    """The loss that the configuration calls ``name``; ConfigurationError for any other name.

    >>> float(loss_named("square").value(0.5, 1.0))
    0.25
    """
    if name not in LOSSES:
        raise ConfigurationError(f"loss {name!r} is not one of {', '.join(LOSSES)}")
    return LOSSES[name]
