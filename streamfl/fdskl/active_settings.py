"""What an active party of FDSKL is told once, for all of its partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamfl.fdskl.iteration import Learning
from streamfl.fdskl.messages import Prediction, Turn

__all__ = ["ActiveSettings"]


@dataclass(frozen=True, kw_only=True)
class ActiveSettings:
    """What only an active party is told.

    encode: a prediction to the bytes that users read.
    prediction_of: f to what users read of it: a probability, or a number in the label's own unit.
    label_of: a label to what the loss takes; PeerError for one that it cannot take.
    linger: seconds in which entities are gathered to be predicted together.
    revise: whether an entity is predicted again when a party has new columns of it.
    catch_up_samples, catch_up_patience: see :class:`~streamfl.fdskl.catch_up.CatchUp`.
    fingerprint: of what several active parties have to agree on.
    sign: what one of these says in a partition of their log.
    """

    learning: Learning
    encode: Callable[[Prediction], bytes]
    prediction_of: Callable[[float], float]
    label_of: Callable[[float], float]
    linger: float
    revise: bool
    catch_up_samples: int
    catch_up_patience: float
    fingerprint: int
    sign: Callable[[Turn, int], Turn]
