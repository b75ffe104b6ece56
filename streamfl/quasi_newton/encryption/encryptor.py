"""Blinds ciphertexts by h^(n x), with a short x and a table of powers. Each party has an h of its own.

Damgard, Jurik and Nielsen, "A Generalization of Paillier's Public-Key System with Applications to Electronic
Voting", 2010, section 4.2: with h = -y^2 mod n for a random y, h^(n x) mod n^2 with |x| = |n| / 2 is as good
as r^n with r from all of Z_n, if n cannot be factored (Goldreich and Rosen, 2003). Here x has an eighth of
n's bits, and 256 at least. That needs one more assumption: that powers of h with such short exponents cannot
be told from others (Koshiba and Kurosawa, "Short Exponent Diffie-Hellman Problems", 2004). Known attacks take
the square root of the number of exponents (van Oorschot and Wiener, 1996), 2^128 steps, or factor n.

An h from a message could be 1, and nothing would be blinded. So no function here takes an h.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamfl.quasi_newton.encryption.bignum import inverses, long, power
from streamfl.quasi_newton.encryption.fixed_point import OutOfBounds
from streamfl.quasi_newton.encryption.keys import PaillierPublicKey
from streamfl.quasi_newton.encryption.randomness import RandomnessContext, SecretRandomness

__all__ = ["Encryptor", "exponent_bits"]

# The table has a row for each byte of the exponent: 32 rows of 256 powers, 5 MB, for a key of 2048 bits.
WINDOW_BITS = 8
# Twice the bits of the least work of an attack, 2^128 steps.
LEAST_EXPONENT = 256


class Encryptor:
    """A party's encryption under the coordinator's key.

    key: the coordinator's public key, checked.
    secret: of the party alone, 32 bytes or more.
    """

    __slots__ = ("_exponent_bytes", "_key", "_randomness", "_table", "h")

    def __init__(self, key: PaillierPublicKey, secret: bytes) -> None:
        self._key = key
        self._randomness = SecretRandomness(key, secret)
        square = power(self._randomness.base(), 2, key.n)
        self.h = power(key.n - square, key.n, key.n_squared)
        """h^n mod n^2, with the party's own h."""
        self._exponent_bytes = exponent_bits(key) // WINDOW_BITS
        self._table = _fixed_base_table(self.h, self._exponent_bytes, key)

    def encrypt(self, numbers: Sequence[int], place: RandomnessContext) -> list[int]:
        """(1 + n v) h^(n x) mod n^2 for each number.

        numbers: -n / 2 .. n / 2 for signed ones, or 0 .. n - 1 for packed ones; OutOfBounds otherwise.
        place: of the vector; each place is used for one vector. The same numbers at the same place give the
        same bytes."""
        n = self._key.n
        if any(not -n < 2 * int(number) < 2 * n for number in numbers):
            raise OutOfBounds("a number is not between -n / 2 and n")
        return self.rerandomise([1 + n * (long(number) % n) for number in numbers], place)

    def rerandomise(self, ciphertexts: Sequence[int], place: RandomnessContext) -> list[int]:
        """The ciphertexts, blinded again. A party has to do this before it sends what it computed from
        another's ciphertexts.

        Otherwise c_out / c_in shows what was added.

        ciphertexts: the whole vector, as it was computed.
        place: as for :meth:`encrypt`.
        """
        digest, modulus = self._randomness.digest(ciphertexts), self._key.n_squared
        exponents = self._randomness.draw(
            place, b"short blinding", digest, len(ciphertexts), self._exponent_bytes
        )
        pairs = zip(ciphertexts, exponents, strict=True)
        return [ciphertext * self._blinding(exponent) % modulus for ciphertext, exponent in pairs]

    def _blinding(self, exponent: bytes) -> int:
        """h^(n x) mod n^2. exponent: x, the lowest byte first.

        Numbers of the table are a (1 + n l), and prod (1 + n l) = 1 + n sum l. So only all a are multiplied,
        and their product is kept as low + n high: products and remainders of half the length take two thirds
        of the time.
        """
        n = self._key.n
        low, high, logarithm = 1, 0, 0
        for row, byte in zip(self._table, exponent, strict=True):
            factor, own = row[byte]
            quotient, remainder = divmod(low * factor, n)
            low, high, logarithm = remainder, (high * factor + quotient) % n, logarithm + own
        return low + n * ((high + low * logarithm) % n)


def exponent_bits(key: PaillierPublicKey) -> int:
    """Bits of x: 256 for a key of 2048 bits. Never more than half of n's bits, beyond which nothing is
    gained."""
    return min(max(LEAST_EXPONENT, key.bits // 8), key.bits // 2) // WINDOW_BITS * WINDOW_BITS


def _fixed_base_table(base: int, count: int, key: PaillierPublicKey) -> list[list[tuple[int, int]]]:
    """base^(d 2^(8 j)) for each value d of each byte j of an exponent, lowest byte first (Brickell et al.,
    1992), as a and l.

    Each is a (1 + n l) mod n^2 with a and l below n. count: bytes of the exponent.
    """
    n, table = key.n, []
    for _ in range(count):
        row = [long(1)]
        for _ in range((1 << WINDOW_BITS) - 1):
            row.append(row[-1] * base % key.n_squared)
        base = row[-1] * base % key.n_squared
        factors = [one % n for one in row]
        parts = zip(row, factors, inverses(factors, n), strict=True)
        table.append([(factor, one // n * inverse % n) for one, factor, inverse in parts])
    return table
