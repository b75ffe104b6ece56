"""Challengers beside a client's learner: measured as if run by hand, and of no consequence for anything
else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from river import linear_model, preprocessing
from sklearn import metrics

from streamfl.contract.role import Measurement, Received, Record, Send
from streamfl.pofmkl.client.live_challengers import LiveChallengers
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.federation import simulate
from streamfl.pofmkl.tools.report import report
from streamfl.records.samples import Sample
from streamfl.runtime.kinds import find_kind

CLIENTS = ("a", "b")


def role(
    models: Sequence[str] = (),
    loss: str = "square",
    preset: str = "default",
    label_range: tuple[float, float] = (0.0, 1.0),
) -> PofmklClient:
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "f", "clients": 2},
            "role": {"kind": "pofmkl-client"},
            "samples": {"topic": "t", "features": ["x", "z"], "label": "y", "label_range": label_range},
            "learning": {
                "preset": preset,
                "features_per_kernel": 4,
                "loss": loss,
                "staleness": "async",
                "catch_up_samples": 0,
            },
            "kernels": {"bandwidths": [0.5, 1.0]},
            "uplink": {"kernels_per_upload": 1},
            "challengers": {"models": list(models)},
        }
    )
    built = find_kind("pofmkl-client").build(settings)
    assert isinstance(built, PofmklClient)
    for partition in range(2):
        built.open(partition)
    return built


def stream(rounds: int, loss: str = "square") -> list[Sample]:
    """Samples of two clients by turns, every fifth without a label."""
    generator = np.random.Generator(np.random.PCG64(6))
    samples = []
    for number in range(rounds):
        for name in CLIENTS:
            x, z = generator.normal(size=2).tolist()
            label = float(np.clip(0.5 + 0.3 * x + 0.1 * generator.normal(), 0.0, 1.0))
            label = float(label > 0.5) if loss == "logistic" else label
            samples.append(Sample(name, str(number), (x, z), None if number % 5 == 3 else label))
    return samples


def arrived(samples: Iterable[Sample]) -> list[Received]:
    return [
        Received("samples", sample, Record("t", CLIENTS.index(sample.client), 0, sample.client.encode(), b""))
        for sample in samples
    ]


def figures(measurements: Iterable[Measurement]) -> dict[tuple[str, str], float]:
    """Of each metric with a label, by its name and the label's value."""
    return {(item.name, item.labels[0][1]): item.value for item in measurements if item.labels}


def test_figures_are_rivers_by_hand() -> None:
    """Protects the comparison that Grafana shows: one model a client, each asked before it is told,
    unlabelled samples left out."""
    found, samples = role(["linear"], "logistic", "paper"), stream(40, "logistic")
    for start in range(0, len(samples), 7):
        found.receive(arrived(samples[start : start + 7]), 1.0)
    predictions: list[float] = []
    labels: list[float] = []
    models: dict[str, Any] = {
        name: preprocessing.StandardScaler() | linear_model.LogisticRegression() for name in CLIENTS
    }
    seen = dict.fromkeys(CLIENTS, 0)
    for sample in samples:
        if sample.label is None:
            continue
        model, inputs = models[sample.client], dict(enumerate(sample.features))
        least = 0.5 / (seen[sample.client] + 1)
        predictions.append(float(np.clip(model.predict_proba_one(inputs)[True], least, 1 - least)))
        model.learn_one(inputs, sample.label == 1.0)
        seen[sample.client] += 1
        labels.append(sample.label)
    measured = figures(found.measure())
    expected = np.square(np.subtract(predictions, labels)).mean()
    assert measured["challenger_squared_error_sum", "linear"] == pytest.approx(
        expected * len(labels), rel=1e-12
    )
    assert measured["challenger_rmse", "linear"] == pytest.approx(expected**0.5, rel=1e-12)
    assert measured["challenger_rmse_windowed", "linear"] == pytest.approx(expected**0.5, rel=1e-12)
    assert measured["challenger_labels", "linear"] == len(labels) == 64
    assert measured["challenger_failures", "linear"] == 0
    auc, log_loss = metrics.roc_auc_score(labels, predictions), metrics.log_loss(labels, predictions)
    assert measured["challenger_auc", "linear"] == pytest.approx(auc)
    assert measured["challenger_log_loss", "linear"] == pytest.approx(log_loss)


@pytest.mark.parametrize(("preset", "loss"), [("default", "logistic"), ("paper", "square")])
def test_nothing_else_depends_on_challengers(preset: str, loss: str) -> None:
    """Protects the federation from being another one when somebody looks at it: replies, state and figures
    are equal to the bit."""
    samples = stream(30, loss)
    with_them, without = (
        role(models, loss, preset) for models in (["linear", "hoeffding", "knn", "last-label"], [])
    )
    for start in range(0, len(samples), 6):
        batch = arrived(samples[start : start + 6])
        assert with_them.receive(batch, float(start)) == without.receive(batch, float(start))
        assert with_them.receive([], start + 2.0) == without.receive([], start + 2.0)
        assert list(with_them.changed_state()) == list(without.changed_state())
    others = [item for item in with_them.measure() if not item.name.startswith("challenger_")]
    assert others == list(without.measure())


def test_probabilities_are_judged_as_such() -> None:
    """Protects who classifies from judging by squared error alone; the figures are of the predictions as
    published."""
    found, samples = role(loss="logistic"), stream(40, "logistic")
    replies = found.receive(arrived(samples), 1.0)
    made = [
        msgspec.json.decode(one.value)
        for one in replies
        if isinstance(one, Send) and one.channel == "predictions"
    ]
    labelled = [one for one in made if one["label"] is not None]
    predictions, labels = [one["prediction"] for one in labelled], [one["label"] for one in labelled]
    measured = {item.name: item.value for item in found.measure()}
    assert measured["auc"] == pytest.approx(metrics.roc_auc_score(labels, predictions))
    assert measured["log_loss"] == pytest.approx(metrics.log_loss(labels, predictions), rel=1e-6)
    assert measured["accuracy"] == pytest.approx(metrics.accuracy_score(labels, np.array(predictions) >= 0.5))
    assert measured["rmse_windowed"] == pytest.approx(
        metrics.root_mean_squared_error(labels, predictions), rel=1e-6
    )


def test_a_moved_partition_takes_its_challengers_along() -> None:
    """Protects memory: what was learnt for clients that are gone is let go, and those that come back begin
    anew."""
    found = role(["last-label"])
    found.receive(arrived([Sample("a", "1", (0.0, 0.0), 0.5), Sample("b", "1", (0.0, 0.0), 0.5)]), 1.0)
    assert figures(found.measure())["challenger_rmse", "last-label"] == pytest.approx(0.5)
    found.close(0)
    found.open(0)
    found.receive(arrived([Sample("a", "2", (0.0, 0.0), 0.5), Sample("b", "2", (0.0, 0.0), 0.5)]), 1.0)
    measured = figures(found.measure())
    assert measured["challenger_rmse", "last-label"] == pytest.approx((3 * 0.25 / 4) ** 0.5)
    assert measured["challenger_labels", "last-label"] == 4


def test_errors_are_in_the_labels_own_unit() -> None:
    """Protects who reads an error from taking it for degrees where it is a share of label_range: the
    published numbers decide.

    Labels from 20 to 60 are 0 to 1 within. Counters of squares and their roots are as the predictions topic
    has them, of the federation and of a challenger.
    """
    found = role(["last-label"], label_range=(20.0, 60.0))
    samples = stream(20)
    replies = found.receive(arrived(samples), 1.0)
    made = [
        msgspec.json.decode(one.value)
        for one in replies
        if isinstance(one, Send) and one.channel == "predictions"
    ]
    labels, predictions = (
        [one[name] for one in made if one["label"] is not None] for name in ("label", "prediction")
    )
    assert 20.0 <= min(labels) < max(labels) <= 60.0
    measured = {item.name: item.value for item in found.measure()}
    rmse = metrics.root_mean_squared_error(labels, predictions)
    for name in ("rmse", "rmse_windowed"):
        assert measured[name] == pytest.approx(rmse, rel=1e-6)
    for name in ("squared_error_sum", "lifetime_squared_error"):
        assert measured[name] == pytest.approx(len(labels) * rmse**2, rel=1e-6)
    assert measured["mae_windowed"] == pytest.approx(
        metrics.mean_absolute_error(labels, predictions), rel=1e-6
    )
    last, before = {}, []
    for one in made:
        if one["label"] is not None:
            before.append(last.get(one["client"], 20.0))
            last[one["client"]] = one["label"]
    told = figures(found.measure())
    for name in ("challenger_rmse", "challenger_rmse_windowed"):
        assert told[name, "last-label"] == pytest.approx(metrics.root_mean_squared_error(labels, before))
    assert told["challenger_mae_windowed", "last-label"] == pytest.approx(
        metrics.mean_absolute_error(labels, before)
    )
    assert told["challenger_squared_error_sum", "last-label"] == pytest.approx(
        np.square(np.subtract(labels, before)).sum()
    )


def test_the_window_is_of_a_thousand_labels() -> None:
    """Protects the windowed figure from what has long passed: without it a stream's change would show
    late."""
    beside = LiveChallengers(["last-label"], "square")
    beside.run((((0, "a"), (), float(number == 0)) for number in range(1001)), 0.0)
    measured = figures(beside.measure())
    assert measured["challenger_rmse", "last-label"] == pytest.approx((2 / 1001) ** 0.5)
    assert measured["challenger_rmse_windowed", "last-label"] == pytest.approx((1 / 1000) ** 0.5)
    assert measured["challenger_mae_windowed", "last-label"] == pytest.approx(1 / 1000)


def test_a_simulation_shows_its_challengers() -> None:
    """Protects who has named challengers and tries the configuration on a file: the figures are of this run,
    by each client."""
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "f", "clients": 2},
            "role": {"kind": "pofmkl-client"},
            "learning": {"features_per_kernel": 4},
            "kernels": {"bandwidths": [1.0]},
            "challengers": {"models": ["last-label"]},
        }
    )
    generator = np.random.Generator(np.random.PCG64(4))
    inputs, labels = generator.normal(size=(12, 2, 1)), generator.uniform(size=(12, 2))
    outcome = simulate(settings, inputs, labels, local_only=False)
    errors = labels - np.vstack([np.zeros((1, 2)), labels[:-1]])
    rmse, mae = np.sqrt(np.square(errors).mean()), np.abs(errors).mean()
    assert outcome.summary()["challengers"]["last-label"] == pytest.approx({"rmse": rmse, "mae": mae})
    shown = {row[0]: row[1:] for row in report(outcome, "a run", "points", 20).rows}
    assert shown["last-label: the client's last label"] == (f"{rmse:.4f}", f"{mae:.4f}", "nothing")
