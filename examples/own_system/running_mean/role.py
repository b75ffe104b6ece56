"""The role: a state machine without clock, socket or thread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from running_mean.config import RunningMeanSettings
from running_mean.messages import Mean, encode_prediction
from running_mean.metrics import MeanMetrics
from streamfl.contract.role import Measurement, Send
from streamfl.records.predictions import SamplePrediction
from streamfl.records.samples import Sample, SampleReader
from streamfl.roles.client_role import ClientRole

__all__ = ["RunningMean"]


class RunningMean(ClientRole[Sample, Mean]):
    """Predicts each sample as the mean of its client's labels so far, then takes its label."""

    def __init__(self, settings: RunningMeanSettings) -> None:
        self._metrics = MeanMetrics()
        super().__init__(Mean, settings.federation.clients, self._metrics)
        self._original = SampleReader(settings.samples).original
        self._squared_errors = 0.0

    def take(self, sample: Sample, value: Mean | None) -> tuple[Sequence[Send], Mean | None]:
        count, guess = (0, 0.5) if value is None else (value.count, value.mean)
        self._metrics.predictions += 1
        prediction = SamplePrediction(sample.client, sample.id, self._original(guess))
        answer = Send("predictions", sample.client.encode(), encode_prediction(prediction))
        if sample.label is None:
            return [answer], None
        self._metrics.labels += 1
        self._squared_errors += (guess - sample.label) ** 2
        # mean_n = mean_(n-1) + (label - mean_(n-1)) / n; before the first label it does not count.
        mean = guess + (sample.label - guess) / (count + 1) if count else sample.label
        return [answer], Mean(count + 1, mean)

    def measure(self) -> Iterable[Measurement]:
        yield from super().measure()
        scaled = math.sqrt(self._squared_errors / self._metrics.labels) if self._metrics.labels else 0.0
        yield MeanMetrics.rmse((self._original(1.0) - self._original(0.0)) * scaled)
