"""Probabilities and points: calibrated on held-out rows, and the parties' files add up to the score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.quasi_newton.rows.preprocessing import EVIDENCE, METHODS, Method, fit_preprocessing
from streamfl.quasi_newton.rows.weight_of_evidence import fit_weight_of_evidence
from streamfl.quasi_newton.scoring.scorecard import (
    Calibration,
    ScoreScale,
    fit_calibration,
    points_of_party,
    score,
)

Floats = NDArray[np.float64]


@pytest.mark.parametrize(
    ("output", "rows"), [(0.0, 10), (64.0, 40), (64.0, 4000), (117.3, 399), (128.0, 100_000), (1e6, 1000)]
)
def test_calibration_knows_outputs_that_are_all_alike(output: float, rows: int) -> None:
    """Protects the guest's process from points of a host that make them so: it ended at a singular matrix."""
    labels = np.where(np.arange(rows) % 5 < 2, 1.0, -1.0)
    found = fit_calibration(np.full(rows, output), labels)
    positive, negative = (labels > 0).sum(), (labels < 0).sum()
    targets = np.where(labels > 0, (positive + 1) / (positive + 2), 1 / (negative + 2))
    assert found.probabilities(np.array([output]))[0] == pytest.approx(targets.mean(), abs=1e-6)


def test_calibration_stays_finite_where_outputs_separate_the_labels() -> None:
    """Protects points from an infinite slope, and from rows of one label only."""
    outputs = np.array([-2.0, -1.0, 1.0, 2.0])
    found = fit_calibration(outputs, np.sign(outputs))
    assert 0 < found.slope < 10
    with pytest.raises(ValueError, match="both labels"):
        fit_calibration(outputs, np.ones(4))


def looked_up(file: dict[str, Any], raw: Floats, prepared: Floats) -> Floats:
    """The sum of a file's points, as who has only the file finds them."""
    total = np.full(len(raw), float(file["constant"]))
    for number, column in enumerate(file["columns"]):
        if "points_per_unit" in column:
            total += column["points_per_unit"] * prepared[:, number]
            continue
        for row, value in enumerate(raw[:, number]):
            for own in column["bins"]:
                if own.get("missing"):
                    inside = not np.isfinite(value)
                else:
                    inside = np.isfinite(value) and (own["from"] is None or value >= own["from"])
                    inside = inside and (own["below"] is None or value < own["below"])
                if inside:
                    total[row] += own["points"]
    return total


@pytest.mark.parametrize("method", [*METHODS, EVIDENCE])
def test_the_parties_files_add_up_to_the_score(method: Method) -> None:
    """Protects who decides by points: looked up in the files they are offset - factor (a + b u), whatever the
    preprocessing."""
    random = np.random.default_rng(3)
    raw = [random.normal(3, 2, (400, 3)), random.lognormal(0, 1, (400, 2))]
    raw[0][::20, 1] = np.nan
    labels = np.where(random.random(400) < 0.3, 1.0, -1.0)
    calibration, scale = Calibration(-0.2, 1.4), ScoreScale()
    outputs, files = np.zeros(400), []
    for number, own in enumerate(raw):
        guest = number == 0
        if method == EVIDENCE and guest:
            fitted = fit_weight_of_evidence(own, labels, least=20)
        else:
            fitted = fit_preprocessing("standardise" if method == EVIDENCE else method, own, least=20)
        columns = fitted.apply(own)
        weights = random.normal(size=columns.shape[1] + guest)
        outputs += columns @ weights[: columns.shape[1]] + (weights[-1] if guest else 0.0)
        names = [f"column {place}" for place in range(own.shape[1])]
        file = points_of_party(names, weights, fitted, calibration, scale, guest=guest, decimals=6)
        files.append(looked_up(file, own, fitted._changed(own)))
    np.testing.assert_allclose(sum(files), score(outputs, calibration, scale), atol=1e-4)
