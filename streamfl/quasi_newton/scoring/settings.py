"""A party's settings for scoring with a trained model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streamfl.quasi_newton.scoring.predictions import Prediction
from streamfl.quasi_newton.scoring.scorecard import ScoreScale
from streamfl.records.header_propagation import Carry

__all__ = ["ScoringSettings"]


@dataclass(frozen=True)
class ScoringSettings:
    """quantum: a host sends its part of an output in whole multiples of it.

    interval: seconds between the guest's questions to a host. patience: seconds without an answer after which the guest asks again.
    versions: versions of the model that a host answers for. calibration: held-out entities that the guest's calibration needs.
    topics: by the other's name, the topics to send to and to read from.
    encode: encodes a prediction for users. carry: which headers of a sample's record its prediction gets.
    """

    enabled: bool
    quantum: float
    interval: float
    patience: float
    versions: int
    calibration: int
    scale: ScoreScale
    topics: Mapping[str, tuple[str, str]]
    encode: Callable[[Prediction], bytes]
    carry: Carry
