"""What a member has besides its configuration file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from streamfl.encoding.wire import Codec
from streamfl.quasi_newton.encryption.end_to_end import EncryptedLink
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey
from streamfl.quasi_newton.messages import Message
from streamfl.quasi_newton.scoring.predictions import Prediction
from streamfl.records.header_propagation import Carry, carried_nothing

__all__ = ["CoordinatorGiven", "PartyGiven"]


@dataclass(frozen=True)
class PartyGiven:
    """secret: of this party alone. links: by the other's name. encode: encodes a prediction for users.

    carry: which headers of a sample's record its prediction gets.
    """

    codec: Codec[Message]
    secret: bytes
    links: Mapping[str, EncryptedLink]
    encode: Callable[[Prediction], bytes]
    carry: Carry = carried_nothing


@dataclass(frozen=True)
class CoordinatorGiven:
    """private_key: None if nothing is encrypted."""

    codec: Codec[Message]
    private_key: PaillierPrivateKey | None = field(repr=False)
