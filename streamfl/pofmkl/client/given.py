"""What a worker of clients has besides its configuration file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from streamfl.pofmkl.client.live_challengers import LiveChallengers
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.messages import Prediction
from streamfl.pofmkl.signed_model import ModelSigning
from streamfl.records.header_propagation import Carry, carried_nothing
from streamfl.records.imputation import RunningMeans

__all__ = ["ClientGiven"]


@dataclass(frozen=True, kw_only=True)
class ClientGiven:
    """learner: the mathematics.

    fingerprint: of the settings that all members need alike.
    encode: encodes a prediction for users.
    low, span: a prediction or label y is ``low + y * span`` in the label's own unit.
    carry: which headers of a sample's record its prediction gets.
    means: fills in missing inputs.
    challengers: models that learn beside the learner and are only measured.
    signing: if members have keys, checks that the server signed a version of the model.
    seal_bytes: added to a message by its seal.
    """

    learner: Learner
    fingerprint: int
    encode: Callable[[Prediction], bytes]
    low: float = 0.0
    span: float = 1.0
    carry: Carry = carried_nothing
    means: RunningMeans = field(default_factory=RunningMeans)
    challengers: LiveChallengers | None = None
    signing: ModelSigning | None = None
    seal_bytes: int = 0
