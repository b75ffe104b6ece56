"""Challengers: linear, knn and hoeffding are River's models of these names. Each predicts before it
learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from river import linear_model, neighbors, preprocessing, tree

from streamfl.contract.role import ConfigurationError
from streamfl.learning.challengers import challenger, challenger_names

REGRESSORS: dict[str, Callable[[], Any]] = {
    "linear": lambda: preprocessing.StandardScaler() | linear_model.LinearRegression(),
    "knn": neighbors.KNNRegressor,
    "scaled-knn": lambda: preprocessing.StandardScaler() | neighbors.KNNRegressor(),
    "hoeffding": lambda: preprocessing.StandardScaler() | tree.HoeffdingAdaptiveTreeRegressor(seed=0),
}
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "linear": lambda: preprocessing.StandardScaler() | linear_model.LogisticRegression(),
    "knn": neighbors.KNNClassifier,
    "scaled-knn": lambda: preprocessing.StandardScaler() | neighbors.KNNClassifier(),
    "hoeffding": lambda: preprocessing.StandardScaler() | tree.HoeffdingAdaptiveTreeClassifier(seed=0),
}
# Below 500 samples River's own neighbour search is exact too.
SAMPLES = 120


def stream() -> list[tuple[dict[int, float], float]]:
    generator = np.random.Generator(np.random.PCG64(8))
    inputs = generator.normal(size=(SAMPLES, 3)) * [1.0, 10.0, 0.1]
    labels = np.tanh(inputs[:, 0] + 0.1 * inputs[:, 1]) + 0.1 * generator.normal(size=SAMPLES)
    return [
        (dict(enumerate(row)), label) for row, label in zip(inputs.tolist(), labels.tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors_are_rivers(name: str) -> None:
    """Protects figures that are shown as River's: its model predicts the same, before the bounds of the
    labels seen."""
    model, found = REGRESSORS[name](), challenger(name)
    seen: list[float] = []
    for inputs, label in stream():
        expected = model.predict_one(inputs)
        assert found.predict(inputs) == pytest.approx(
            np.clip(expected, min(seen, default=0.0), max(seen, default=0.0)), abs=1e-12
        )
        model.learn_one(inputs, label)
        found.learn(inputs, label)
        seen.append(label)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_are_rivers(name: str) -> None:
    """Protects figures that are shown as River's: the same probability of label 1, kept away from 0 and 1 by
    1 / (2 n + 2)."""
    model, found = CLASSIFIERS[name](), challenger(name, "logistic")
    changes = 0
    for number, (inputs, value) in enumerate(stream()):
        label = float(value > 0.0)
        said = model.predict_proba_one(inputs)
        expected = said.get(True, 0.0) if said else 0.5
        kept = np.clip(expected, 1 / (2 * number + 2), 1 - 1 / (2 * number + 2))
        changes += kept != expected
        assert found.predict(inputs) == pytest.approx(kept, abs=1e-12)
        model.learn_one(inputs, value > 0.0)
        found.learn(inputs, label)
    assert changes < SAMPLES


def test_trivial_classifiers_are_shares_and_labels() -> None:
    """Protects the two baselines of classification: the share of ones, and the last label. Neither is ever
    certain."""
    share, last = challenger("running-mean", "logistic"), challenger("last-label", "logistic")
    seen: list[float] = []
    for label in (1.0, 1.0, 0.0):
        seen += [share.predict({}), last.predict({})]
        for one in (share, last):
            one.learn({}, label)
    assert seen == pytest.approx([0.5, 0.5, 0.75, 0.75, 5 / 6, 5 / 6])
    assert (share.predict({}), last.predict({})) == pytest.approx((2 / 3, 1 / 8))


@pytest.mark.parametrize("loss", ["square", "logistic"])
def test_every_name_is_known_with_every_loss(loss: Any) -> None:
    """Protects a configuration from losing its challengers when the loss changes, and a misspelt name from a
    KeyError."""
    assert {type(challenger(name, loss)).__name__ for name in challenger_names()}
    with pytest.raises(ConfigurationError, match="'trees': known are running-mean, last-label, linear"):
        challenger("trees", loss)


@pytest.mark.parametrize(("name", "loss"), [("knn", "square"), ("scaled-knn", "logistic")])
def test_neighbours_are_sought_among_the_latest_thousand(name: str, loss: Any) -> None:
    """Protects a worker's memory: samples kept for a client are bounded, and those outside the window have no
    influence."""
    found = challenger(name, loss)
    for number in range(1005):
        found.learn({0: float(number)}, float(number < 5))
    assert found.predict({0: 2.0}) <= 1 / (2 * 1005)
