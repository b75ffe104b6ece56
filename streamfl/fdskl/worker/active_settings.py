"""The settings of an active party of FDSKL, the same for all of its partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamfl.fdskl.learning.iteration import LearningSettings
from streamfl.fdskl.messages import Prediction, Turn

__all__ = ["ActiveSettings"]


@dataclass(frozen=True, kw_only=True)
class ActiveSettings:
    """Settings that only an active party has.

    encode: turns a prediction into the bytes that users read.
    prediction_of: turns f into the published prediction: a probability, or a number in the label's own unit.
    label_of: turns a label into one for the loss; PeerError for a label that it cannot take.
    linger: seconds in which entities are gathered to be predicted together.
    revise: whether an entity is predicted again when a party has new columns of it.
    catch_up_samples, catch_up_patience: see :class:`~streamfl.fdskl.predicting.catch_up.CatchUp`.
    fingerprint: of the settings that several active parties have to agree on.
    sign: signs a message of this party in a partition of their log.
    """

    learning: LearningSettings
    encode: Callable[[Prediction], bytes]
    prediction_of: Callable[[float], float]
    label_of: Callable[[float], float]
    linger: float
    revise: bool
    catch_up_samples: int
    catch_up_patience: float
    fingerprint: int
    sign: Callable[[Turn, int], Turn]
