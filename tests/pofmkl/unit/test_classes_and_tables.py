"""The estimators take what people have: labels of any kind and number, tables of the usual libraries,
scikit-learn's calls."""

from __future__ import annotations

import pickle
from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river import compat, datasets, metrics

from streamfl.pofmkl.estimators import default_estimators
from streamfl.pofmkl.estimators.default_estimators import Classifier, Regressor


@pytest.fixture(autouse=True)
def _few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_estimators, "BANDWIDTHS", (1.4,))


def rows(count: int = 60) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    generator = np.random.default_rng(8)
    inputs = generator.normal(size=(count, 2))
    return inputs, inputs[:, 0] + 0.5 * inputs[:, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    "labels",
    [
        ("no", "yes"),
        (2.0, 7.0),
    ],
)
def test_two_classes_have_any_names(labels: tuple[Any, Any]) -> None:
    """Protects whoever has labels of two kinds: they come back as they were, as likely as True and False are,
    and River counts."""
    found: dict[Hashable, list[float]] = {}
    accuracies = []
    for names in ((False, True), labels):
        model, accuracy = Classifier(features_per_kernel=10), metrics.Accuracy()
        for x, y in datasets.Phishing().take(150):
            accuracy.update(names[y], model.predict_one(x))
            model.learn_one(x, names[y])
            found.setdefault(names, []).append(model.predict_proba_one(x).get(names[True], 0.0))
        assert set(model.predict_proba_one(x)) == set(names)
        assert sum(model.predict_proba_one(x).values()) == 1.0
        accuracies.append(accuracy.get())
    # Which of the two is learnt as 1 moves no more than rounding and the first predictions.
    np.testing.assert_allclose(found[labels][20:], found[False, True][20:], atol=0.02)
    assert accuracies[0] > 0.7
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.02)


def test_more_classes_are_learnt_against_the_rest() -> None:
    """Protects data of several kinds, and a kind that comes late: the latest samples were of the others,
    which it is told from."""
    generator = np.random.default_rng(2)
    model, right = Classifier(features_per_kernel=20), []
    for number in range(300):
        x = dict(zip("ab", generator.normal(size=2).tolist(), strict=True))
        kind = "left" if x["a"] < -0.4 else "right" if x["a"] > 0.4 else "middle" if number > 60 else "left"
        right.append(model.predict_one(x) == kind)
        model.learn_one(x, kind)
    assert list(model.predict_proba_one(x)) in (["left", "right", "middle"], ["right", "left", "middle"])
    assert sum(model.predict_proba_one(x).values()) == pytest.approx(1.0)
    assert np.mean(right[200:]) > 0.8
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    model.learn_one(x, "middle")
    again.learn_one(x, "middle")
    assert again.predict_proba_one(x) == model.predict_proba_one(x)


def test_before_any_label_there_is_no_class() -> None:
    """Protects River's metrics, which pass over samples that nobody could predict; one class that was seen is
    certain."""
    model = Classifier(features_per_kernel=10)
    assert model.predict_proba_one({"a": 1.0}) == {}
    assert model.predict_one({"a": 1.0}) is None
    model.learn_one({"a": 1.0}, "red")
    assert model.predict_proba_one({"a": 1.0}) == {"red": 1.0}


def test_labels_that_are_no_classes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a notebook's memory from a learner for each number, or for each name, of a column that was
    taken for the label."""
    monkeypatch.setattr(default_estimators, "MOST_CLASSES", 3)
    model = Classifier(features_per_kernel=10)
    for kind in ("a", "b", "c", "a"):
        model.learn_one({"x": 1.0}, kind)
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match="the label is 'd': more than 3 classes came"):
        model.learn_one({"x": 1.0}, "d")
    assert pickle.dumps(model) == before


@pytest.mark.long
@pytest.mark.parametrize("estimator", [Regressor, Classifier])
def test_tables_of_each_library_are_learnt_alike(estimator: Any) -> None:
    """Protects whoever has no pandas frame: rows are learnt as samples are, and answers are of the table's
    own library."""
    inputs, numbers = rows()
    labels = (
        numbers
        if estimator is Regressor
        else np.where(numbers > 0.5, "high", np.where(numbers < -0.5, "low", "middle"))
    )
    tables: list[tuple[Any, Any, type]] = [
        (pd.DataFrame(inputs, range(500, 560), ["0", "1"]), pd.Series(labels, name="t"), pd.Series),
        (pl.DataFrame(inputs, schema=["0", "1"]), pl.Series("t", labels), pl.Series),
        (inputs, labels, np.ndarray),
        (inputs, labels.tolist(), np.ndarray),
    ]
    one = estimator(features_per_kernel=10)
    for row, label in zip(inputs.tolist(), labels.tolist(), strict=True):
        one.learn_one(dict(enumerate(row)), label)
    expected = [one.predict_one(dict(enumerate(row))) for row in inputs.tolist()]
    for table, answers, kind in tables:
        many = estimator(features_per_kernel=10)
        many.learn_many(table, answers)
        predicted = many.predict_many(table)
        assert isinstance(predicted, kind)
        assert [*predicted] == expected
        if isinstance(table, pd.DataFrame):
            assert predicted.index.equals(table.index)
        if kind is np.ndarray:
            # Their columns are 0 and 1.
            assert many.predict_one(dict(enumerate(inputs[0].tolist()))) == expected[0]
        assert len(many.predict_many(table[:0])) == 0
        assert getattr(predicted, "name", "t") == "t"
        if estimator is Classifier:
            probabilities = many.predict_proba_many(table)
            assert type(probabilities) is type(table)
            np.testing.assert_allclose(np.asarray(probabilities).sum(axis=1), 1.0)
            assert many.predict_proba_many(table[:0]).shape == (0, 3)


def test_a_gap_in_a_table_is_a_gap() -> None:
    """Protects frames of polars with nulls, which are no NaN: such a feature counts as its mean so far."""
    model, other = Regressor(features_per_kernel=10), Regressor(features_per_kernel=10)
    model.learn_many(pl.DataFrame({"a": [1.0, 2.0, None], "b": [1.0, 0.0, 1.0]}), pl.Series([1.0, 2.0, 3.0]))
    other.learn_many(
        pd.DataFrame({"a": [1.0, 2.0, np.nan], "b": [1.0, 0.0, 1.0]}), pd.Series([1.0, 2.0, 3.0])
    )
    assert model.predict_one({"a": 1.0, "b": 1.0}) == other.predict_one({"a": 1.0, "b": 1.0})


@pytest.mark.parametrize("table", [[[1.0], [2.0]], np.zeros(2), {"a": [1.0, 2.0]}, "a.csv"])
def test_what_is_no_table_is_told(table: Any) -> None:
    """Protects the first try from an error deep inside: the error says what is taken."""
    with pytest.raises(ValueError, match="a DataFrame of pandas or polars or a NumPy array"):
        Regressor(features_per_kernel=10).learn_many(table, [1.0, 2.0])


def test_scikit_learn_takes_them_through_rivers_adapter() -> None:
    """Protects whoever knows scikit-learn's calls: fit, predict, score and get_params, and a clone that has
    learnt nothing."""
    from sklearn.base import clone

    inputs, numbers = rows(120)
    for model, labels in (
        (Regressor(features_per_kernel=10), numbers),
        (Classifier(features_per_kernel=10), np.where(numbers > 0, "up", "down")),
    ):
        adapted = compat.convert_river_to_sklearn(model)
        assert adapted.fit(inputs, labels).score(inputs[-40:], labels[-40:]) > 0.9
        assert adapted.get_params()["river_estimator"] is model
        again = clone(adapted).fit(inputs[:50], labels[:50])
        assert len(again.predict(inputs)) == 120
