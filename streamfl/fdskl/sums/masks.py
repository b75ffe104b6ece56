"""Masks of partial sums: pairwise one-time pads that cancel over all parties, and the paper's.

Each life of a party's task has an incarnation, a key that is never remembered. Each two incarnations agree on
a secret, from which each round gets numbers of its own. One party adds them and the other subtracts them, so
they cancel in the sum over all parties. A round that is asked again has another number or other incarnations,
so no numbers are used twice.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", 2017, section 4;
without its recovery of dropouts, which would show a late message.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from streamfl.fdskl.sums.keystream import Keystream, keystream
from streamfl.identity.keys import derive

__all__ = [
    "CHECK_WORDS",
    "OwnIncarnation",
    "checked",
    "life_number",
    "mask_key",
    "masked",
    "paper_mask",
]

CHECK_WORDS = 2
"""Numbers added behind those of a round. They are 0 before the mask, have 64 bits or more
together, and sum to 0 if all masks cancelled."""

# Bytes of a message that are masked together, so that they stay in the processor's caches.
BLOCK_BYTES = 131_072


class OwnIncarnation:
    """One life of a party's task: an X25519 key that is made anew at each assignment, and never remembered.

    private: 32 bytes of fresh entropy; ValueError for fewer.
    """

    __slots__ = ("_private", "_tellings", "number", "public")

    def __init__(self, private: bytes) -> None:
        if len(private) < 32:
            raise ValueError(f"{len(private)} bytes are too few for an incarnation")
        # X25519 drops five bits of a key: two that differ in those alone would be one.
        self._private = X25519PrivateKey.from_private_bytes(derive(private, b"fdskl incarnation"))
        self._tellings = derive(private, b"fdskl tellings")
        self.public: bytes = self._private.public_key().public_bytes_raw()
        """32 bytes that are sent to the peers."""
        self.number = life_number(self.public)
        """53 bits of the public key, by which messages name it."""

    def telling(self, count: int) -> int:
        """53 bits that name the ``count``-th announcement of this life. Nobody else can compute them before
        they are announced."""
        digest = hashlib.blake2b(count.to_bytes(8, "big"), digest_size=8, key=self._tellings).digest()
        return int.from_bytes(digest) >> 11

    def pair_secret(self, peer_public: bytes) -> bytes:
        """32 bytes that only this incarnation and the peer's can make (X25519, HKDF with both public keys).

        ValueError if the peer's is no key, is this one's own, or gives zero with every key.
        """
        if peer_public == self.public:
            raise ValueError("an incarnation has no secret with itself")
        agreed = self._private.exchange(X25519PublicKey.from_public_bytes(peer_public))
        return derive(agreed, b"fdskl pair " + b"".join(sorted((self.public, peer_public))))


def life_number(public: bytes) -> int:
    """The number that names the incarnation with this public key: 53 bits of a digest."""
    return int.from_bytes(hashlib.blake2b(public, digest_size=8, person=b"fdskl life").digest()) >> 11


def mask_key(pair_secret: bytes, round_id: bytes, purpose: bytes, bits: int) -> bytes:
    """The key of a pair's keystream in a round: HKDF-Expand with SHA-256 (RFC 5869, 2.3), one block of it.

    pair_secret: from :meth:`OwnIncarnation.pair_secret`.
    round_id: of a round that is answered once.
    purpose: what the numbers hide; each purpose has its own stream.
    bits: 32 or 64, so that the widths do not share a stream either.
    """
    # Lengths in front, so that different rounds and purposes never give the same bytes.
    named = b"".join(len(part).to_bytes(4, "big") + part for part in (round_id, purpose))
    return hmac.digest(pair_secret, b"fdskl mask %d " % bits + named + b"\x01", "sha256")


def masked(
    numbers: NDArray[Any], pair_secrets: Mapping[int, bytes], own: int, round_id: bytes, purpose: bytes
) -> NDArray[Any]:
    """The numbers, and check words behind them, under the party's mask: (n + CHECK_WORDS,).

    numbers: (n,) uint32 or uint64.
    pair_secrets: by the peer's number, of every other party of the round.
    own: number of the party.
    round_id, purpose: as for :func:`mask_key`.
    """
    result = np.zeros(len(numbers) + CHECK_WORDS, numbers.dtype)
    result[: len(numbers)] = numbers
    _add_mask(result, pair_secrets, own, round_id, purpose)
    return result


def checked(sums: NDArray[Any]) -> NDArray[Any] | None:
    """The sum over all parties without its check words, or None if these show that masks have not cancelled.

    A party that is missing, doubled, of another round or of another life passes with probability 2^-64 at
    most.

    sums: (n + CHECK_WORDS,), the sum of what :func:`masked` returned at every party.
    """
    return None if len(sums) < CHECK_WORDS or sums[-CHECK_WORDS:].any() else sums[:-CHECK_WORDS]


def paper_mask(secret: bytes, first: int, count: int) -> NDArray[np.float64]:
    """b_p of a party for features first .. first + count - 1: (count,), uniform on 0 .. 2 pi. (Algorithm 3,
    line 3.)

    It is the same for every instance, so differences of messages show differences of the party's columns: for
    study only.

    secret: 32 bytes or more, of the party alone.
    """
    numbers = keystream(derive(secret, b"fdskl paper masks"), count, 64, first)
    return np.asarray((numbers >> np.uint64(11)) * (2 * math.pi * 2.0**-53), dtype=np.float64)


def _add_mask(
    total: NDArray[Any], pair_secrets: Mapping[int, bytes], own: int, round_id: bytes, purpose: bytes
) -> None:
    if own in pair_secrets:
        raise ValueError("a party is not its own peer")
    bits = 8 * total.dtype.itemsize
    streams = [
        (np.add if own < peer else np.subtract, Keystream(mask_key(secret, round_id, purpose, bits), bits))
        for peer, secret in pair_secrets.items()
    ]
    drawn = np.empty(min(len(total), BLOCK_BYTES // total.dtype.itemsize), total.dtype)
    for start in range(0, len(total), max(1, len(drawn))):
        part = total[start : start + len(drawn)]
        numbers = drawn[: len(part)]
        for combine, stream in streams:
            stream.fill(numbers)
            combine(part, numbers, out=part)
