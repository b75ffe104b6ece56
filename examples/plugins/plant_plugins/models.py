"""Models for ``[models]``, ``[experts] river`` and ``[challengers] models``."""

from __future__ import annotations

from typing import Any

from river import linear_model, preprocessing

__all__ = ["Holt", "line"]


class Holt:
    """Exponential smoothing of the label and of its trend (Holt 1957). It does not look at the inputs.

    It has ``state`` and ``restore``, so it knows all samples, and is remembered over restarts.

    level_rate: how much the level follows the latest label, up to 1.
    trend_rate: how much the trend follows the latest change of the level.
    """

    def __init__(self, level_rate: float = 0.3, trend_rate: float = 0.1) -> None:
        if not (0 < level_rate <= 1 and 0 <= trend_rate <= 1):
            raise ValueError(
                f"level_rate = {level_rate} and trend_rate = {trend_rate}: shares up to 1 are expected"
            )
        self.level_rate, self.trend_rate = level_rate, trend_rate
        self.level: float | None = None
        self.trend = 0.0

    def predict_one(self, x: dict[int, float]) -> float:
        """The label that is expected next."""
        return 0.0 if self.level is None else self.level + self.trend

    def learn_one(self, x: dict[int, float], y: float) -> None:
        """Follow the label."""
        if self.level is None:
            self.level = y
            return
        before = self.level
        self.level += self.trend + self.level_rate * (y - self.level - self.trend)
        self.trend += self.trend_rate * (self.level - before - self.trend)

    def state(self) -> dict[str, Any]:
        """All that was learnt. Parameters are no part of it: a new model has them."""
        return {"level": self.level, "trend": self.trend}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.level, self.trend = state["level"], state["trend"]


def line(smoothing: float = 0.99) -> Any:
    """A pipeline of River's. It cannot say what it knows: as an expert it learns the latest samples again."""
    return preprocessing.StandardScaler() | linear_model.BayesianLinearRegression(smoothing=smoothing)
