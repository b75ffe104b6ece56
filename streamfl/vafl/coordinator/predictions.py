"""The coordinator's predictions: sends them, and measures their error once labels come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Headers, Measurement, Send
from streamfl.roles.recent import WINDOW, Recent
from streamfl.vafl.coordinator.alignment import PredictionBatch
from streamfl.vafl.functions.heads import OutputLoss
from streamfl.vafl.messages import Prediction

__all__ = ["Predictions"]


class Predictions:
    """Predictions of all partitions.

    loss: converts outputs to predictions, and computes their error.
    encode: encodes a prediction for users.
    original: converts an output of the square loss to the label's own unit.
    counts: counters ``predictions`` and ``revised_predictions``, which this class increments.
    """

    def __init__(
        self,
        loss: OutputLoss,
        encode: Callable[[Prediction], bytes],
        original: Callable[[float], float],
        counts: dict[str, int],
    ) -> None:
        self._loss = loss
        self._encode = encode
        self._original = original
        self._counts = counts
        self._scored = 0
        self._loss_sum = 0.0
        # Unused with the square loss: its predictions are not right or wrong.
        self._right = 0
        # For the last labels that came after a prediction: its loss, and whether its likeliest class was right.
        self._recent: Recent[tuple[float, float]] = Recent()

    def sends(
        self, names: Sequence[str], headers: Sequence[Headers], predicting: PredictionBatch, outputs: NDArray[Any]
    ) -> list[Send]:
        """One message for each entity that is predicted.

        names: all entities that were considered. headers: of their embeddings.
        outputs: (n, outputs), of the entities that are predicted.
        """
        revised = int(np.count_nonzero(predicting.revisions))
        self._counts["predictions"] += len(outputs) - revised
        self._counts["revised_predictions"] += revised
        values = self._loss.prediction(outputs).tolist()
        if self._loss.name == "square":
            values = [self._original(value) for value in values]
        columns = (predicting.places.tolist(), values, predicting.embeddings.tolist(), predicting.revisions.tolist())
        encode, sends = self._encode, []
        for place, value, embeddings, revision in zip(*columns, strict=True):
            name = names[place]
            content = encode(Prediction(name, value, embeddings, revision))
            sends.append(Send("predictions", name.encode(), content, None, headers[place]))
        return sends

    def score(self, outputs: NDArray[np.float64], labels: NDArray[np.float64], now: float) -> None:
        """Score predictions by the labels that came after them. outputs: (n, outputs). labels: (n,)."""
        if not len(outputs):
            return
        likeliest = outputs.argmax(axis=1) if self._loss.name == "softmax" else outputs[:, 0] > 0
        losses, right = self._loss.values(outputs, labels).tolist(), (likeliest == labels).astype(float).tolist()
        self._scored += len(losses)
        self._loss_sum += sum(losses)
        self._right += int(sum(right))
        self._recent.extend(list(zip(losses, right, strict=True)), now)

    def measure(self) -> Iterable[Measurement]:
        """Sums since the process started, and means over the last labels, which are unknown before the first label."""
        classifies, recent, until = self._loss.name != "square", self._recent.items, self._recent.until
        count = len(recent)
        yield Measurement("scored", "counter", "Labels of entities that had been predicted", self._scored)
        text = "Sum of the loss of the predictions made before the label, over the labels of streamfl_scored_total"
        yield Measurement("loss_sum", "counter", text, self._loss_sum)
        if classifies:
            yield Measurement("right_predictions", "counter", "These predictions that were correct", self._right)
        text = f"Mean loss of the predictions made before the label, over the last {WINDOW} labels since the worker's start"
        mean = sum(loss for loss, _ in recent) / max(count, 1)
        yield Measurement("loss_windowed", "gauge", text, mean, (), True, count > 0, until)
        if classifies:
            text = f"Share of the predictions that were correct, over the last {WINDOW} labels since the worker's start"
            share = sum(right for _, right in recent) / max(count, 1)
            yield Measurement("accuracy", "gauge", text, share, known=count > 0, until=until)
        else:
            text = f"RMSE of these predictions over the last {WINDOW} labels since the worker's start, in the label's own unit"
            rmse = (self._original(1.0) - self._original(0.0)) * math.sqrt(mean)
            yield Measurement("rmse_windowed", "gauge", text, rmse, (), True, count > 0, until)
