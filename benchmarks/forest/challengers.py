"""What the forest is compared with: clients alone, and learners that see everybody's samples, which breaks
the promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.forest.cells import Stream
from benchmarks.forest.default import settings_of
from streamfl.pofmkl.tools.alone import alone

__all__ = ["LOCAL", "POOLED", "local", "pooled"]

Floats = NDArray[np.float64]
POOLED = ("pooled ExtraTrees", "pooled CatBoost")
LOCAL = ("default alone", "local ExtraTrees")
# A learner is fitted again when there are so many times the rounds of its last fit.
REFIT = 1.5


def _extra_trees(classes: bool, seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    make: Any = ExtraTreesClassifier if classes else ExtraTreesRegressor
    return make(50, min_samples_leaf=3 if classes else 1, random_state=seed, n_jobs=1)


def _cat_boost(classes: bool, seed: int) -> Any:
    from catboost import CatBoostClassifier, CatBoostRegressor

    make: Any = CatBoostClassifier if classes else CatBoostRegressor
    return make(iterations=300, random_seed=seed, thread_count=1, verbose=False, allow_writing_files=False)


def with_lags(stream: Stream) -> Floats:
    """Inputs, the client's own last two labels and its own mean of labels, all before the sample's label."""
    labels, rounds = stream.labels, stream.labels.shape[1]
    mean = (np.cumsum(labels, axis=1) - labels) / np.maximum(np.arange(rounds), 1)
    first, second = mean.copy(), mean.copy()
    first[:, 1:], second[:, 2:] = labels[:, :-1], labels[:, :-2]
    return np.concatenate([stream.inputs, np.stack([first, second, mean], axis=2)], axis=2)


def _in_time(
    make: Callable[[bool, int], Any], inputs: Floats, labels: Floats, classes: bool, seed: int
) -> Floats:
    """Predictions (K, T): each round by a model of earlier rounds alone, fitted at rounds that grow by
    ``REFIT``."""
    clients, rounds = labels.shape
    found = np.zeros(labels.shape)
    start = 1
    while start < rounds:
        stop = min(rounds, max(start + 1, int(start * REFIT)))
        rows, y = inputs[:, :start].reshape(clients * start, -1), labels[:, :start].ravel()
        ahead = inputs[:, start:stop].reshape(clients * (stop - start), -1)
        if np.ptp(y) == 0:
            said = np.full(len(ahead), y[0])
        else:
            model = make(classes, seed).fit(rows, y)
            said = model.predict_proba(ahead)[:, 1] if classes else model.predict(ahead)
        found[:, start:stop] = said.reshape(clients, -1)
        start = stop
    found[:, 0] = 0.5 if classes else 0.0
    return found


def pooled(name: str, stream: Stream, seed: int) -> Floats:
    """Predictions (T, K) of one of ``POOLED``, which is given the samples of all clients."""
    make = _extra_trees if name == POOLED[0] else _cat_boost
    return _in_time(make, with_lags(stream), stream.labels, stream.loss == "logistic", seed).T


def local(name: str, stream: Stream, seed: int) -> Floats:
    """Predictions (T, K) of one of ``LOCAL``: a client has its own samples alone."""
    clients = len(stream.labels)
    if name == LOCAL[0]:
        settings = settings_of(clients, seed, stream.loss, 5)
        return alone(settings, np.swapaxes(stream.inputs, 0, 1), stream.labels.T)
    inputs = with_lags(stream)
    classes = stream.loss == "logistic"
    each = [
        _in_time(_extra_trees, inputs[k : k + 1], stream.labels[k : k + 1], classes, seed)
        for k in range(clients)
    ]
    return np.concatenate(each).T
