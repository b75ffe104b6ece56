"""Masks that hide gradients from the coordinator: a party adds a number from all of Z_n, and subtracts it
after decryption.

The mask is uniform over the whole plaintext, not over its slots. So the coordinator sees a uniform number,
whatever the slots hold."""

from __future__ import annotations

from collections.abc import Sequence

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.bignum import long
from streamfl.quasi_newton.encryption.keys import PaillierPublicKey
from streamfl.quasi_newton.encryption.products import add_plain
from streamfl.quasi_newton.encryption.randomness import RandomnessContext, SecretRandomness

__all__ = ["Masks"]


class Masks:
    """A party's masks under the coordinator's key.

    key: the coordinator's public key, checked.
    secret: of the party alone, 32 bytes or more.
    """

    __slots__ = ("_key", "_randomness")

    def __init__(self, key: PaillierPublicKey, secret: bytes) -> None:
        self._key = key
        self._randomness = SecretRandomness(key, secret)

    def mask(self, ciphertexts: Sequence[int], place: RandomnessContext) -> tuple[list[int], bytes]:
        """[[v + r]] for each [[v]], r uniform in Z_n, and the 32 bytes by which :meth:`unmask` finds the r
        again.

        The result still has to be blinded again. The bytes reveal nothing without the secret.

        ciphertexts: the whole vector, packed.
        place: of the vector; each place is used for one vector.
        """
        digest = self._randomness.digest(ciphertexts)
        return add_plain(self._key, ciphertexts, self._drawn(place, digest, len(ciphertexts))), digest

    def unmask(self, plaintexts: Sequence[int], place: RandomnessContext, digest: bytes) -> list[int]:
        """v of each v + r that the coordinator decrypted, in 0 .. n - 1.

        BadRecord with reason out_of_bounds for a plaintext that is not below n.

        place, digest: of the vector that was masked.
        """
        n = self._key.n
        if any(not 0 <= plaintext < n for plaintext in plaintexts):
            raise BadRecord("out_of_bounds", "a plaintext is not below n")
        drawn = self._drawn(place, digest, len(plaintexts))
        return [(long(plaintext) - mask) % n for plaintext, mask in zip(plaintexts, drawn, strict=True)]

    def _drawn(self, place: RandomnessContext, digest: bytes, count: int) -> list[int]:
        return self._randomness.residues(place, b"mask", digest, count)
