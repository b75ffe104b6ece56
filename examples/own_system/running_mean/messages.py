"""What the role publishes and remembers."""

from __future__ import annotations

import math

import msgspec

from streamfl.contract.role import PeerError

__all__ = ["Mean", "Prediction", "decode_mean", "encode_mean", "encode_prediction"]


class Prediction(msgspec.Struct, gc=False):
    """What the user's consumers read, in the label's own unit: one for every sample."""

    client: str
    sample: str
    prediction: float


class Mean(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of one client: how many labels it had, and their mean."""

    count: int = 0
    mean: float = 0.0

    def after(self, label: float) -> Mean:
        """mean_n = mean_(n-1) + (label - mean_(n-1)) / n"""
        count = self.count + 1
        return Mean(count, self.mean + (label - self.mean) / count)


encode_prediction = msgspec.json.Encoder().encode
encode_mean = msgspec.msgpack.Encoder().encode
_decode_mean = msgspec.msgpack.Decoder(Mean).decode


def decode_mean(content: bytes) -> Mean:
    """What :data:`encode_mean` gave. PeerError if it is anything else: a changelog is a topic, and others may
    write to it."""
    try:
        mean = _decode_mean(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError("malformed", f"the mean of a client: {error}") from None
    if mean.count < 1 or not math.isfinite(mean.mean):
        raise PeerError("malformed", f"a mean of {mean.mean} of {mean.count} labels")
    return mean
