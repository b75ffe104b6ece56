"""The weights of each client's experts in the default learner.

An expert's recent losses decide its weight. A ridge regression on the experts' deviations corrects their
mixture.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.kernels import LOGISTIC, Loss
from streamfl.learning.online_scaling import clipped
from streamfl.pofmkl.learning.client_journal import Forecast
from streamfl.pofmkl.learning.client_scales import LARGEST_TARGET, Scale
from streamfl.pofmkl.learning.log_weights import normalised
from streamfl.pofmkl.learning.mixture import corrected, log_posterior, mixed, ridge_step

__all__ = ["MIXTURES", "RIDGE", "ClientMixtures"]

MIXTURES = ("kernels", "all", "ridge")
RIDGE, RIDGE_LEAK = 10.0, 0.005
# The decay of losses with each sample: about the last thirty samples decide.
MEMORY = 0.97

Floats = NDArray[np.float64]


class ClientMixtures:
    """The weights of all experts, a row of ``layout`` a client, and the sums that regret and error are
    computed from.

    kernels: how many of the experts are kernels; they come first.
    personal: how many are the client's own.
    mixtures: names of ``MIXTURES``; the prediction is their mean, and "ridge" corrects "all".
    loss: of predictions and labels.
    """

    def __init__(self, kernels: int, personal: int, mixtures: Collection[str], loss: Loss) -> None:
        self._kernels = kernels
        self._mixtures = [name for name in MIXTURES if name in mixtures]
        self._loss = loss
        self.experts = kernels + personal
        self._log_prior = np.full(self.experts, -np.log(2 * kernels))
        self._log_prior[kernels:] = -np.log(2 * max(1, personal))
        number = np.dtype("<f8")
        self.layout = np.dtype(
            [
                ("entries", "<i8"),
                ("losses", number, (self.experts,)),
                ("count", number),
                ("ridge_weights", number, (self.experts,)),
                ("ridge_covariance", number, (self.experts, self.experts)),
                ("kernel_losses", number, (kernels,)),
                ("sums", number, (4,)),
            ]
        )
        self._empty = np.zeros((), self.layout)
        self._empty["ridge_covariance"] = np.eye(self.experts) / RIDGE
        self._numbers = np.empty(0, self.layout)

    def grow(self, count: int) -> None:
        """Add empty rows."""
        self._numbers = np.concatenate([self._numbers, np.full(count, self._empty)])

    def forget(self, row: int) -> None:
        self._numbers[row] = self._empty

    def entries(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """How many journal entries each client's numbers contain."""
        return np.asarray(self._numbers["entries"][rows])

    def kernel_weights(self, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """The arguments of :meth:`log_weights` for each client: losses (rows, kernels) and counts (rows,)."""
        return self._numbers["losses"][rows, : self._kernels], self._numbers["count"][rows]

    def log_weights(self, losses: Floats, counts: Floats) -> Floats:
        """Log-weights of the kernels alone, without the other experts: (rows, kernels)."""
        return log_posterior(losses, counts, np.zeros(self._kernels), self._noisy)

    def mix(self, rows: NDArray[np.intp], experts: Floats, scale: Scale) -> tuple[Floats, Floats]:
        """The prediction (rows,) and the pivot (rows,), which mixes all experts without the ridge. experts
        (rows, experts)."""
        numbers = self._numbers
        losses, counts = numbers["losses"][rows], numbers["count"][rows]
        by_kernels = mixed(experts[:, : self._kernels], self.log_weights(losses[:, : self._kernels], counts))
        pivot = mixed(experts, log_posterior(losses, counts, self._log_prior, self._noisy))
        made = {"kernels": by_kernels, "all": pivot}
        if "ridge" in self._mixtures:
            change, _, _ = corrected(
                _deviations(experts, pivot, scale.deviation),
                numbers["ridge_weights"][rows],
                numbers["ridge_covariance"][rows],
            )
            made["ridge"] = clipped(pivot + scale.deviation * change, scale.low, scale.high)
        total = np.add.reduce([made[name] for name in self._mixtures], axis=0)
        return total / len(self._mixtures), pivot

    def learn(self, rows: NDArray[np.intp], forecast: Forecast, deviation: Floats, labels: Floats) -> None:
        """Add the experts' losses and fit the ridge where the forecast knew a label. deviation (rows,): of
        the labels."""
        able = np.flatnonzero(forecast.known)
        if not len(able):
            return
        if len(able) < len(rows):
            rows = rows[able]
            forecast = forecast.where(able)
            deviation = deviation[able]
            labels = labels[able]
        numbers = self._numbers
        numbers["losses"][rows] = MEMORY * numbers["losses"][rows] + self.losses(
            forecast.experts, labels[:, None]
        )
        numbers["count"][rows] = MEMORY * numbers["count"][rows] + 1.0
        if "ridge" in self._mixtures:
            numbers["ridge_weights"][rows], numbers["ridge_covariance"][rows] = ridge_step(
                _deviations(forecast.experts, forecast.pivot, deviation),
                clipped((labels - forecast.pivot) / deviation, -LARGEST_TARGET, LARGEST_TARGET),
                numbers["ridge_weights"][rows],
                numbers["ridge_covariance"][rows],
                RIDGE,
                RIDGE_LEAK,
            )

    def count_samples(self, rows: NDArray[np.intp]) -> None:
        """Count a sample of each of these clients."""
        self._numbers["entries"][rows] += 1
        self._numbers["sums"][rows, 0] += 1

    def count_late_labels(self, rows: NDArray[np.intp], labels: Floats, forecast: Forecast) -> None:
        """Count the labels of samples that were counted earlier."""
        self._numbers["entries"][rows] += 1
        self.judge(rows, labels, np.ones(len(rows), np.bool_), forecast)

    def judge(
        self, rows: NDArray[np.intp], labels: Floats, labelled: NDArray[np.bool_], forecast: Forecast
    ) -> None:
        """Add up the losses of predictions and kernels where ``labelled`` (rows,), for regret and error."""
        errors = np.where(labelled, np.square(forecast.predictions - labels), 0.0)
        own = np.where(labelled, self.losses(forecast.predictions, labels), 0.0)
        for place, lost in enumerate((labelled, errors, own), 1):
            self._numbers["sums"][rows, place] += lost
        losses = self.losses(forecast.experts[:, : self._kernels], labels[:, None])
        self._numbers["kernel_losses"][rows] += np.where(labelled[:, None], losses, 0.0)

    def losses(self, predictions: Floats, labels: Floats) -> Floats:
        """Squared errors, or with the logistic loss -log of the predicted probability of the label."""
        if self._loss is LOGISTIC:
            return -np.log(np.where(labels > 0.5, predictions, 1.0 - predictions))
        return np.square(predictions - labels)

    def errors(self, predictions: Floats, labels: Floats, deviation: Floats) -> Floats:
        """Losses for the change detector, 1 at most: 1 is the loss of predicting the mean, or with the
        logistic loss 1/2."""
        unit = np.log(2.0) if self._loss is LOGISTIC else np.square(deviation)
        return np.minimum(self.losses(predictions, labels) / unit, 1.0)

    @property
    def _noisy(self) -> bool:
        return self._loss is not LOGISTIC

    def sums(self, rows: Sequence[int]) -> Floats:
        """Samples, labels, squared errors and losses of each client: (rows, 4)."""
        return np.asarray(self._numbers["sums"][rows])

    def kernel_losses(self, rows: Sequence[int]) -> Floats:
        """Summed loss of each kernel alone: (rows, kernels)."""
        return np.asarray(self._numbers["kernel_losses"][rows])

    def content(self, row: int) -> bytes:
        """The client's numbers as they are remembered."""
        return bytes(self._numbers[row].tobytes())

    def restore(self, row: int, numbers: Any) -> None:
        """Take back what ``content`` gave, decoded by ``layout``."""
        self._numbers[row] = numbers

    def snapshot(self, row: int) -> dict[str, Any]:
        """A copy of a client's numbers, by the names of ``layout``."""
        return {name: self._numbers[name][row].copy() for name in self.layout.names or ()}

    def weights(self, row: int) -> Floats:
        """Normalised weights of a client's experts, (experts,), computed from its numbers."""
        numbers = self._numbers[[row]]
        return np.asarray(
            normalised(log_posterior(numbers["losses"], numbers["count"], self._log_prior, self._noisy))[0]
        )


def _deviations(experts: Floats, pivot: Floats, deviation: Floats) -> Floats:
    return clipped((experts - pivot[:, None]) / deviation[:, None], -LARGEST_TARGET, LARGEST_TARGET)
