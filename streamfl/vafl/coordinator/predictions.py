"""The coordinator's predictions: sends them, and measures their error once labels come."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Headers, Measurement, Send
from streamfl.roles.recent import Recent
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.alignment import PredictionBatch
from streamfl.vafl.given import CoordinatorGiven
from streamfl.vafl.messages import Prediction
from streamfl.vafl.metrics import CoordinatorMetrics, ScoreMetrics

__all__ = ["Predictions"]


class Predictions:
    """Predictions of all partitions.

    settings, given: the coordinator's.
    metrics: count predictions.
    """

    def __init__(self, settings: VaflSettings, given: CoordinatorGiven, metrics: CoordinatorMetrics) -> None:
        self._loss = given.loss
        self._encode = given.encode
        self._low, self._high = settings.required_labels("a vafl-coordinator").label_range
        self._metrics = metrics
        self._scored = 0
        self._loss_sum = 0.0
        # Unused with the square loss: its predictions are not right or wrong.
        self._right = 0
        # For the last labels that came after a prediction: its loss, and whether its likeliest class was
        # right.
        self._recent: Recent[tuple[float, float]] = Recent()

    def sends(
        self,
        names: Sequence[str],
        headers: Sequence[Headers],
        predicting: PredictionBatch,
        outputs: NDArray[Any],
    ) -> list[Send]:
        """One message for each entity that is predicted.

        names: all entities that were considered.
        headers: of their embeddings.
        outputs: (n, outputs), of the entities that are predicted.
        """
        revised = int(np.count_nonzero(predicting.revisions))
        self._metrics.predictions += len(outputs) - revised
        self._metrics.revised_predictions += revised
        values = self._loss.prediction(outputs).tolist()
        if self._loss.name == "square":
            values = [self._original(value) for value in values]
        columns = (
            predicting.places.tolist(),
            values,
            predicting.embeddings.tolist(),
            predicting.revisions.tolist(),
        )
        encode, sends = self._encode, []
        for place, value, embeddings, revision in zip(*columns, strict=True):
            name = names[place]
            content = encode(Prediction(name, value, embeddings, revision))
            sends.append(Send("predictions", name.encode(), content, None, headers[place]))
        return sends

    def _original(self, value: float) -> float:
        """An output of the square loss in the label's own unit."""
        return self._low + value * (self._high - self._low)

    def score(self, outputs: NDArray[np.float64], labels: NDArray[np.float64], now: float) -> None:
        """Score predictions by the labels that came after them. outputs: (n, outputs). labels: (n,)."""
        if not len(outputs):
            return
        likeliest = outputs.argmax(axis=1) if self._loss.name == "softmax" else outputs[:, 0] > 0
        losses = self._loss.values(outputs, labels).tolist()
        right = (likeliest == labels).astype(float).tolist()
        self._scored += len(losses)
        self._loss_sum += sum(losses)
        self._right += int(sum(right))
        self._recent.extend(list(zip(losses, right, strict=True)), now)

    def measure(self) -> Iterable[Measurement]:
        """Sums since the process started, and means over the last labels, which are unknown before the first
        label."""
        classifies, recent, until = self._loss.name != "square", self._recent.items, self._recent.until
        count = len(recent)
        yield ScoreMetrics.scored(self._scored)
        yield ScoreMetrics.loss_sum(self._loss_sum)
        if classifies:
            yield ScoreMetrics.right_predictions(self._right)
        mean = sum(loss for loss, _ in recent) / max(count, 1)
        yield ScoreMetrics.loss_windowed(mean, known=count > 0, until=until)
        if classifies:
            share = sum(right for _, right in recent) / max(count, 1)
            yield ScoreMetrics.accuracy(share, known=count > 0, until=until)
        else:
            rmse = (self._original(1.0) - self._original(0.0)) * math.sqrt(mean)
            yield ScoreMetrics.rmse_windowed(rmse, known=count > 0, until=until)
