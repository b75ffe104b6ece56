"""What the role publishes and remembers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamfl.encoding.changelog_checks import check_name
from streamfl.state.table import StateTable

__all__ = ["MEAN", "STATE", "Mean", "Prediction", "encode_prediction"]


class Prediction(msgspec.Struct, gc=False):
    """What the user's consumers read, in the label's own unit: one for every sample."""

    client: str
    sample: str
    prediction: float


class Mean(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many labels a client had, and their mean. A changelog is a topic that others may write to: hence
    the bounds."""

    count: Annotated[int, msgspec.Meta(ge=1)]
    mean: Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


encode_prediction = msgspec.json.Encoder().encode

STATE = StateTable()
MEAN = STATE.row(
    "client/NAME",
    "How many labels a client had, and their mean.",
    "With each label.",
    "`federation.clients`; others are refused.",
    client=check_name,
)
