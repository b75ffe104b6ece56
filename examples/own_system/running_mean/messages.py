"""What the role remembers and publishes."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["Mean", "encode_prediction"]


class Mean(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many labels a client had, and their mean."""

    # A changelog is a topic that others may write to: hence the bounds.
    count: Annotated[int, msgspec.Meta(ge=1)]
    mean: Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


encode_prediction = msgspec.json.Encoder().encode
