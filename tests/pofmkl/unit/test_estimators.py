"""The River estimators: good citizens of River, and POF-MKL's equations with one client."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from pofmkl.unit.test_default_estimators import first_of_each
from river.checks import yield_checks

from streamfl.kernels import frequencies, grid
from streamfl.pofmkl.estimators.online import POFMKLClassifier, POFMKLRegressor

ESTIMATORS = [POFMKLRegressor, POFMKLClassifier]
KERNELS = grid(["gaussian"], [0.3, 1.0, 3.0])
CHECKS = [
    pytest.param(estimator, check, id=f"{estimator.__name__}-{name}")
    for estimator in ESTIMATORS
    for name, check in first_of_each(yield_checks(estimator(features_per_kernel=20))).items()
]


@pytest.mark.long
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_river_check(estimator: Any, check: Any) -> None:
    """Each check of river.checks.check_estimator, with none skipped: pipelines and evaluators rely on every
    one."""
    model = estimator(features_per_kernel=20)
    assert not model._unit_test_skips()
    check(model)


def oracle(
    inputs: NDArray[np.float64],
    labels: NDArray[np.float64],
    rate: float,
    regularisation: float,
    logistic: bool,
) -> tuple[list[float], NDArray[np.float64]]:
    """Predictions before each label, and the final kernel weights: the equations, kernel by kernel, number by
    number."""
    drawn = frequencies(KERNELS, 5, inputs.shape[1], seed=4, dtype=np.float64)
    theta = [np.zeros(10) for _ in KERNELS]
    cumulative = [0.0 for _ in KERNELS]
    outputs = []
    for x, y in zip(inputs, labels, strict=True):
        weights = [math.exp(-rate * (loss - min(cumulative))) for loss in cumulative]
        kernel_outputs, z = [], []
        for i in range(len(KERNELS)):
            phase = [float(np.dot(omega, x)) for omega in drawn[i]]
            z.append(np.array([math.sin(p) for p in phase] + [math.cos(p) for p in phase]) / math.sqrt(5))
            kernel_outputs.append(float(np.dot(theta[i], z[i])))
        outputs.append(sum(w * f for w, f in zip(weights, kernel_outputs, strict=True)) / sum(weights))
        for i, f in enumerate(kernel_outputs):
            loss = math.log(1 + math.exp(f)) - y * f if logistic else (f - y) ** 2
            slope = 1 / (1 + math.exp(-f)) - y if logistic else 2 * (f - y)
            cumulative[i] += loss + regularisation * float(np.dot(theta[i], theta[i]))
            theta[i] = theta[i] - rate * (slope * z[i] + 2 * regularisation * theta[i])
    weights = np.array([math.exp(-rate * (loss - min(cumulative))) for loss in cumulative])
    return outputs, weights / weights.sum()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
def test_the_estimator_is_the_papers_equations(estimator: Any, precision: str, tolerance: float) -> None:
    """Equations (4) and (6) to (10) with K = 1, p = 1: River users get the learner that the paper's tables
    call local."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(150, 3))
    logistic = estimator is POFMKLClassifier
    labels = (
        (np.sin(2 * inputs[:, 0]) > 0).astype(float) if logistic else np.sin(2 * inputs[:, 0]) + inputs[:, 1]
    )
    expected, weights = oracle(inputs, labels, 0.2, 0.01, logistic)
    model = estimator(KERNELS, 5, 0.2, 0.01, precision, seed=4)
    for x, y, output in zip(inputs, labels, expected, strict=True):
        sample = dict(zip("abc", x.tolist(), strict=True))
        if logistic:
            predicted = model.predict_proba_one(sample)[True]
            assert predicted == pytest.approx(1 / (1 + math.exp(-output)), rel=tolerance, abs=tolerance)
        else:
            assert model.predict_one(sample) == pytest.approx(output, rel=tolerance, abs=tolerance)
        model.learn_one(sample, bool(y) if logistic else y)
    np.testing.assert_allclose(model.kernel_weights, weights, rtol=100 * tolerance)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_frames_keep_their_index_and_names(estimator: Any) -> None:
    """Predictions are joined back to the frame by index: a fresh RangeIndex would join the wrong rows without
    an error."""
    generator = np.random.default_rng(1)
    frame = pd.DataFrame(generator.normal(size=(70, 2)), columns=["a", "b"], index=range(500, 570))
    labels = pd.Series(frame["a"] > 0, name="target")
    many, one = estimator(KERNELS, 5), estimator(KERNELS, 5)
    many.learn_many(frame, labels)
    for (_, row), label in zip(frame.iterrows(), labels, strict=True):
        one.learn_one(row.to_dict(), bool(label))
    predicted = many.predict_many(frame)
    assert predicted.name == "target"
    assert predicted.index.equals(frame.index)
    rows = [one.predict_one(row.to_dict()) for _, row in frame.iterrows()]
    np.testing.assert_allclose(predicted.astype(float), np.array(rows, dtype=float), rtol=1e-9)
    if estimator is POFMKLClassifier:
        assert predicted.dtype == bool
        assert many.predict_proba_many(frame).index.equals(frame.index)
    assert many.predict_many(frame.iloc[:0]).empty


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, "text"])
def test_a_broken_sample_is_refused_and_leaves_no_trace(estimator: Any, poison: Any) -> None:
    """One NaN in the parameters would make every later prediction a NaN: the sample is refused before
    anything changes."""
    model = estimator(KERNELS, 5)
    model.learn_one({"a": 0.5}, True)
    before = pickle.dumps(model)
    with pytest.raises(ValueError):
        model.learn_one({"a": poison, "new": 1.0}, True)
    with pytest.raises(ValueError):
        model.learn_one({"a": 1.0, "new": 1.0}, poison)
    with pytest.raises(ValueError):
        model.learn_many(pd.DataFrame({"a": [1.0, 2.0], "new": [1.0, poison]}), pd.Series([True, False]))
    with pytest.raises(ValueError, match="2 rows of features come with 1 labels"):
        model.learn_many(pd.DataFrame({"a": [1.0, 2.0]}), pd.Series([True]))
    with pytest.raises(ValueError):
        model.predict_many(pd.DataFrame({"a": [poison]}))
    assert pickle.dumps(model) == before


def test_a_late_feature_leaves_what_was_learnt_in_place() -> None:
    """A new sensor counts as 0 in what came before: old samples must be predicted as they were, and the new
    one matter."""
    model = POFMKLRegressor(KERNELS, 5, learning_rate=0.3)
    for x in np.linspace(-1, 1, 50).tolist():
        model.learn_one({"b": x, "c": -x}, x)
    before = model.predict_one({"b": 0.5, "c": 0.1})
    assert model.predict_one({"b": 0.5, "c": 0.1, "a": 9.0}) == before
    grown = copy.deepcopy(model)
    grown._grown(["a"])
    assert grown.predict_one({"b": 0.5, "c": 0.1}) == pytest.approx(before, rel=1e-12)
    assert abs(grown.predict_one({"b": 0.5, "c": 0.1, "a": 9.0}) - before) > 1e-3
    first, late = grown._feature_map.frequencies[..., 0], grown._feature_map.frequencies[..., 2]
    assert not np.isclose(first, late).any(), (
        "the late feature must not repeat the directions of an early one"
    )


def test_before_any_sample_and_without_features() -> None:
    """A stream may begin with predictions, or with an empty record."""
    assert POFMKLRegressor().predict_one({"a": 1.0}) == 0.0
    assert POFMKLClassifier().predict_proba_one({"a": 1.0}) == {False: 0.5, True: 0.5}
    assert len(POFMKLRegressor().kernel_weights) == 0
    model = POFMKLRegressor(KERNELS, 5)
    model.learn_one({}, 1.0)
    assert model.predict_one({}) > 0.0
