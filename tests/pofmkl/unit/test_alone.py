"""Clients that learn alone, all at once, beside one client after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.estimators.online import POFMKLClassifier, POFMKLRegressor
from streamfl.pofmkl.tools import alone as lab
from streamfl.pofmkl.tools.alone import alone, local_predictions
from streamfl.pofmkl.tools.direct import federated
from streamfl.pofmkl.tools.own_kernels import OwnLeastSquares

Floats = NDArray[np.float64]
COUNTS = (100, 40, 100, 1, 70)


def settings_of(preset: str = "default", **learning: Any) -> PofmklSettings:
    kernels = {"bandwidths": [0.5, 2.0]}
    return PofmklSettings.model_validate(
        {
            "federation": {"name": "f", "clients": len(COUNTS), "seed": 3},
            "role": {"kind": "pofmkl-client"},
            "learning": {"preset": preset, "features_per_kernel": 12, "precision": "float64", **learning},
            "kernels": kernels
            if preset == "paper"
            else {**kernels, "views": ["standardised", "centred-lags"]},
            "uplink": {"kernels_per_upload": 2 if preset == "paper" else 4},
        }
    )


def streams(counts: tuple[int, ...] = COUNTS) -> tuple[Floats, Floats]:
    """Inputs (T, K, 3) and labels (T, K), NaN behind a client's last sample."""
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(max(counts), len(counts), 3)) / 4
    labels = 0.5 + 0.3 * np.sin(4 * inputs[..., 0]) + 0.02 * generator.normal(size=inputs.shape[:2])
    # A client's label that stays what it is teaches its kernels nothing, and its blocks end elsewhere.
    labels[:20, 2] = 0.5
    for client, count in enumerate(counts):
        inputs[count:, client] = labels[count:, client] = np.nan
    return inputs, labels


def one_after_the_other(settings: PofmklSettings, inputs: Floats, labels: Floats, delay: int) -> Floats:
    """Federations of one client, sample by sample, with the server's own step."""
    every = settings.model_copy(
        update={"uplink": settings.uplink.model_copy(update={"kernels_per_upload": settings.kernel_count})}
    )
    result = np.full(labels.shape, np.nan)
    for client, count in enumerate((~np.isnan(labels)).sum(axis=0)):
        own = slice(client, client + 1)
        result[:count, own] = federated(every, inputs[:count, own], labels[:count, own], ["any"], delay)
    return result


@pytest.mark.long
@pytest.mark.parametrize(("step", "delay"), [("least-squares", 3), ("gradient", 0), ("adagrad", 0)])
def test_all_at_once_is_one_after_the_other(monkeypatch: pytest.MonkeyPatch, step: str, delay: int) -> None:
    """Protects the row that every federation is judged by: sites of unequal length, in groups, learnt a
    stretch at a time."""
    monkeypatch.setattr(lab, "MOST_BYTES", 3 * lab.OwnLeastSquares.most_bytes(4, 24, np.float64))
    rate = {} if step == "least-squares" else {"learning_rate": 0.3}
    settings = settings_of(server_step=step, **rate)
    inputs, labels = streams()
    done: list[int] = []
    found = alone(settings, inputs, labels, delay, done.append)
    np.testing.assert_allclose(found, one_after_the_other(settings, inputs, labels, delay), rtol=0, atol=1e-9)
    assert done[-1] == sum(COUNTS)
    assert (np.isnan(found) == np.isnan(labels)).all()


@pytest.mark.long
def test_what_was_looked_at_ahead_is_looked_at_again_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects clients that forget what was before a change: from there on they are scaled otherwise than was
    foreseen."""
    again: list[int] = []
    look_again = lab._Stretch.look_again

    def watched(self: Any, first: int, clients: NDArray[np.intp]) -> None:
        again.extend([first] if first < self.stop else [])
        look_again(self, first, clients)

    monkeypatch.setattr(lab._Stretch, "look_again", watched)
    settings, (inputs, labels) = settings_of(), streams((240, 240, 200))
    # Another level, and far more noise than anybody knew: errors rise, and stay high.
    # Of these draws no kept sample lies so near the middle of two single-precision numbers that rounding
    # takes it to either.
    labels[90:] += 8.0 + 3.0 * np.random.default_rng(4).normal(size=labels[90:].shape)
    found = alone(settings, inputs, labels, 3)
    np.testing.assert_allclose(found, one_after_the_other(settings, inputs, labels, 3), rtol=0, atol=1e-9)
    assert again


def test_learning_is_the_same_however_it_is_cut_and_what_is_taken_back_leaves_nothing() -> None:
    """Protects a client that changes twice in a stretch, and blocks of rows that end within one: P is another
    one from there on."""
    generator = np.random.default_rng(3)
    features = generator.normal(size=(2, 150, 6))
    features /= np.linalg.norm(features, axis=2, keepdims=True)
    targets = generator.normal(size=150) * (np.arange(150) % 7 > 0)
    whole, cut = (OwnLeastSquares(2, 6, np.float64) for _ in range(2))
    expected, _ = whole.foresee(features, features, targets, 150)
    found = np.empty_like(expected)
    for start, tried, stop in ((0, 150, 5), (5, 140, 70), (70, 80, 80), (80, 150, 81), (81, 150, 150)):
        cut.foresee(features[:, start:tried], features[:, start:tried], targets[start:tried], tried - start)
        cut.take_back()
        part = features[:, start:stop]
        found[start:stop], _ = cut.foresee(part, part, targets[start:stop], stop - start)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", ["square", "logistic"])
def test_the_papers_clients_are_its_estimators(loss: str) -> None:
    """Protects the same row of the paper's preset: every client is a River estimator that never heard of the
    others."""
    settings = settings_of("paper", loss=loss, learning_rate=0.2, regularisation=0.01)
    inputs, labels = streams((30, 12, 30, 1))
    labels = np.where(np.isnan(labels), np.nan, labels > 0.5) if loss == "logistic" else labels
    found = local_predictions(settings, inputs, labels)
    expected = np.full(labels.shape, np.nan)
    kind = POFMKLClassifier if loss == "logistic" else POFMKLRegressor
    for client, count in enumerate((~np.isnan(labels)).sum(axis=0).tolist()):
        learning = settings.learning
        learner = kind(
            settings.kernels.dictionary(), 12, learning.rate, learning.regularisation, "float64", 3
        )
        for number in range(count):
            sample = dict(enumerate(inputs[number, client].tolist()))
            if isinstance(learner, POFMKLClassifier):
                expected[number, client] = learner.predict_proba_one(sample)[True]
            else:
                expected[number, client] = learner.predict_one(sample)
            learner.learn_one(sample, labels[number, client])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
