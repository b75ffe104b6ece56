"""What the members have besides their configuration files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from streamfl.records.header_propagation import Carry, carried_nothing
from streamfl.vafl.functions.heads import Head, OutputLoss
from streamfl.vafl.functions.networks import Differentiable
from streamfl.vafl.messages import Prediction
from streamfl.vafl.privacy import Mechanism

__all__ = ["CoordinatorGiven", "PartyGiven"]


@dataclass(frozen=True)
class PartyGiven:
    """function: h_m. start: secret bytes that the first parameters of a partition without state are drawn
    from; empty: from the seed alone, which everybody knows. mechanism: the party's noise and budget; None: no
    privacy.

    carry: takes a sample's record, returns the headers of its embedding.
    """

    function: Differentiable
    start: bytes = field(default=b"", repr=False)
    mechanism: Mechanism | None = field(default=None, repr=False)
    carry: Carry = carried_nothing


@dataclass(frozen=True)
class CoordinatorGiven:
    """head: the function of the embeddings. loss: of the head's outputs. start: as a party's, for theta_0.

    secret: noise on labels is drawn from it.
    encode: encodes a prediction for users.
    carry: takes an embedding's record, returns the headers of a prediction made from it.
    """

    head: Head
    loss: OutputLoss
    start: bytes = field(default=b"", repr=False)
    secret: str = field(default="", repr=False)
    encode: Callable[[Prediction], bytes] = msgspec.json.encode
    carry: Carry = carried_nothing
