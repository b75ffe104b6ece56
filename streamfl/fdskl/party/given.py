"""What a party has besides its configuration file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamfl.fdskl.messages import Prediction, Turn
from streamfl.records.header_propagation import Carry

__all__ = ["PartyGiven"]


@dataclass(frozen=True, kw_only=True)
class PartyGiven:
    """secret: private frequencies are drawn from it. noise_secret: noise on the columns is. entropy: 32
    secret bytes a life.

    encode: encodes a prediction for users.
    carry: which headers of a sample's record its prediction gets.
    sign: signs a turn of this party in a partition of the log of several active parties.
    """

    secret: bytes
    noise_secret: str
    entropy: Callable[[], bytes]
    encode: Callable[[Prediction], bytes]
    carry: Carry
    sign: Callable[[Turn, int], Turn]
