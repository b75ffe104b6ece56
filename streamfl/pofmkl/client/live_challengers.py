"""Challengers that run beside the federation on each client's own samples, only to be measured."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.measurement import Measurement, declared
from streamfl.learning.accuracy import classification_figures
from streamfl.learning.challengers import Challenger, challenger, model_name
from streamfl.learning.own_models import GUESTS_ERRORS, ModelFailures, NoNumber, OwnChallenger, OwnModel
from streamfl.pofmkl.client.challenger_memory import ChallengerMemory
from streamfl.pofmkl.metrics import OFF_LABELS, ChallengerClassification, ChallengerMetrics, OwnModelMetrics
from streamfl.roles.recent import Recent

__all__ = ["LiveChallengers", "classification_measurements"]

log = logging.getLogger(__name__)

_ClientKey = tuple[int, str]


class LiveChallengers:
    """Predicts each labelled sample with every challenger of its client, then lets them learn it.

    models: known to :func:`challenger`, others raise ConfigurationError. A challenger is held for each client
    and model until the client's partition is closed. One that raises, or whose prediction is not finite, is
    dropped for that client and counted. It begins anew after ``OFF_LABELS`` further labels. The first failure
    of each model and reason is logged.
    label_unit: units of the label for 1 on the learning scale. Metrics are in the label's own unit.
    """

    def __init__(
        self, models: Sequence[str | OwnModel], loss: Literal["square", "logistic"], label_unit: float = 1.0
    ) -> None:
        self._label_unit = label_unit
        self._models = {model_name(model): model for model in models}
        self._loss = loss
        # Importing River takes a second. That happens at the start, not while samples wait.
        made = {name: challenger(model, loss) for name, model in self._models.items()}
        own = {name: model.stateful for name, model in made.items() if isinstance(model, OwnChallenger)}
        for name, stateful in own.items():
            if not stateful:
                log.info(
                    "challenger %s has no state() and restore(): it starts over when this worker starts", name
                )
        self._states = ModelFailures("challenger", self._models)
        self.memory = ChallengerMemory([name for name, stateful in own.items() if stateful], self._states)
        self._stateful = any(own.values())
        self._off: dict[_ClientKey, dict[str, int]] = {}
        self._challengers: dict[_ClientKey, dict[str, Challenger]] = {}
        self._labels = dict.fromkeys(self._models, 0)
        self._squared_errors = dict.fromkeys(self._models, 0.0)
        self._absolute_errors = dict.fromkeys(self._models, 0.0)
        self._failures = dict.fromkeys(self._models, 0)
        self._recent: dict[str, Recent[tuple[float, float]]] = {name: Recent() for name in self._models}

    def run(self, samples: Iterable[tuple[_ClientKey, tuple[float, ...], float | None]], now: float) -> None:
        """Process labelled samples, each with its partition and client, each client's in order."""
        for key, features, label in samples:
            own, inputs = self._own(key), dict(enumerate(features))
            assert label is not None
            for name in [*own]:
                step = "predict"
                try:
                    prediction = own[name].predict(inputs)
                    if not math.isfinite(prediction):
                        raise NoNumber(f"the prediction is {prediction}")
                    step = "learn"
                    own[name].learn(inputs, label)
                # Another library's model may raise anything. The worker goes on without it.
                except GUESTS_ERRORS as error:
                    self._fail(key, name, step, error)
                    continue
                self.memory.learnt(key, name, own[name])
                self._labels[name] += 1
                self._squared_errors[name] += (prediction - label) ** 2
                self._absolute_errors[name] += abs(prediction - label)
                self._recent[name].extend([(prediction, label)], now)

    def _own(self, key: _ClientKey) -> dict[str, Challenger]:
        """The challengers of a client. They are created with its first label, and again when their time off
        is over."""
        own = self._challengers.get(key)
        if own is None:
            own = self._challengers[key] = {}
            for name in self._models:
                self._make(key, name)
            for name in self.memory.take_back(key, own):
                self._make(key, name)
        off = self._off.get(key, {})
        for name in [*off]:
            off[name] -= 1
            if not off[name]:
                del off[name]
                self._make(key, name)
        return own

    def _make(self, key: _ClientKey, name: str) -> None:
        try:
            self._challengers[key][name] = challenger(self._models[name], self._loss)
        # The model could be created when the worker started.
        except GUESTS_ERRORS as error:
            self._fail(key, name, "make", error)

    def _fail(self, key: _ClientKey, name: str, reason: str, error: BaseException) -> None:
        self._states.note(name, reason, error, f"it is off for client {key[1]} for {OFF_LABELS} labels")
        self._challengers[key].pop(name, None)
        self._off.setdefault(key, {})[name] = OFF_LABELS
        self.memory.drop(key, name)
        self._failures[name] += 1

    def forget(self, key: _ClientKey) -> Iterable[bytes]:
        """Forget a client's challengers; their metrics stay. Returns the keys that their state may be stored
        under."""
        self._challengers.pop(key, None)
        self._off.pop(key, None)
        return self.memory.forget(key)

    def close(self, partition: int) -> None:
        """Forget the challengers of a partition's clients; their metrics stay."""
        self._challengers = {key: own for key, own in self._challengers.items() if key[0] != partition}
        self._off = {key: off for key, off in self._off.items() if key[0] != partition}
        self.memory.close(partition)

    def mean_squared_errors(self) -> dict[str, float]:
        """By model, over all labels, on the learning scale; 0 before the first."""
        return {name: total / max(self._labels[name], 1) for name, total in self._squared_errors.items()}

    def mean_absolute_errors(self) -> dict[str, float]:
        """By model, over all labels, on the learning scale; 0 before the first."""
        return {name: total / max(self._labels[name], 1) for name, total in self._absolute_errors.items()}

    def measure(self) -> Iterable[Measurement]:
        """Each model's metrics over all clients. Means have no number before the first label, as the
        federation's."""
        for name, mse in self.mean_squared_errors().items():
            count = self._labels[name]
            until = self._recent[name].until
            predictions, labels = recent_arrays(self._recent[name].items)
            errors = recent_errors(predictions, labels, self._label_unit)
            yield ChallengerMetrics.challenger_rmse(self._label_unit * math.sqrt(mse), name, known=count > 0)
            total = self._label_unit * (self._label_unit * self._squared_errors[name])
            yield ChallengerMetrics.challenger_squared_error_sum(total, name)
            yield ChallengerMetrics.challenger_rmse_windowed(errors.rmse, name, known=count > 0, until=until)
            yield ChallengerMetrics.challenger_mae_windowed(errors.mae, name, known=count > 0, until=until)
            yield ChallengerMetrics.challenger_labels(count, name)
            yield ChallengerMetrics.challenger_failures(self._failures[name], name)
            if self._loss == "logistic":
                yield from classification_measurements(
                    predictions, labels, until, ChallengerClassification, name
                )
        if self._stateful:
            failures = OwnModelMetrics.challenger_state_failures
            yield from self._states.measure(failures, ("state", "too_large", "restore"))


def recent_arrays(recent: deque[tuple[float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predictions and labels of a window."""
    pairs: NDArray[Any] = np.array(recent, dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


class RecentErrors(NamedTuple):
    """Errors of a window, in the label's own unit. 0 if the window is empty."""

    rmse: float
    mae: float


def recent_errors(
    predictions: NDArray[np.float64], labels: NDArray[np.float64], label_unit: float
) -> RecentErrors:
    """The errors of predictions (n,) of labels (n,), both on the learning scale."""
    if not len(labels):
        return RecentErrors(0.0, 0.0)
    errors = np.abs(predictions - labels)
    return RecentErrors(label_unit * math.sqrt(np.square(errors).mean()), label_unit * float(errors.mean()))


def classification_measurements(
    predictions: NDArray[np.float64], labels: NDArray[np.float64], until: float, group: type, *model: str
) -> Iterable[Measurement]:
    """Log loss, accuracy and AUC as gauges.

    until: the time up to which they describe the present.
    group: the class that declares them. model: the challenger's name.
    """
    for metric, value in zip(
        declared(group), classification_figures(predictions, labels).values(), strict=True
    ):
        yield metric(value, *model, until=until)
