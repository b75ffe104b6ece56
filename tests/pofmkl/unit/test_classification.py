"""A simulation of classification has its figures, and one of regression has none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.federation import simulate
from streamfl.pofmkl.tools.report import report


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
    """Protects who classifies: the figures are of all the run's probabilities, in the summary and in the
    table."""
    labels = np.sign(np.random.Generator(np.random.PCG64(1)).normal(size=(25, 2)))
    outcome = run("logistic", labels)
    summary, truth = outcome.summary(), labels.ravel() > 0
    assert summary["auc"] == pytest.approx(metrics.roc_auc_score(truth, outcome.predictions.ravel()))
    assert summary["log_loss"] == pytest.approx(metrics.log_loss(truth, outcome.predictions.ravel()))
    assert summary["accuracy"] == pytest.approx(
        metrics.accuracy_score(truth, outcome.predictions.ravel() >= 0.5)
    )
    assert f"AUC {summary['auc']:.4f}." in " ".join(report(outcome, "", "probability", 20).notes)


def test_a_simulation_of_regression_has_none() -> None:
    """Protects readers of the JSON: the keys are there whatever the loss, and no figure stands where none has
    a meaning."""
    outcome = run("square", np.linspace(-1.0, 1.0, 10).reshape(5, 2))
    assert {outcome.summary()[name] for name in ("log_loss", "accuracy", "auc")} == {None}
    assert "AUC" not in " ".join(report(outcome, "", "probability", 20).notes)
