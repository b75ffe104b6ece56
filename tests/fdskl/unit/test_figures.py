"""What the active party counts of its predictions once their labels come."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.fdskl.figures import ActiveFigures
from streamfl.fdskl.losses import LOGISTIC, SQUARE, MarginLoss

OUTPUTS = np.array([0.4, -1.3, 0.2, 2.0, -0.1, 0.7])
SIGNS = np.array([1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
NUMBERS = np.array([0.1, -0.9, 0.3, 0.8, 0.0, 0.6])


def measured(loss: MarginLoss, labels: np.ndarray) -> dict[str, float]:  # type: ignore[type-arg]
    figures = ActiveFigures(loss)
    for output, label in zip(OUTPUTS.tolist(), labels.tolist(), strict=True):
        figures.score(output, label)
    return {one.name: one.value for one in figures.measure(0, 0, 0, 0, 0)}


def test_losses_of_classes_are_added_up() -> None:
    """Protects boards: loss, share of right predictions and regret are of the same predictions, against odds of two to one."""
    found = measured(LOGISTIC, SIGNS)
    lost = np.log(1 + np.exp(-SIGNS * OUTPUTS)).sum()
    assert found["scored"] == 6
    assert found["right_predictions"] == 4
    assert found["loss_sum"] == pytest.approx(lost)
    assert found["regret"] == pytest.approx(lost + 4 * np.log(4 / 6) + 2 * np.log(2 / 6))
    assert "squared_error_sum" not in found


def test_losses_of_numbers_are_added_up() -> None:
    """Protects boards: the best constant is the mean, and what it loses is the labels' variance."""
    found = measured(SQUARE, NUMBERS)
    lost = np.square(OUTPUTS - NUMBERS).sum()
    assert found["loss_sum"] == found["squared_error_sum"] == pytest.approx(lost)
    assert found["regret"] == pytest.approx(lost - 6 * NUMBERS.var())
    assert "right_predictions" not in found


def test_nothing_is_regretted_before_the_first_label() -> None:
    """Protects boards from a division by nothing at each start."""
    figures = ActiveFigures(LOGISTIC)
    assert {one.value for one in figures.measure(0, 0, 0, 0, 0)} == {0}
