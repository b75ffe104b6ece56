"""Randomness for blinding and masks. It is derived from a secret, from the place of use, and from all the
content that it hides.

A message that was sent before a crash may have been read, and is computed again afterwards. Fresh randomness
on the same content would be harmless, but would send other bytes. Randomness from a counter alone would be
used twice if the content has changed, and the quotient of the two ciphertexts would show the difference. So
each draw is

    SHAKE-256(secret, federation, run, key, role, iteration, kind, use, digest, index)

with a digest of the whole vector that is hidden. The same vector gives the same bytes again. A vector that
differs in one number gets other randomness everywhere, so that nobody sees which number it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streamfl.identity.keys import derive
from streamfl.quasi_newton.encryption.bignum import from_bytes, to_bytes
from streamfl.quasi_newton.encryption.keys import PaillierPublicKey

__all__ = ["RandomnessContext", "SecretRandomness"]

# Bytes drawn beyond those of the modulus, so that the remainder is uniform up to 2^-128.
SURPLUS_BYTES = 16
SHORTEST = 32


@dataclass(frozen=True)
class RandomnessContext:
    """Where a vector is hidden. Every vector of a member has its own place.

    federation, run: their names. A run's name is used once.
    role: the party's name.
    iteration: number of the round.
    kind: of the message.
    """

    federation: str
    run: str
    role: str
    iteration: int
    kind: str

    def to_bytes(self) -> bytes:
        """An encoding in which no two places have the same bytes."""
        parts = [
            self.federation.encode(),
            self.run.encode(),
            self.role.encode(),
            b"%d" % self.iteration,
            self.kind.encode(),
        ]
        return b"".join(framed(part) for part in parts)


class SecretRandomness:
    """The randomness of a member under a key.

    key: the public key that the vectors are encrypted under.
    secret: of the member alone, 32 bytes or more; ValueError for fewer.
    """

    __slots__ = ("_begun", "_key", "_secret")

    def __init__(self, key: PaillierPublicKey, secret: bytes) -> None:
        if len(secret) < SHORTEST:
            raise ValueError(f"{len(secret)} bytes are too few for a secret")
        self._key = key
        self._secret = derive(secret, b"quasi-newton randomness")
        self._begun = hashlib.shake_256(
            b"streamfl quasi-newton/1" + self._secret + bytes.fromhex(key.fingerprint)
        )

    def digest(self, ciphertexts: Sequence[int]) -> bytes:
        """A 32-byte digest of a whole vector before it is hidden. The ciphertexts depend on all inputs and
        plaintexts behind them.

        The digest is keyed, so that nobody who sees it can try out vectors.
        """
        size = self._key.ciphertext_bytes
        digest = hashlib.blake2b(key=self._secret, digest_size=32, person=b"streamfl content")
        for ciphertext in ciphertexts:
            digest.update(to_bytes(ciphertext, size))
        return digest.digest()

    def draw(
        self, place: RandomnessContext, use: bytes, digest: bytes, count: int, size: int
    ) -> Iterator[bytes]:
        """``count`` strings of ``size`` bytes. Each is a function of its index and of all other arguments.

        place: of the vector.
        use: purpose of the bytes.
        digest: from :meth:`digest`.
        """
        begun = self._begun.copy()
        begun.update(place.to_bytes() + framed(use) + framed(digest))
        for index in range(count):
            one = begun.copy()
            one.update(index.to_bytes(8, "big"))
            yield one.digest(size)

    def residues(self, place: RandomnessContext, use: bytes, digest: bytes, count: int) -> list[int]:
        """``count`` numbers, uniform on 0 .. n - 1."""
        size = self._key.bits // 8 + SURPLUS_BYTES
        return [from_bytes(content) % self._key.n for content in self.draw(place, use, digest, count, size)]

    def base(self) -> int:
        """A number, uniform on 1 .. n - 1, the same for all of the member's vectors under the key."""
        begun = self._begun.copy()
        begun.update(framed(b"base"))
        return 1 + from_bytes(begun.digest(self._key.bits // 8 + SURPLUS_BYTES)) % (self._key.n - 1)


def framed(part: bytes) -> bytes:
    """The part after its length, so that no two sequences of parts give the same bytes."""
    return len(part).to_bytes(4, "big") + part
