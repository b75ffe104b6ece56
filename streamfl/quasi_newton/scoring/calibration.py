"""The calibration of the model's latest version, as the guest's state has it."""

from __future__ import annotations

import msgspec

from streamfl.encoding.changelog_checks import check_within
from streamfl.encoding.wire import Count
from streamfl.quasi_newton.state import CALIBRATION
from streamfl.state.changelog import ChangedParts

__all__ = ["Calibrated", "LatestCalibration"]

LARGEST_COEFFICIENT = 1e12


class Calibrated(msgspec.Struct, array_like=True):
    """The calibration of a version. rows: held-out entities that it was fitted to."""

    version: Count
    intercept: float
    slope: float
    rows: Count


class LatestCalibration:
    """The calibration of the latest version that has one. fitted: None before the first."""

    def __init__(self, parts: ChangedParts) -> None:
        self._remember = parts.single(CALIBRATION, Calibrated, self._restore)
        self.fitted: Calibrated | None = None

    def keep(self, fitted: Calibrated) -> None:
        self.fitted = fitted
        self._remember(fitted)

    def _restore(self, fitted: Calibrated) -> None:
        check_within(
            [fitted.intercept, fitted.slope], -LARGEST_COEFFICIENT, LARGEST_COEFFICIENT, "calibration"
        )
        self.fitted = fitted
