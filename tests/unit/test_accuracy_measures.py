"""Measures of classification: equal to scikit-learn's, and NaN where they are undefined."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from streamfl.learning.accuracy import (
    accuracy,
    area_under_curve,
    classification_figures,
    kolmogorov_smirnov,
    log_loss,
)


@pytest.mark.parametrize("decimals", [1, 2, 12])
@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_of_scikit_learn(seed: int, decimals: int) -> None:
    """Protects comparisons with other programs. With one decimal nearly all predictions are tied, and some
    are 0 or 1."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = (generator.uniform(size=400) < 0.3).astype(float)
    probabilities = np.round(
        np.clip(0.25 * labels + generator.normal(0.4, 0.25, size=400), 0.0, 1.0), decimals
    )
    assert area_under_curve(probabilities, labels) == pytest.approx(
        metrics.roc_auc_score(labels, probabilities), abs=1e-12
    )
    assert log_loss(probabilities, labels) == pytest.approx(metrics.log_loss(labels, probabilities), rel=1e-9)
    assert accuracy(probabilities, labels) == pytest.approx(
        metrics.accuracy_score(labels, probabilities >= 0.5)
    )


def test_certainty_in_error_is_finite() -> None:
    """Protects the figure of a whole run from one prediction that was rounded to 0 or 1."""
    assert log_loss(np.array([0.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(36.04, abs=0.01)


def test_what_is_undefined_is_no_number() -> None:
    """Protects a dashboard from an AUC of 0 or 1 that was not measured: it is undefined for a single
    class."""
    assert np.isnan(area_under_curve(np.array([0.2, 0.9]), np.array([1.0, 1.0])))
    assert np.isnan(kolmogorov_smirnov(np.array([0.2, 0.9]), np.array([1.0, 1.0])))
    assert all(np.isnan(value) for value in classification_figures(np.empty(0), np.empty(0)).values())


@pytest.mark.parametrize("decimals", [1, 12])
def test_kolmogorov_smirnov_is_that_of_scipy(decimals: int) -> None:
    """Protects comparisons of scorecards by KS: tied scores count as equal."""
    generator = np.random.Generator(np.random.PCG64(3))
    labels = (generator.uniform(size=400) < 0.3).astype(float)
    scores = np.round(generator.normal(size=400) - 0.6 * labels, decimals)
    expected = stats.ks_2samp(scores[labels > 0.5], scores[labels < 0.5]).statistic
    assert kolmogorov_smirnov(scores, labels) == pytest.approx(expected, abs=1e-12)
