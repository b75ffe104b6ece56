"""The predictions that the user's consumers read, keyed by the entity's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from streamfl.quasi_newton.scoring.scorecard import Calibration, ScoreScale, score

__all__ = ["Prediction", "predictions_of"]


class Prediction(msgspec.Struct, gc=False):
    """A prediction of an entity.

    probability: of label 1; None before the model's version is calibrated.
    score: points of the scorecard. The more points, the less likely is label 1. None as long as the
    probability is None.
    output: u, the model's own number. It is no log-odds.
    model: version of the model: the number of the training that it came from.
    revision: counts an entity's predictions from 0.
    """

    entity: str
    probability: float | None
    score: float | None
    output: float
    model: int
    revision: int


def predictions_of(
    names: Sequence[str],
    outputs: Sequence[float],
    revisions: Sequence[int],
    version: int,
    calibration: Calibration | None,
    scale: ScoreScale,
) -> Iterator[Prediction]:
    """One prediction for each entity."""
    numbers = np.array(outputs, dtype=np.float64)
    chances: list[float] | list[None] = [None] * len(names)
    points: list[float] | list[None] = [None] * len(names)
    if calibration is not None:
        chances = calibration.probabilities(numbers).tolist()
        points = score(numbers, calibration, scale).tolist()
    for name, output, revision, chance, point in zip(names, outputs, revisions, chances, points, strict=True):
        yield Prediction(name, chance, point, output, version, revision)
