"""Figures of classification: the same as scikit-learn's, and none where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from streamfl.pofmkl.classification import accuracy, area_under_curve, classification_figures, log_loss
from streamfl.pofmkl.config import PofmklSettings
from streamfl.simulation.federation import simulate
from streamfl.simulation.report import rows


@pytest.mark.parametrize("decimals", [1, 2, 12])
@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_of_scikit_learn(seed: int, decimals: int) -> None:
    """Protects who compares with figures from elsewhere; with one decimal nearly every prediction is tied, and some are 0 or 1."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = (generator.uniform(size=400) < 0.3).astype(float)
    probabilities = np.round(np.clip(0.25 * labels + generator.normal(0.4, 0.25, size=400), 0.0, 1.0), decimals)
    assert area_under_curve(probabilities, labels) == pytest.approx(metrics.roc_auc_score(labels, probabilities), abs=1e-12)
    assert log_loss(probabilities, labels) == pytest.approx(metrics.log_loss(labels, probabilities), rel=1e-9)
    assert accuracy(probabilities, labels) == pytest.approx(metrics.accuracy_score(labels, probabilities >= 0.5))


def test_certainty_in_error_is_finite() -> None:
    """Protects the figure of a whole run from one prediction that was rounded to 0 or 1."""
    assert log_loss(np.array([0.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(36.04, abs=0.01)


def test_what_is_undefined_is_no_number() -> None:
    """Protects a dashboard from an AUC of 0 or 1 that nobody has measured: one label alone has no order."""
    assert np.isnan(area_under_curve(np.array([0.2, 0.9]), np.array([1.0, 1.0])))
    assert all(np.isnan(value) for value in classification_figures(np.empty(0), np.empty(0)).values())


def run(loss: str, labels: np.ndarray[Any, Any]) -> Any:
    generator = np.random.Generator(np.random.PCG64(2))
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "f", "clients": 2},
            "role": {"kind": "pofmkl-client"},
            "samples": {"topic": "t", "features": ["a"], "label": "y", "label_range": [-1.0, 1.0]},
            "learning": {"features_per_kernel": 4, "loss": loss},
            "kernels": {"bandwidths": [1.0]},
        }
    )
    return simulate(settings, generator.normal(size=(*labels.shape, 1)), labels, local_only=False)


def test_a_simulation_of_classification_has_its_figures() -> None:
    """Protects who classifies: the figures are of all the run's probabilities, in the summary and in the table."""
    labels = np.sign(np.random.Generator(np.random.PCG64(1)).normal(size=(25, 2)))
    outcome = run("logistic", labels)
    summary, truth = outcome.summary(), labels.ravel() > 0
    assert summary["auc"] == pytest.approx(metrics.roc_auc_score(truth, outcome.predictions.ravel()))
    assert summary["log_loss"] == pytest.approx(metrics.log_loss(truth, outcome.predictions.ravel()))
    assert summary["accuracy"] == pytest.approx(metrics.accuracy_score(truth, outcome.predictions.ravel() >= 0.5))
    assert dict(rows(outcome))["AUC, federation"] == f"{summary['auc']:.5f}"


def test_a_simulation_of_regression_has_none() -> None:
    """Protects readers of the JSON: the keys are there whatever the loss, and no figure stands where none has a meaning."""
    outcome = run("square", np.linspace(-1.0, 1.0, 10).reshape(5, 2))
    assert {outcome.summary()[name] for name in ("log_loss", "accuracy", "auc")} == {None}
    assert "AUC, federation" not in dict(rows(outcome))
