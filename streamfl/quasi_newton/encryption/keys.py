"""Paillier's keys. They are made so that blinding may use short exponents, and are checked before anything is
encrypted with them.

Paillier, "Public-Key Cryptosystems Based on Composite Degree Residuosity Classes", 1999; Damgard, Jurik and
Nielsen, "A Generalization of Paillier's Public-Key System with Applications to Electronic Voting", 2010,
section 4.2, ask for primes p = q = 3 mod 4 with gcd(p - 1, q - 1) = 2.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.bignum import (
    from_bytes,
    gcd,
    inverse,
    is_power,
    is_prime,
    long,
    primorial,
    secret_power,
    square_root,
    to_bytes,
)

__all__ = [
    "LARGEST_BITS",
    "SMALLEST_BITS",
    "STEP_BITS",
    "PaillierPrivateKey",
    "PaillierPublicKey",
    "agreed_key",
    "digest_of",
    "generate_key",
]

# The smallest is for tests. The configuration decides which sizes are safe.
SMALLEST_BITS, LARGEST_BITS = 512, 8192
# Bits of a key are a multiple of this, so that each prime has whole bytes.
STEP_BITS = 16
LARGEST_SMALL_FACTOR = 65_536
# Primes that share this many leading bits are not drawn, because Fermat's method might find them (FIPS 186-5,
# A.1.3).
LEADING_BITS = 100
FERMAT_STEPS = 64


@dataclass(frozen=True)
class PaillierPublicKey:
    """A public key: the modulus n.

    n: product of two primes of equal length, as :func:`generate_key` makes them.
    """

    n: int

    @functools.cached_property
    def n_squared(self) -> int:
        """The modulus of ciphertexts."""
        return self.n * self.n

    @functools.cached_property
    def bits(self) -> int:
        """Length of n."""
        return int(self.n).bit_length()

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of n, 64 hexadecimal digits. Every member's configuration pins it."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def ciphertext_bytes(self) -> int:
        """Bytes of one ciphertext in a message, whatever it encrypts."""
        return self.bits // 4

    def to_bytes(self) -> bytes:
        """n, big-endian. Members accept nothing else of a key from each other."""
        return to_bytes(self.n, self.bits // 8)

    @classmethod
    def from_bytes(
        cls, content: bytes, bits: int, fingerprint: str, older: Iterable[PaillierPublicKey] = ()
    ) -> PaillierPublicKey:
        """The key that a peer sent. BadRecord with reason unpinned_key or weak_key.

        content: as :meth:`to_bytes` encodes it.
        bits: length that the key must have.
        fingerprint: that the configuration pins.
        older: keys that were used before. A factor in common would break both.
        """
        if len(content) != bits // 8:
            raise BadRecord("weak_key", f"{len(content)} bytes of a key, {bits} bits are {bits // 8}")
        # Checked first, because a modulus that is not pinned is not worth the prime tests.
        if hashlib.sha256(content).hexdigest() != fingerprint:
            raise BadRecord("unpinned_key", f"not the key with fingerprint {fingerprint}")
        key = cls(from_bytes(content))
        key.check(bits, older)
        return key

    def check(self, bits: int, older: Iterable[PaillierPublicKey] = ()) -> None:
        """BadRecord with reason weak_key if :func:`generate_key` cannot have made n.

        bits, older: as for :meth:`from_bytes`.
        """
        n = long(self.n)
        if not SMALLEST_BITS <= bits <= LARGEST_BITS or bits % STEP_BITS:
            raise BadRecord(
                "weak_key",
                f"{bits} bits: keys have {SMALLEST_BITS} to {LARGEST_BITS}, a multiple of {STEP_BITS}",
            )
        if n < 0 or n.bit_length() != bits:
            raise BadRecord("weak_key", f"{n.bit_length()} bits, expected {bits}")
        if n % 4 != 1:
            # n is odd, and the product of two primes that are 3 modulo 4 is 1 modulo 4.
            raise BadRecord("weak_key", f"n is {n % 4} modulo 4: p and q are not both 3 modulo 4")
        if gcd(n, _small_primes()) != 1:
            raise BadRecord("weak_key", f"n has a factor below {LARGEST_SMALL_FACTOR}")
        if is_prime(n):
            raise BadRecord("weak_key", "n is a prime: anybody could decrypt")
        if is_power(n):
            raise BadRecord("weak_key", "n is a power: anybody could decrypt")
        if _close_factors(n):
            raise BadRecord("weak_key", "n has two factors that are nearly equal: anybody could decrypt")
        for key in older:
            if gcd(n, key.n) not in (1, n):
                raise BadRecord(
                    "weak_key",
                    f"n has a factor in common with the key {key.fingerprint}: anybody could decrypt both",
                )


class PaillierPrivateKey:
    """A private key, which only the coordinator has.

    p, q: the primes, in any order. ValueError if they are not as :func:`generate_key` makes them.
    """

    __slots__ = ("_factors", "_inverse", "p", "public", "q")

    def __init__(self, p: int, q: int) -> None:
        if not (is_prime(p) and is_prime(q) and p % 4 == q % 4 == 3 and gcd(p - 1, q - 1) == 2):
            raise ValueError(
                "p and q are not two primes that are 3 modulo 4, with nothing but 2 in common beneath them"
            )
        self.p, self.q = long(min(p, q)), long(max(p, q))
        self.public = PaillierPublicKey(self.p * self.q)
        self._factors = tuple(
            (one, one * one, inverse(-other, one)) for one, other in ((self.p, self.q), (self.q, self.p))
        )
        self._inverse = inverse(self.p, self.q)

    def decrypt(self, ciphertexts: Sequence[int]) -> list[int]:
        """The plaintext of each ciphertext, in 0 .. n - 1.

        Modulo p it is (c^(p - 1) mod p^2 - 1) / p times the inverse of -q, and likewise modulo q (Paillier,
        section 7).

        ciphertexts: coprime to n, which was checked when they came.
        """
        found = []
        for ciphertext in ciphertexts:
            low, high = (
                (secret_power(ciphertext % square, prime - 1, square) - 1) // prime * factor % prime
                for prime, square, factor in self._factors
            )
            found.append(low + self.p * ((high - low) * self._inverse % self.q))
        return found

    def __repr__(self) -> str:
        return f"PaillierPrivateKey(of {self.public.fingerprint})"


def digest_of(modulus: bytes) -> bytes:
    """Fingerprint and length of a key as 34 bytes, by which members agree on it; empty if nothing is
    encrypted.

    modulus: as :meth:`PaillierPublicKey.to_bytes` encodes it; empty: there is no key.
    """
    return agreed_key(hashlib.sha256(modulus).hexdigest(), 8 * len(modulus)) if modulus else b""


def agreed_key(fingerprint: str, bits: int) -> bytes:
    """The result of :func:`digest_of` for a key with this fingerprint and length."""
    return bytes.fromhex(fingerprint) + bits.to_bytes(2, "big")


def generate_key(bits: int = 2048, entropy: Callable[[int], bytes] = os.urandom) -> PaillierPrivateKey:
    """A new key of exactly ``bits`` bits.

    bits: 512 to 8192, a multiple of 16.
    entropy: returns the requested number of secret bytes.
    """
    if not SMALLEST_BITS <= bits <= LARGEST_BITS or bits % STEP_BITS:
        raise ValueError(
            f"{bits} bits: keys have {SMALLEST_BITS} to {LARGEST_BITS}, a multiple of {STEP_BITS}"
        )
    while True:
        p, q = _draw_prime(bits // 2, entropy), _draw_prime(bits // 2, entropy)
        if abs(p - q) >> (bits // 2 - LEADING_BITS) and gcd(p - 1, q - 1) == 2:
            return PaillierPrivateKey(p, q)


def _draw_prime(bits: int, entropy: Callable[[int], bytes]) -> int:
    """A prime that is 3 modulo 4. Its two highest bits are ones, so that a product of two has exactly twice
    the bits."""
    while True:
        drawn = from_bytes(entropy(bits // 8)) | 3 << (bits - 2) | 3
        if is_prime(drawn):
            return drawn


@functools.cache
def _small_primes() -> int:
    return primorial(LARGEST_SMALL_FACTOR)


def _close_factors(n: int) -> bool:
    """Whether Fermat's method divides n within a few steps."""
    root = square_root(n - 1) + 1
    return any(
        square_root(rest) ** 2 == rest
        for step in range(FERMAT_STEPS)
        for rest in [(root + step) ** 2 - int(n)]
    )
