"""What the last digits of noisy numbers tell: nothing, because values and noise lie on one grid."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grids import grid

from streamfl.vafl.functions.heads import LOGISTIC, SQUARE, OutputLoss, softmax_loss

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.vafl.label_attacks import told_of_a_label

SECRET = "5e" * 32
# Enough for a number on a finer grid to be among them.
FEW = 60


@pytest.mark.parametrize(
    ("loss", "dtype"), [(SQUARE, np.float32), (LOGISTIC, np.float64), (softmax_loss(3), np.float32)]
)
def test_what_is_told_of_a_label_lies_on_one_grid(loss: OutputLoss, dtype: Any) -> None:
    """Protects every loss in both precisions: with any label the same numbers can be reached."""
    outputs = np.zeros((1, loss.outputs))
    nothing = loss.gradient(outputs, np.zeros(1))[0] if loss.name != "logistic" else np.zeros(1)
    steps = set()
    for label in (0.0, 1.0):
        told = told_of_a_label(loss, 1.0, label, FEW, SECRET, dtype).astype(np.float64)
        assert len(told) == FEW
        # The part of the output is no power of two with three classes, and is rounded as the sum is.
        rounding = 0.0 if loss.name != "softmax" else 2.0 ** (-20 if dtype is np.float32 else -48)
        steps_told = (told - nothing) * 2.0**17
        if rounding:
            assert np.abs(steps_told - np.rint(steps_told)).max() <= rounding * 2.0**17
        else:
            steps.add(grid(told - nothing))
    assert len(steps) <= 1
