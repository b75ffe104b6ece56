"""The estimators beside River's on the tables that River carries: processor time of a sample, bytes of a
copy, and errors."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

from river import datasets, dummy, linear_model, metrics, neighbors, preprocessing, stats

import streamfl
from benchmarks.figures import Figure, size

# All rows of both tables.
ROWS, RUNS = size(10_000, 3), size(20, 1)
COPIED_AFTER = 300
REGRESSORS: dict[str, Callable[[], Any]] = {
    "streamfl.Regressor": streamfl.Regressor,
    "StandardScaler and KNNRegressor": lambda: preprocessing.StandardScaler() | neighbors.KNNRegressor(),
    "StandardScaler and LinearRegression": lambda: (
        preprocessing.StandardScaler() | linear_model.LinearRegression()
    ),
    "the running mean": lambda: dummy.StatisticRegressor(stats.Mean()),
}
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "streamfl.Classifier": streamfl.Classifier,
    "StandardScaler and LogisticRegression": lambda: (
        preprocessing.StandardScaler() | linear_model.LogisticRegression()
    ),
    "the most frequent class": dummy.PriorClassifier,
}


def measure() -> Iterator[Figure]:
    model, samples = streamfl.Regressor(), [*datasets.TrumpApproval().take(min(ROWS, COPIED_AFTER))]
    for x, y in samples:
        model.learn_one(x, y)
    megabytes = len(pickle.dumps(model)) / 1e6
    yield Figure(
        f"streamfl.Regressor after {COPIED_AFTER} samples, pickled", megabytes, "MB", 0.5, at_most=True
    )
    for name, make in REGRESSORS.items():
        seconds, error = _learnt(make, datasets.TrumpApproval(), metrics.MAE)
        goal = 0.8 if make is streamfl.Regressor else None
        yield Figure(
            f"{name}, TrumpApproval, processor time", 1e3 * seconds, "ms a sample", goal, at_most=True
        )
        yield Figure(f"{name}, TrumpApproval, mean absolute error", error, "")
    for name, make in CLASSIFIERS.items():
        seconds, accuracy = _learnt(make, datasets.Phishing(), metrics.Accuracy)
        yield Figure(f"{name}, Phishing, processor time", 1e3 * seconds, "ms a sample")
        yield Figure(f"{name}, Phishing, accuracy", 100 * accuracy, "%")


def _learnt(make: Callable[[], Any], table: Any, metric: Callable[[], Any]) -> tuple[float, float]:
    """Processor seconds of predicting and learning a sample, the least of several runs, and the error of the
    predictions."""
    samples, least, error = [*table.take(ROWS)], float("inf"), metric()
    for _ in range(RUNS):
        model, error = make(), metric()
        predicted, begun = [], time.process_time()
        for x, y in samples:
            predicted.append(model.predict_one(x))
            model.learn_one(x, y)
        least = min(least, (time.process_time() - begun) / len(samples))
        for (_, y), found in zip(samples, predicted, strict=True):
            # Before any label a classifier knows no class.
            if found is not None:
                error.update(y, found)
    return least, error.get()
