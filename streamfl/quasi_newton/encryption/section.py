"""Settings of the encryption."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from streamfl.configuration.settings import Section
from streamfl.configuration.shared import SHARED
from streamfl.quasi_newton.encryption.keys import LARGEST_BITS, SMALLEST_BITS, STEP_BITS, agreed_key
from streamfl.state.changeable import CHANGEABLE

__all__ = ["EncryptionSection"]


class EncryptionSection(Section):
    """How numbers are encrypted. precision, key_bits and key_fingerprint are the same at every member."""

    precision: Annotated[Literal["paillier", "plain"], SHARED] = "paillier"
    """The encryption scheme. `plain`: the same messages without encryption, for study and for tables."""
    study: Annotated[bool, CHANGEABLE, SHARED] = False
    """Whether `plain`, and keys of fewer than 2048 bits, are allowed on a bus other than memory."""
    key_bits: Annotated[int, CHANGEABLE, SHARED] = Field(
        default=2048, ge=SMALLEST_BITS, le=LARGEST_BITS, multiple_of=STEP_BITS
    )
    """Length of the coordinator's key in bits."""
    # A training under the old key ends, and begins again under the new one.
    key_fingerprint: Annotated[str | None, CHANGEABLE, SHARED] = Field(
        default=None, pattern="^[0-9a-f]{64}$", max_length=64
    )
    """SHA-256 of the coordinator's public key: 64 hexadecimal digits, as `streamfl keys` shows them."""
    key_file: Annotated[str | None, CHANGEABLE] = None
    """The file with the coordinator's private keys. Only the coordinator has it."""
    secret_file: str | None = None
    """A file with at least 32 bytes that nobody but this party knows. All randomness that hides its numbers
    is drawn from it."""
    # What was sealed with the old secret stays sealed with it. A mask that cannot be found again gives a
    # number out of bounds.
    link_secret_file: Annotated[str | dict[str, str] | None, CHANGEABLE] = None
    """A file with at least 32 bytes that a host shares with the guest and with nobody else. At a guest with
    several hosts: a table with a file for each host."""
    mask_gradients: bool = True
    """Whether this party hides its gradients from the coordinator. `false`: the coordinator sees them."""

    @property
    def encrypted(self) -> bool:
        return self.precision == "paillier"

    @cached_property
    def agreed_key(self) -> bytes:
        """The only key that a party accepts, as :func:`digest_of` returns it; empty if nothing is
        encrypted."""
        return agreed_key(self.key_fingerprint or "", self.key_bits) if self.encrypted else b""
