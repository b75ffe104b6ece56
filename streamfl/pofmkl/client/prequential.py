"""How well a worker's clients predict: labels received, errors of the latest predictions, and regret."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Measurement, OperatorNotice
from streamfl.kernels import LOGISTIC
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.live_challengers import classification_measurements, recent_arrays, recent_errors
from streamfl.pofmkl.client.registered_client import Client, ClientKey
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.metrics import ClassificationMetrics, ClientMetrics, ErrorMetrics
from streamfl.roles.recent import WINDOW, Recent

__all__ = ["PrequentialScores"]

# Predictions between two checks whether most had to be clipped to the range that labels can have.
JUDGED_AT_ONCE = 50
USELESS = (
    "most of the last predictions were more than a label range beyond samples.label_range and were limited "
    "to that: the model diverged, or somebody else wrote updates. Check samples.label_range and "
    "learning.learning_rate, and who may write updates; if the model does not recover, start over with "
    "another federation.name"
)


class PrequentialScores:
    """Counts predictions, labels and errors since it was created. These counts are not stored.

    Each client's labels, errors and losses over its whole life are stored, by the learner. Metrics are sums
    of both: counters give a mean over any time, and gauges a mean over all time, restarts included.

    learner: gives each client's sums and losses.
    registry: the clients.
    label_unit: units of the label for 1 on the learning scale. Errors are published in the label's own unit.
        Losses and regret are published on the learning scale, where the theorem bounds them.
    """

    def __init__(self, learner: Learner, registry: ClientRegistry, label_unit: float = 1.0) -> None:
        self._label_unit = label_unit
        self.predicted = self._on_version_zero = 0
        self._learner = learner
        self._registry = registry
        self._labels = self._unlabelled = 0
        self._squared_error = self._loss = 0.0
        self._recent: Recent[tuple[float, float]] = Recent()
        self._told_bounded = 0
        # Predictions and bounded predictions at the last check, and its result.
        self._judged, self._useless = (0, 0), False

    def count(self, predicted: int, unlabelled: int = 0) -> None:
        """Count predicted samples. unlabelled: those that came without a label."""
        self.predicted += predicted
        self._unlabelled += unlabelled

    def count_on_version_zero(self, client: Client, predicted: int) -> None:
        """Count predictions of this client before there was a model."""
        client.record.on_version_zero += predicted
        self._on_version_zero += predicted

    def learnt(self, predictions: NDArray[np.float64], labels: NDArray[np.float64], now: float) -> None:
        """Count learnt labels and the errors of their predictions, both (labels,)."""
        self._labels += len(labels)
        self._squared_error += float(np.square(predictions - labels).sum())
        self._loss += float(self._learner.loss.value(predictions, labels).sum())
        self._recent.extend(
            list(zip(predictions[-WINDOW:].tolist(), labels[-WINDOW:].tolist(), strict=True)), now
        )

    @property
    def labels(self) -> int:
        """Labels learnt since this was created."""
        return self._labels

    def judge(self) -> None:
        """Check whether most of the latest predictions were bounded and so are useless."""
        predicted, bounded = self.predicted - self._judged[0], self._learner.bounded - self._judged[1]
        if predicted >= JUDGED_AT_ONCE:
            self._judged, self._useless = (self.predicted, self._learner.bounded), 2 * bounded > predicted

    @property
    def trouble(self) -> str | None:
        """Why the predictions are useless; None if they are not."""
        return USELESS if self._useless else None

    def notices(self) -> Iterable[OperatorNotice]:
        bounded = self._learner.bounded - self._told_bounded
        self._told_bounded = self._learner.bounded
        if bounded:
            yield OperatorNotice(
                "bounded_predictions",
                f"{bounded} predictions were more than a label range beyond samples.label_range and were "
                "limited to that: the model diverged, the labels are not in that range, or somebody else "
                "writes into the model topic",
            )

    def ever_learnt(self) -> bool:
        """Whether any client ever learnt a label, before a restart included."""
        return bool(self._sums()[:, 1].any())

    def total_regret(self) -> float:
        """R = sum_t L(f, y) - min_i sum_t L(f_i, y), summed over clients   (POF-MKL, eq. 11)."""
        return float(self._regrets().sum())

    def regret(self) -> dict[ClientKey, float]:
        """Each client's regret (11), without the regularisation term."""
        return dict(zip(self._registry.keys, self._regrets().tolist(), strict=True))

    def _regrets(self) -> NDArray[np.float64]:
        return np.asarray(self._sums()[:, 3] - self._kernel_losses().min(axis=1))

    def _sums(self) -> NDArray[np.float64]:
        return self._learner.sums(self._registry.rows)

    def _kernel_losses(self) -> NDArray[np.float64]:
        return self._learner.kernel_losses(self._registry.rows)

    def measure_counts(self) -> Iterable[Measurement]:
        """Metrics of samples, predictions and labels."""
        yield ClientMetrics.samples(self.predicted)
        yield ClientMetrics.predictions(self.predicted)
        yield ClientMetrics.version_zero_predictions(self._on_version_zero)
        yield ClientMetrics.labels(self._labels)
        yield ClientMetrics.unlabelled_samples(self._unlabelled)
        yield ClientMetrics.drifts(self._learner.drifts)
        yield from self._learner.measure()

    def _in_label_units(self, squared_error: float) -> float:
        """A squared error in the label's own unit squared. The square of the unit alone may overflow."""
        return self._label_unit * (self._label_unit * squared_error)

    def measure_errors(self) -> Iterable[Measurement]:
        """Metrics of errors, losses and regret."""
        samples, labels, squared_error, loss = self._sums().sum(axis=0).tolist()
        regret = self.total_regret()
        yield ErrorMetrics.bounded_predictions(self._learner.bounded)
        yield ErrorMetrics.squared_error_sum(self._in_label_units(self._squared_error))
        yield ErrorMetrics.loss_sum(self._loss)
        yield ErrorMetrics.lifetime_predictions(samples)
        on_version_zero = sum(client.record.on_version_zero for client in self._registry)
        yield ErrorMetrics.lifetime_version_zero_predictions(on_version_zero)
        yield ErrorMetrics.lifetime_labels(labels)
        yield ErrorMetrics.lifetime_squared_error(self._in_label_units(squared_error))
        yield ErrorMetrics.lifetime_loss(loss)
        yield ErrorMetrics.lifetime_best_kernel_loss(loss - regret)
        yield ErrorMetrics.regret(regret)
        yield ErrorMetrics.regret_per_sample(regret / max(labels, 1), known=labels > 0)
        rmse = self._label_unit * math.sqrt(squared_error / max(labels, 1))
        yield ErrorMetrics.rmse(rmse, known=labels > 0)
        predictions, recent_labels = recent_arrays(self._recent.items)
        errors = recent_errors(predictions, recent_labels, self._label_unit)
        known, until = bool(self._recent.items), self._recent.until
        yield ErrorMetrics.rmse_windowed(errors.rmse, known=known, until=until)
        yield ErrorMetrics.mae_windowed(errors.mae, known=known, until=until)
        if self._learner.loss is LOGISTIC:
            yield from classification_measurements(predictions, recent_labels, until, ClassificationMetrics)
        best = int(np.argmin(self._kernel_losses().sum(axis=0)))
        yield ErrorMetrics.best_kernel(best)
