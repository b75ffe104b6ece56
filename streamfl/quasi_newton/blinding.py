"""Ciphertexts that tell nothing: blinded by h^x with a short x and a table, each party with an h of its own.

Damgard, Jurik and Nielsen, "A Generalization of Paillier's Public-Key System with Applications to Electronic Voting", 2010, section
4.2: with h = -y^2 mod n for a random y, h^(n x) mod n^2 with |x| = |n| / 2 is as good as r^n with r from all of Z_n.

An h from the wire could be 1, and nothing would be blinded. So no function here takes one.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamfl.quasi_newton.bignum import long, power
from streamfl.quasi_newton.fixed_point import OutOfBounds
from streamfl.quasi_newton.keys import PublicKey
from streamfl.quasi_newton.randomness import Place, SecretRandomness

__all__ = ["Encryptor"]

# The table has a row for each byte of the exponent: 128 rows of 256 powers, 17 MB, for a key of 2048 bits.
WINDOW_BITS = 8


class Encryptor:
    """A party's encryption under the coordinator's key.

    key: the coordinator's public key, checked.
    secret: of the party alone, 32 bytes or more.
    """

    __slots__ = ("_key", "_randomness", "_table", "h")

    def __init__(self, key: PublicKey, secret: bytes) -> None:
        self._key = key
        self._randomness = SecretRandomness(key, secret)
        square = power(self._randomness.base(), 2, key.n)
        self.h = power(key.n - square, key.n, key.n_squared)
        """h^n mod n^2, the party's own."""
        self._table = _fixed_base_table(self.h, key.bits // 2, key.n_squared)

    def encrypt(self, numbers: Sequence[int], place: Place) -> list[int]:
        """(1 + n v) h^(n x) mod n^2 for each number.

        numbers: -n / 2 .. n / 2 for signed ones, or 0 .. n - 1 for packed ones; OutOfBounds otherwise.
        place: of the vector, which is hidden there once; the same numbers at the same place are the same bytes.
        """
        n = self._key.n
        if any(not -n < 2 * int(number) < 2 * n for number in numbers):
            raise OutOfBounds("a number is not between -n / 2 and n")
        return self.rerandomise([1 + n * (long(number) % n) for number in numbers], place)

    def rerandomise(self, ciphertexts: Sequence[int], place: Place) -> list[int]:
        """The ciphertexts, blinded anew: what a party computed from another's has to be, before it leaves.

        Without it c_out / c_in shows what was added.

        ciphertexts: the whole vector, as it was computed.
        place: as for :meth:`encrypt`.
        """
        modulus, table = self._key.n_squared, self._table
        digest = self._randomness.digest(ciphertexts)
        exponents = self._randomness.draw(place, b"blinding", digest, len(ciphertexts), self._key.bits // (2 * WINDOW_BITS))
        blinded = []
        for ciphertext, exponent in zip(ciphertexts, exponents, strict=True):
            total = ciphertext
            for row, byte in zip(table, exponent, strict=True):
                total = total * row[byte] % modulus
            blinded.append(total)
        return blinded


def _fixed_base_table(base: int, bits: int, modulus: int) -> list[list[int]]:
    """base^(d 2^(8 j)) for each byte d of an exponent of so many bits, the lowest byte first (Brickell et al., 1992)."""
    table = []
    for _ in range(bits // WINDOW_BITS):
        row = [long(1)]
        for _ in range((1 << WINDOW_BITS) - 1):
            row.append(row[-1] * base % modulus)
        table.append(row)
        base = row[-1] * base % modulus
    return table
