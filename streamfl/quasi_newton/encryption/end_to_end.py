"""Seals messages between host and guest in an envelope that neither the coordinator nor a broker can open.

The coordinator can decrypt everything under its key. If its organisation runs the broker, it could read inner
products and residuals. So a payload between host and guest is sealed by AES-SIV (RFC 5297) under a secret
that only these two have. AES-SIV is deterministic: a payload that is sent again gives the same bytes, and
others see of two payloads only whether they are equal."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from streamfl.contract.role import BadRecord
from streamfl.identity.keys import derive

__all__ = ["OVERHEAD", "EncryptedLink"]

OVERHEAD = 16
"""Bytes by which an envelope is longer than its payload."""

SHORTEST = 32


class EncryptedLink:
    """The link between two members of a federation.

    secret: known to the two alone, 32 bytes or more; ValueError for fewer.
    federation: its name.
    """

    __slots__ = ("_cipher", "_federation", "alignment_key")

    def __init__(self, secret: bytes, federation: str) -> None:
        if len(secret) < SHORTEST:
            raise ValueError(f"{len(secret)} bytes are too few for a secret")
        # Two keys of 256 bits: one makes the tag, the other encrypts.
        self._cipher = AESSIV(
            derive(secret, b"quasi-newton link tag") + derive(secret, b"quasi-newton link cipher")
        )
        self._federation = federation.encode()
        self.alignment_key = derive(secret, b"quasi-newton link names")

    def seal(self, payload: bytes, topic: str, place: bytes) -> bytes:
        """The envelope of a payload.

        payload: one byte or more.
        topic: that it is sent to. Each direction has a topic of its own, so that no envelope can be sent back
        to its sender.
        place: the message's header, which is outside the envelope and is authenticated with it.
        """
        if not payload:
            raise ValueError("an empty payload is none")
        return self._cipher.encrypt(payload, [self._federation, topic.encode(), place])

    def open(self, envelope: bytes, topic: str, place: bytes) -> bytes:
        """The payload. BadRecord with reason envelope if nobody with the secret sealed it for this topic and
        place.

        topic, place: as for :meth:`seal`, as the receiver knows them.
        """
        if len(envelope) <= OVERHEAD:
            raise BadRecord("envelope", f"{len(envelope)} bytes are no envelope")
        try:
            return self._cipher.decrypt(envelope, [self._federation, topic.encode(), place])
        except InvalidTag:
            raise BadRecord(
                "envelope", "not sealed with the link's secret, or for another topic or round"
            ) from None
