"""The default learner as River estimators: good citizens of River, and what the service runs."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river import datasets
from river.checks import yield_checks
from threadpoolctl import threadpool_info, threadpool_limits

from streamfl.contract.role import ConfigurationError
from streamfl.learning.one_thread import one_thread
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.estimators import default_estimators
from streamfl.pofmkl.estimators.default_estimators import KEPT, Classifier, Regressor
from streamfl.pofmkl.estimators.lone_client import LOG_ROWS, LoneClient
from streamfl.pofmkl.tools.alone import alone

ESTIMATORS = [Regressor, Classifier]


def first_of_each(checks: Iterable[Callable[[Any], None]]) -> dict[str, Callable[[Any], None]]:
    """By name, the first check that has it."""
    found: dict[str, Callable[[Any], None]] = {}
    for check in checks:
        found.setdefault(check.__name__, check)
    return found


# Each check with one of the data sets that River tries it with: all of them take twice the time.
CHECKS = [
    pytest.param(estimator, check, id=f"{estimator.__name__}-{name}")
    for estimator in ESTIMATORS
    for name, check in first_of_each(yield_checks(estimator(features_per_kernel=10))).items()
]


@pytest.mark.long
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_river_check(estimator: Any, check: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check of river.checks.check_estimator, with none skipped: pipelines and evaluators rely on every
    one.

    Of 4 kernels instead of 24, for the conventions do not depend on their number and the time does.
    """
    monkeypatch.setattr(default_estimators, "BANDWIDTHS", (1.4,))
    model = estimator(features_per_kernel=10)
    assert not model._unit_test_skips()
    check(model)


@pytest.mark.parametrize(
    ("estimator", "loss", "data"),
    [(Regressor, "square", "TrumpApproval"), (Classifier, "logistic", "Phishing")],
)
def test_it_predicts_what_a_lone_client_of_the_service_predicts(estimator: Any, loss: str, data: str) -> None:
    """Protects the promise of the name: who tries it in a notebook sees what the service will do, to
    rounding."""
    rows = list(getattr(datasets, data)().take(150))
    names = sorted(rows[0][0], key=repr)
    inputs = np.array([[x[name] for name in names] for x, _ in rows])
    labels = np.array([float(y) for _, y in rows])
    settings = PofmklSettings(
        federation={"name": "alone", "clients": 1, "features": names},
        role={"kind": "pofmkl-client"},
        learning={"loss": loss},
    )
    low, high = (labels.min(), labels.max()) if loss == "square" else (0.0, 1.0)
    with threadpool_limits(1):
        served = alone(settings, inputs[:, None], (labels[:, None] - low) / (high - low))[:, 0]
    expected = low + (high - low) * served
    model, found = estimator(), []
    for x, y in rows:
        found.append(model.predict_proba_one(x).get(True) if loss == "logistic" else model.predict_one(x))
        model.learn_one(x, y)
    # Before any label the service has the lower end of samples.label_range, which the estimator does not
    # know.
    np.testing.assert_allclose(np.array(found[1:], float), expected[1:], atol=1e-5 * (high - low))
    assert sum(model.kernel_weights) == pytest.approx(1.0)


def test_products_are_on_one_thread_and_others_have_theirs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a notebook on a busy machine, where a step took 20 times as long; and other work there, which
    may use all."""

    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    during = []
    for name in ("predict", "learn"):
        found = getattr(LoneClient, name)

        def watched(*given: Any, found: Any = found) -> Any:
            during.append(threads())
            return found(*given)

        monkeypatch.setattr(LoneClient, name, watched)
    with threadpool_limits(2, user_api="blas"):
        model, before = Regressor(features_per_kernel=10), threads()
        model.learn_one({"a": 1.0}, 1.0)
        model.predict_one({"a": 1.0})
        assert threads() == before
        with one_thread:
            model.predict_one({"a": 1.0})
            # As if a second Python thread had come and gone.
            assert threads() == {1}
        assert threads() == before
    assert during == [{1}, {1}, {1}]


def test_no_unit_of_the_label_has_to_be_known() -> None:
    """Protects users without a label_range: the same stream in another unit is predicted the same way, in
    that unit."""
    generator = np.random.default_rng(3)
    rows = [({"a": a, "b": b}, math.sin(2 * a) + b) for a, b in generator.normal(size=(120, 2)).tolist()]
    predictions = []
    for unit, origin in ((1.0, 0.0), (1e-9, 0.0), (1e12, -4e13)):
        model, found = Regressor(features_per_kernel=10), []
        for x, y in rows:
            found.append(model.predict_one(x))
            model.learn_one(x, origin + unit * y)
        predictions.append([(one - origin) / unit for one in found[1:]])
    labels = np.array([y for _, y in rows[1:]])
    assert np.square(predictions[0] - labels)[60:].mean() < 0.4 * labels.var()
    np.testing.assert_allclose(predictions[1], predictions[0], atol=1e-3)
    np.testing.assert_allclose(predictions[2], predictions[0], atol=1e-3)


def test_looking_at_a_sample_leaves_no_trace() -> None:
    """Protects dashboards and shadow traffic: a prediction that nobody learns from must not move the next
    one."""
    rows = list(datasets.TrumpApproval().take(60))
    model = Regressor(features_per_kernel=10)
    for x, y in rows[:50]:
        model.learn_one(x, y)
    before = pickle.dumps(model)
    for x, _ in rows[50:]:
        model.predict_one({name: 10 * value for name, value in x.items()})
    assert pickle.dumps(model) == before
    untouched = copy.deepcopy(model)
    assert [model.predict_one(x) for x, _ in rows] == [untouched.predict_one(x) for x, _ in rows]


@pytest.mark.parametrize(
    ("estimator", "samples"),
    [(Regressor, 3), (Regressor, LOG_ROWS + 30), (Classifier, 100)],
)
def test_a_copy_is_small_and_goes_on_as_the_original(estimator: Any, samples: int) -> None:
    """Protects models that are stored: a copy holds samples for matrices, and predicts what the original
    does, to the last bit."""
    data = datasets.TrumpApproval() if estimator is Regressor else datasets.Phishing()
    rows = list(data.take(samples + 70))
    model = estimator(river=("linear",))
    for x, y in rows[:samples]:
        model.learn_one(x, y)
    stored = pickle.dumps(model)
    assert len(stored) < (200_000 if samples < LOG_ROWS else 2_200_000)
    again = pickle.loads(stored)  # noqa: S301
    for x, y in rows[samples:]:
        assert again.predict_one(x) == model.predict_one(x)
        if estimator is Classifier:
            assert again.predict_proba_one(x) == model.predict_proba_one(x)
        for one in (model, again):
            one.learn_one(x, y)


STORED = """
import pickle, streamfl
model = streamfl.Regressor(features_per_kernel=10)
for number in range(40):
    model.learn_one({"a": float(number)}, float(number % 3))
again = pickle.loads(pickle.dumps(model))
for number in range(20):
    assert again.predict_one({"a": float(number)}) == model.predict_one({"a": float(number)})
    for one in (model, again):
        one.learn_one({"a": float(number)}, 9.0)
"""


def test_a_program_that_imports_no_more_than_streamfl_can_store_a_model() -> None:
    """Protects a pickle from how ADWIN is loaded: without the rest of River its class is another than the one
    that pickle finds. Here River is loaded as a whole, so it takes another process."""
    done = subprocess.run([sys.executable, "-c", STORED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("gap", [None, math.nan, "absent"])
def test_a_missing_feature_is_as_on_average(gap: Any) -> None:
    """Protects streams with gaps: such a sample is predicted and learnt from, and is like one with the mean
    in that place."""
    generator = np.random.default_rng(4)
    model = Regressor(features_per_kernel=10)
    seen = generator.normal(5.0, 2.0, size=(80, 2))
    for a, b in seen.tolist():
        model.learn_one({"a": a, "b": b}, a + b)
    sample = {"a": 6.0} if gap == "absent" else {"a": 6.0, "b": gap}
    assert model.predict_one(sample) == pytest.approx(
        model.predict_one({"a": 6.0, "b": float(seen[:, 1].mean())}), rel=1e-9
    )
    model.learn_one(sample, 11.0)
    assert math.isfinite(model.predict_one(sample))


def test_a_late_feature_is_learnt_and_costs_nothing_of_what_was_learnt() -> None:
    """Protects a stream that gains a sensor far from zero: errors stay small, and it helps later."""
    generator = np.random.default_rng(5)
    model, errors = Regressor(features_per_kernel=20), []
    for number in range(400):
        a, late = generator.normal(size=2).tolist()
        x, y = {"a": a, "b": -a}, 2.0 * a
        if number >= 200:
            x, y = x | {"late": 1000.0 + late}, y + late
        errors.append((model.predict_one(x) - y) ** 2)
        model.learn_one(x, y)
    assert np.mean(errors[150:200]) < 0.05
    assert np.mean(errors[200:230]) < 4.0
    assert np.mean(errors[350:]) < 0.5
    assert len(model._latest) == KEPT


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("poison", ["21.5", math.inf])
def test_a_broken_sample_is_refused_by_name_and_leaves_no_trace(estimator: Any, poison: Any) -> None:
    """Protects what was learnt, and the user's time: the feature is named, and text like a number is none."""
    model = estimator(features_per_kernel=10)
    model.learn_one({"a": 0.5}, True)
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match="'new'"):
        model.learn_one({"a": 1.0, "new": poison}, True)
    if estimator is Regressor or poison is math.inf:
        with pytest.raises(ValueError, match="label"):
            model.learn_one({"a": 1.0, "new": 1.0}, poison)
    with pytest.raises(ValueError, match="label"):
        model.learn_one({"a": 1.0, "new": 1.0}, None)
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("x", [{}, {"a": pd.NA}])
def test_a_first_sample_may_have_no_feature(
    estimator: Any, x: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects streams that begin with a gap: its label is learnt, and so is whatever feature comes later."""
    monkeypatch.setattr(default_estimators, "BANDWIDTHS", (1.4,))
    one, many = estimator(features_per_kernel=10), estimator(features_per_kernel=10)
    one.learn_one(x, 1)
    assert one.predict_one(x) == 1
    many.learn_many(pd.DataFrame([x]), pd.Series([1]))
    for step in range(40):
        for model in (one, many):
            model.learn_one({"a": float(step % 2), "b": -1.0}, step % 2)
    assert [round(one.predict_one({"a": a, "b": -1.0})) for a in (0.0, 1.0)] == [0, 1]
    assert many.predict_one({"a": 1.0}) == one.predict_one({"a": 1.0})


NO_LABELS = [None, math.inf, pd.NA, [1.0]]


@pytest.mark.parametrize(
    ("estimator", "y"),
    [(Regressor, y) for y in (*NO_LABELS, 2e18, 10**400, 1j, "1")]
    + [(Classifier, y) for y in (*NO_LABELS, 0.5)],
)
def test_a_label_that_cannot_be_learnt_is_told(
    estimator: Any, y: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects all later predictions from one label, and whoever looks for it: the error says what it is, and
    nothing is learnt."""
    monkeypatch.setattr(default_estimators, "BANDWIDTHS", (1.4,))
    model = estimator(features_per_kernel=10)
    model.learn_one({"a": 1.0}, 1)
    with pytest.raises(ValueError, match="the label is"):
        model.learn_one({"a": 2.0}, y)
    with pytest.raises(ValueError, match="the label is"):
        model.learn_many(pd.DataFrame({"a": [2.0]}), pd.Series([y], dtype=object))
    assert model.predict_one({"a": 1.0}) == 1


def test_labels_too_far_apart_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from predictions that are all NaN: a label is counted in units of how far the first two are
    apart."""
    monkeypatch.setattr(default_estimators, "BANDWIDTHS", (1.4,))
    model = Regressor(features_per_kernel=10)
    for label in (0.0, 1e-25):
        model.learn_one({"a": 1.0}, label)
    with pytest.raises(ValueError, match=r"the label is 1e\+18: that is too far"):
        model.learn_one({"a": 1.0}, 1e18)
    assert math.isfinite(model.predict_one({"a": 1.0}))


@pytest.mark.parametrize("value", [[1.0], 1j, 10**400, np.ones(2), object()])
def test_a_feature_that_is_no_number_is_named(value: Any) -> None:
    """Protects the search for it: an error of Python's says that something is no number, and not what."""
    with pytest.raises(ValueError, match="the feature 'a' is"):
        Regressor(features_per_kernel=10).learn_one({"a": value}, 1.0)


def test_mistakes_in_parameters_are_told() -> None:
    """Protects from a typing slip that would choose by accident."""
    with pytest.raises(ConfigurationError, match="'half' is not one of float32, float64"):
        Regressor(precision="half").learn_one({"a": 1.0}, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="'adwn' is not one of adwin, none"):
        Regressor(detector="adwn").learn_one({"a": 1.0}, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="known are"):
        Regressor(river=("forest",)).learn_one({"a": 1.0}, 1.0)
    with pytest.raises(ConfigurationError, match="river = 'linear': a tuple"):
        Regressor(river="linear").learn_one({"a": 1.0}, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["seed", "features_per_kernel"])
@pytest.mark.parametrize("value", [None, "7", 7.0, True, 2**63])
def test_a_number_that_is_not_whole_is_told_by_its_name(name: str, value: Any) -> None:
    """Protects River's users, whose seeds may be None: the error came from the depth and named nothing."""
    with pytest.raises(ConfigurationError, match=f"{name} = .*: a whole number of at least"):
        Regressor(**{name: value}).learn_one({"a": 1.0}, 1.0)


TABLE = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["a", "b"])


@pytest.mark.parametrize(
    ("samples", "labels", "told"),
    [
        (pl.DataFrame(TABLE).lazy(), [0, 1], "the samples are a LazyFrame"),
        (TABLE.set_axis(["a", "a"], axis=1), [0, 1], "2 columns have 1 names: 'a'"),
        (TABLE, TABLE[["a"]], "the labels are a DataFrame"),
        (TABLE, np.zeros((2, 1)), "the labels are an array of 2 dimensions"),
    ],
    ids=["lazy", "twice", "a frame of labels", "a column of labels"],
)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_table_of_another_shape_is_told(estimator: Any, samples: Any, labels: Any, told: str) -> None:
    """Protects the search for what is wrong with a table: pandas and polars answered in their own words, or
    the labels of a frame were counted by its columns."""
    model = estimator(features_per_kernel=10)
    with pytest.raises(ValueError, match=told):
        model.learn_many(samples, labels)
    assert model.predict_one({"a": 1.0}) == estimator().predict_one({"a": 1.0})


@pytest.mark.parametrize("sample", [[1.0, 2.0], None, "a"])
def test_a_sample_that_is_no_dictionary_is_told(sample: Any) -> None:
    """Protects users of scikit-learn, to whom a sample is a row."""
    with pytest.raises(ValueError, match="a dictionary of features is expected"):
        Regressor(features_per_kernel=10).predict_one(sample)
