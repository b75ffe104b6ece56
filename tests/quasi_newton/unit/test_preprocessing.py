"""What a party does to its own columns: fixed on training rows, without labels at a host."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.quasi_newton.rows.bins import bin_numbers, lower_ends
from streamfl.quasi_newton.rows.preprocessing import METHODS, Method, fit_preprocessing
from streamfl.quasi_newton.rows.weight_of_evidence import fit_weight_of_evidence

Floats = NDArray[np.float64]


@pytest.fixture(name="rows")
def _rows() -> Floats:
    random = np.random.default_rng(0)
    columns = [
        random.lognormal(0, 2, 2000),
        random.integers(0, 4, 2000),
        random.normal(5, 3, 2000),
        np.full(2000, 7.0),
    ]
    rows = np.column_stack(columns)
    rows[::50, 2] = np.nan
    return rows


@pytest.mark.parametrize("method", METHODS)
def test_later_rows_are_treated_as_the_training_rows_were(method: Method, rows: Floats) -> None:
    """Protects scoring: a row means the same alone as among the rows it was trained with."""
    fitted = fit_preprocessing(method, rows)
    whole = fitted.apply(rows)
    assert np.isfinite(whole).all()
    np.testing.assert_array_equal(whole[17:18], fitted.apply(rows[17:18]))
    beyond = fitted.apply(np.array([[1e12, -50.0, np.inf, np.nan], [-1e12, 99.0, np.nan, 0.0]]))
    assert np.isfinite(beyond).all()


@pytest.mark.parametrize("method", [method for method in METHODS if method != "none"])
def test_columns_have_mean_zero_and_deviation_one(method: Method, rows: Floats) -> None:
    """Protects the step's bound, which is a length in weights of such columns; a constant column stays 0."""
    whole = fit_preprocessing(method, rows).apply(rows)
    np.testing.assert_allclose(whole.mean(axis=0), 0.0, atol=1e-9)
    deviations = whole.std(axis=0)
    assert np.all((np.abs(deviations - 1) < 1e-9) | (deviations == 0))


def test_each_method_does_what_it_says(rows: Floats) -> None:
    """Protects from a method that is chosen and not applied: tails cut, ranks even, logs signed, bins one at
    a time."""
    clipped = fit_preprocessing("clip", rows, ends=0.05).apply(rows)[:, 0]
    assert np.mean(clipped == clipped.max()) == pytest.approx(0.05, abs=0.005)
    ranked = fit_preprocessing("rank", rows).apply(rows)[:, 0]
    expected = np.argsort(np.argsort(rows[:, 0])) / 2000
    assert np.corrcoef(ranked, expected)[0, 1] > 0.99999
    logs = fit_preprocessing("signed-log", np.array([[-3.0], [3.0]]))
    np.testing.assert_allclose(
        logs.apply(np.array([[-7.0], [7.0]]))[:, 0] * logs.deviation, [-np.log(8), np.log(8)]
    )
    bins = fit_preprocessing("quantile-bins", rows, bins=5, standardise=False)
    shown = bins.apply(rows)
    assert set(np.unique(shown)) == {0.0, 1.0}
    first = shown[:, : len(bins.kept[0])]
    assert (first.sum(axis=1) <= 1).all()
    np.testing.assert_allclose(first.mean(axis=0), 0.2, atol=0.01)


def test_rare_bins_have_no_column_of_their_own(rows: Floats) -> None:
    """Protects the members of a rare bin: 40 missing numbers are a column only where 40 are enough."""
    for least, missing in ((41, False), (40, True)):
        fitted = fit_preprocessing("quantile-bins", rows, least=least, standardise=False)
        assert (len(fitted.edges[2]) + 1 in fitted.kept[2]) == missing
        assert (fitted.apply(rows).sum(axis=0) >= least).all()
    assert fitted.kept[3] == []


@pytest.mark.parametrize("seed", range(2))
def test_bins_share_rows_and_none_is_rare(seed: int) -> None:
    """Protects counts that are mostly 0: by quantiles all their rows would be in one bin, and the column
    would say nothing."""
    random = np.random.default_rng(seed)
    mostly_zero = random.poisson(0.08, 5000).astype(float)
    assert lower_ends(mostly_zero, 6, 100)[0] == 1.0
    even = random.normal(size=5000)
    counts = np.bincount(bin_numbers(even[:, None], [lower_ends(even, 8, 10)])[:, 0])
    assert (np.abs(counts[:8] - 625) <= 1).all()
    for values in (mostly_zero, even, random.integers(0, 4, 5000).astype(float), np.ones(5000), np.zeros(0)):
        ends = lower_ends(values, 8, 300)
        assert (np.diff(ends) > 0).all()
        if len(values):
            assert np.bincount(np.searchsorted(ends, values, side="right")).min() >= 300


def test_missing_numbers_become_the_median(rows: Floats) -> None:
    """Protects the mean from a filling that outliers move, and labels: what a host fits with needs none."""
    fitted = fit_preprocessing("none", rows)
    assert fitted.apply(np.full((1, 4), np.nan))[0].tolist() == np.nanmedian(rows, axis=0).tolist()
    with pytest.raises(ValueError, match="is not one of"):
        fit_preprocessing("weight-of-evidence", rows)


def weight(good: int, bad: int, labels: Floats) -> float:
    """Weight of evidence of a bin, with half a row added."""
    return float(
        np.log((bad + 0.5) / ((labels > 0).sum() + 0.5)) - np.log((good + 0.5) / ((labels < 0).sum() + 0.5))
    )


def test_evidence_is_the_log_of_the_labels_shares() -> None:
    """Protects the guest's bins: values by the formula, written out for each bin."""
    random = np.random.default_rng(1)
    rows = np.column_stack([random.normal(size=3000), random.normal(size=3000)])
    labels = np.where(random.random(3000) < 1 / (1 + np.exp(1 - 2 * rows[:, 0])), 1.0, -1.0)
    rows[:300, 1] = np.nan
    fitted = fit_weight_of_evidence(rows, labels, bins=6, least=30, standardise=False)
    numbers, values = fitted.bins(rows), fitted.apply(rows)
    for column in range(2):
        for number in np.unique(numbers[:, column]):
            inside = numbers[:, column] == number
            good, bad = (labels[inside] < 0).sum(), (labels[inside] > 0).sum()
            assert min(good, bad) >= 30
            np.testing.assert_allclose(values[inside, column], weight(good, bad, labels))
    assert np.all(np.diff(fitted.values[0][: len(fitted.edges[0]) + 1]) > 0)


def test_bins_with_too_few_of_a_label_tell_nothing() -> None:
    """Protects few customers of one label: neighbours are joined, and what is still too few weighs 0."""
    random = np.random.default_rng(2)
    rows = random.normal(size=(1000, 1))
    # Label -1 is rare above 0.3, so that what is left there is no bin of its own.
    labels = np.where(rows[:, 0] > 0.3, 1.0, np.where(random.random(1000) < 0.4, 1.0, -1.0))
    labels[:60] = -1.0
    rows[-5:] = np.nan
    fitted = fit_weight_of_evidence(rows, labels, least=50, standardise=False)
    numbers, values = fitted.bins(rows)[:, 0], fitted.apply(rows)[:, 0]
    for number in range(len(fitted.edges[0]) + 1):
        inside = numbers == number
        good, bad = (labels[inside] < 0).sum(), (labels[inside] > 0).sum()
        assert min(good, bad) >= 50
        np.testing.assert_allclose(values[inside], weight(good, bad, labels))
    assert fitted.values[0][-1] == 0.0
    assert not fit_weight_of_evidence(rows[:80], labels[:80], least=50).apply(rows).any()
