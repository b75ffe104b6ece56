"""River's objects as functions of the latest samples, and River's models among a client's experts."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from river import linear_model, preprocessing

from streamfl.kernels import SQUARE, Loss
from streamfl.learning.challengers import LastLabel
from streamfl.pofmkl.learning import windowed
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.learner import Batch, Learnt
from streamfl.pofmkl.learning.neighbours import Projection
from streamfl.pofmkl.learning.views import VIEWS, ViewedFeatures
from streamfl.pofmkl.learning.windowed import ChangeDetector, Windowed, risen_since

Floats = NDArray[np.float64]


def learner(dimension: int = 3, loss: Loss = SQUARE, **options: Any) -> DefaultLearner:
    features = ViewedFeatures(VIEWS, (0.7, 2.8), 5, dimension, seed=4, dtype=np.float64)
    return DefaultLearner(features=features, loss=loss, seed=4, **options)


def take(one: DefaultLearner, rows: list[int], inputs: Floats, labels: Floats) -> Learnt:
    """inputs (clients, n, d) and labels (clients, n), NaN: none, all in one batch."""
    clients, samples = labels.shape
    given = labels.reshape(-1)
    batch = Batch(
        rows=np.array(rows),
        starts=np.arange(clients) * samples,
        counts=np.full(clients, samples),
        inputs=inputs.reshape(clients * samples, -1),
        labels=np.nan_to_num(given),
        labelled=np.isfinite(given),
    )
    parameters = np.random.default_rng(8).standard_normal((one.kernels, one.row_length)) / 5
    return one.predict_and_learn(batch, parameters, np.square(parameters).sum(axis=1))


def stream(
    clients: int = 2, samples: int = 600, dimension: int = 3, change: int | None = None
) -> tuple[Floats, Floats]:
    """Labels of a function of the inputs, some of them missing, and another function from a sample on."""
    rng = np.random.default_rng(3)
    inputs = rng.uniform(-1, 1, (clients, samples, dimension))
    labels = 0.3 + 0.2 * np.sin(3 * inputs[..., 0]) + 0.01 * rng.standard_normal((clients, samples))
    if change is not None:
        labels[:, change:] += 2.0 - 0.5 * inputs[:, change:, 1]
    labels[rng.random(labels.shape) < 0.1] = np.nan
    return inputs, labels


class Log:
    """Knows the samples it was fed."""

    def __init__(self) -> None:
        self.fed: list[float] = []

    def learn(self, sample: NDArray[np.float32]) -> None:
        self.fed.append(float(sample[0]))


def test_window_is_the_latest_period_to_two_periods() -> None:
    """Fixes what an object knows after each sample, asked every time, now and then, or once: always the same
    samples."""
    ring = 10
    often, seldom = Windowed(Log, ring), Windowed(Log, ring)
    kept = np.zeros((ring, 1), np.float32)
    for count in range(48):
        if count:
            kept[(count - 1) % ring] = count - 1
        first = max(0, 5 * (count // 5 - 1))
        expected = list(range(first, count))
        assert often.at(1, kept, count).fed == expected
        assert Windowed(Log, ring).at(1, kept, count).fed == expected
        if count % 17 == 0:
            assert seldom.at(1, kept, count).fed == expected
    often.forget(1)
    assert often.at(1, np.zeros((ring, 1), np.float32), 2).fed == [0.0, 0.0]


def assert_same_after_restart(
    inputs: Floats, labels: Floats, cut: int, options: dict[str, Any]
) -> DefaultLearner:
    one, other = learner(**options), learner(**options)
    rows = [one.borrow(), one.borrow()]
    remembered: dict[int, dict[bytes, bytes]] = {row: {} for row in rows}
    for start in range(0, cut, 7):
        stop = min(start + 7, cut)
        take(one, rows, inputs[:, start:stop], labels[:, start:stop])
        for row in rows:
            remembered[row] |= one.parts(row)
    other.borrow()
    restored = [other.borrow() for _ in rows]
    for row, new in zip(rows, restored, strict=True):
        for key, value in remembered[row].items():
            other.restore_part(new, key, value)
    for start in range(cut, labels.shape[1], 11):
        some = inputs[:, start : start + 11], labels[:, start : start + 11]
        left, right = take(one, rows, *some), take(other, restored, *some)
        np.testing.assert_array_equal(left.predictions, right.predictions)
        np.testing.assert_array_equal(left.log_weights_after, right.log_weights_after)
        for row, new in zip(rows, restored, strict=True):
            assert dict(one.parts(row)) == dict(other.parts(new))
    return one


def test_another_client_in_the_same_row_has_windows_of_its_own() -> None:
    """A row that is lent again must not keep River's models of the client before, whose samples are
    another's."""
    inputs, labels = stream(2, 60)
    one, other = learner(river=("linear",)), learner(river=("linear",))
    row, theirs = one.borrow(), other.borrow()
    take(one, [row], inputs[:1, :20], labels[:1, :20])
    take(other, [theirs], inputs[1:, :40], labels[1:, :40])
    one.give_back(row)
    assert one.borrow() == row
    for key, value in other.parts(theirs):
        one.restore_part(row, key, value)
    left, right = (
        take(some, [own], inputs[1:, 40:], labels[1:, 40:]) for some, own in ((one, row), (other, theirs))
    )
    np.testing.assert_array_equal(left.predictions, right.predictions)


@pytest.mark.parametrize("dimension", [3, 60])
def test_river_expert_predicts_what_river_does_on_the_window(dimension: int) -> None:
    """Shows that the expert is River's linear regression, on the columns that neighbours see of the window's
    samples."""
    samples = 300
    inputs, labels = stream(1, samples, dimension)
    labels = np.nan_to_num(labels, nan=0.3)
    one = learner(dimension, experts=(), river=("linear",), mixtures=("all",))
    row = one.borrow()
    for number in range(samples - 1):
        take(one, [row], inputs[:, number : number + 1], labels[:, number : number + 1])
    forecast = one.predict(np.array([row]), inputs[0, -1:], np.zeros((one.kernels, one.row_length)))
    columns = inputs[0] if dimension == 3 else Projection(dimension, seed=4)(inputs[0])
    seen = (columns - columns[0]).astype(np.float32).astype(np.float64)
    period = len(one.snapshot(row).kept) // 2
    first = period * ((samples - 1) // period - 1)
    model = preprocessing.StandardScaler() | linear_model.LinearRegression()
    for number in range(first, samples - 1):
        model.learn_one(dict(enumerate(seen[number])), float(np.float32(labels[0, number])))
    window = labels[0, first : samples - 1].astype(np.float32)
    expected = np.clip(model.predict_one(dict(enumerate(seen[-1]))), window.min(), window.max())
    assert forecast.experts.shape == (1, one.kernels + 1)
    assert forecast.experts[0, -1] == pytest.approx(expected, rel=1e-12)
    assert window.min() < expected < window.max()


class Fragile(LastLabel):
    """Cannot learn labels above 1 and cannot predict from inputs above 1."""

    def predict(self, inputs: dict[int, float]) -> float:
        if inputs[0] > 1:
            raise OverflowError("too large")
        return super().predict(inputs)

    def learn(self, inputs: dict[int, float], label: float) -> None:
        if label > 1:
            raise ZeroDivisionError("too large")
        super().learn(inputs, label)


def test_expert_that_raises_is_replaced_by_the_running_mean(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects a client from another library's model: the worker goes on, a log line says what happened."""
    monkeypatch.setattr(windowed, "challenger", lambda name, loss: Fragile())
    one = learner(1, experts=(), river=("linear",))
    rows = [one.borrow(), one.borrow()]
    labels = np.array([[0.25, 0.5], [3.0, 2.0]])
    take(one, rows, np.zeros((2, 2, 1)), labels)
    with caplog.at_level(logging.WARNING):
        small, large = (
            one.predict(
                np.array(rows), np.full((2, 1), value), np.zeros((one.kernels, one.row_length))
            ).experts[:, -1]
            for value in (0.5, 1.5)
        )
    assert small.tolist() == [0.5, 2.5]
    assert large.tolist() == [0.375, 2.5]
    assert "too large" in caplog.text


def test_rise_is_dated_to_the_sample() -> None:
    """A date that is too early keeps samples that are no longer true."""
    rng = np.random.default_rng(0)
    for since in (5, 17, 60):
        errors = np.concatenate([rng.uniform(0, 0.2, 150), rng.uniform(0.5, 1.0, since)])
        assert risen_since(errors) == since
    assert risen_since(np.zeros(100)) == 0
    assert risen_since(np.linspace(1, 0, 100)) == 0
    assert risen_since(np.ones(3)) == 0


def test_detector_fires_on_a_rise_and_not_on_a_fall() -> None:
    """A learner that gets better must not forget why."""
    rng = np.random.default_rng(0)
    for low, high, expected in ((0.1, 0.8, True), (0.8, 0.1, False)):
        detector = ChangeDetector(0)
        fired = 0
        for level in [low] * 128 + [high] * 64:
            detector.learn(np.array([level + rng.uniform(-0.1, 0.1)], np.float32))
            fired += detector.samples_since > 0
        assert (fired > 0) is expected


def test_the_detector_loads_nothing_else_of_river() -> None:
    """Protects a worker's memory, which scikit-learn would double; and a guest's models, which find River
    whole."""
    program = """
import sys
from streamfl.pofmkl.learning.windowed import ChangeDetector
detector = ChangeDetector(0)
print(*{"sklearn", "scipy.stats", "pandas"} & sys.modules.keys())
import river.drift.adwin
from river.drift import ADWIN, KSWIN
print(river.drift.adwin.ADWIN is ADWIN, ADWIN.__name__ == type(detector._adwin).__name__)
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told.splitlines() == ["", "True True"]


@pytest.mark.parametrize("dimension", [16, 520, 2000])
def test_state_of_a_client_stays_within_64_kilobytes(dimension: int) -> None:
    """Protects the bound that memory and changelogs are planned with, at the default's 24 kernels."""
    features = ViewedFeatures(VIEWS, (0.35, 0.5, 0.7, 1.4, 2.8, 5.6), 2, dimension, seed=4, dtype=np.float32)
    one = DefaultLearner(features=features, loss=SQUARE, seed=4, detector="adwin")
    row = one.borrow()
    known = one.snapshot(row)
    assert (
        sum(part.nbytes for part in (*known.moments.values(), *known.mixture.values(), known.kept)) <= 65_536
    )
    assert len(known.kept) >= (190 if dimension <= 520 else 16)
