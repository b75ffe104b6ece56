"""Vectors of ciphertexts as bytes. All ciphertexts have the same length, and are checked before anything is
computed with them."""

from __future__ import annotations

from collections.abc import Sequence

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.bignum import from_bytes, gcd, product, to_bytes
from streamfl.quasi_newton.encryption.keys import PaillierPublicKey

__all__ = ["decode_ciphertexts", "encode_ciphertexts"]


def encode_ciphertexts(key: PaillierPublicKey, ciphertexts: Sequence[int]) -> bytes:
    """The ciphertexts as 2 |n| bits each, big-endian, concatenated."""
    return b"".join(to_bytes(ciphertext, key.ciphertext_bytes) for ciphertext in ciphertexts)


def decode_ciphertexts(key: PaillierPublicKey, content: bytes, count: int) -> list[int]:
    """The ciphertexts in ``content``. BadRecord if one of them cannot come from an honest member:

    - shape: not as many bytes as ``count`` ciphertexts have;
    - ciphertext_range: not 1 < c < n^2;
    - ciphertext_factor: not coprime to n, so that it has no inverse;
    - ciphertext_bare: c mod n is 1 or -1: it is not blinded, and anybody can read it;
    - ciphertext_repeated: the same one twice. Blinding never gives two equal ciphertexts.

    Ciphertexts of earlier messages are not compared, because a redelivery repeats them all. The role detects
    it.
    """
    size = key.ciphertext_bytes
    if len(content) != count * size:
        raise BadRecord("shape", f"{len(content)} bytes of ciphertexts, {count} have {count * size}")
    ciphertexts = [from_bytes(content[start : start + size]) for start in range(0, len(content), size)]
    if not all(1 < ciphertext < key.n_squared for ciphertext in ciphertexts):
        raise BadRecord("ciphertext_range", "a ciphertext is not between 1 and n^2")
    if len(set(ciphertexts)) < count:
        raise BadRecord("ciphertext_repeated", "a ciphertext is there twice")
    remainders = [ciphertext % key.n for ciphertext in ciphertexts]
    # One gcd of the product instead of one for each: a product is coprime to n if and only if all its factors
    # are.
    if gcd(product(remainders, key.n), key.n) != 1:
        raise BadRecord("ciphertext_factor", "a ciphertext is not coprime to n")
    if any(remainder in (1, key.n - 1) for remainder in remainders):
        raise BadRecord("ciphertext_bare", "a ciphertext is not blinded")
    return ciphertexts
