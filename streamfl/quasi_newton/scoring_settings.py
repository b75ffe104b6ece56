"""What a party was told about scoring with a model that it has come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streamfl.quasi_newton.predictions import Prediction
from streamfl.quasi_newton.scorecard import Scale
from streamfl.records.header_propagation import Carry

__all__ = ["ScoringSettings"]


@dataclass(frozen=True)
class ScoringSettings:
    """quantum: a host's part of an output is told in whole multiples of it.

    interval: seconds between two questions to a host, at the guest. patience: after so many without an answer it asks anew.
    versions: of the model that a host answers for. calibration: held-out entities that the guest's calibration needs.
    topics: by the other's name, what is sent there and what comes.
    encode: a prediction to the bytes that users read. carry: of a sample's record, the headers that its prediction gets.
    """

    enabled: bool
    quantum: float
    interval: float
    patience: float
    versions: int
    calibration: int
    scale: Scale
    topics: Mapping[str, tuple[str, str]]
    encode: Callable[[Prediction], bytes]
    carry: Carry
