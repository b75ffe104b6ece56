"""Keys: made so that short exponents blind, refused where anybody could decrypt, the same plaintexts as
phe's."""

from __future__ import annotations

import hashlib
import math
import os

import phe
import pytest

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.bignum import is_prime, long
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, PaillierPublicKey, generate_key


def fingerprint(n: int) -> str:
    return hashlib.sha256(int(n).to_bytes((int(n).bit_length() + 7) // 8, "big")).hexdigest()


def refused(n: int, bits: int = 512, older: tuple[PaillierPublicKey, ...] = ()) -> str:
    """What is said of a modulus that the configuration itself pins."""
    content = int(n).to_bytes(bits // 8, "big")
    with pytest.raises(BadRecord) as caught:
        PaillierPublicKey.from_bytes(content, bits, hashlib.sha256(content).hexdigest(), older)
    assert caught.value.reason == "weak_key"
    return caught.value.text


@pytest.mark.parametrize("bits", [512, 528, 1024])
def test_a_key_is_fit_for_short_exponents(bits: int) -> None:
    """Protects blinding: with other primes the powers of h may lie in a small part of the group."""
    for _ in range(3):
        key = generate_key(bits)
        assert key.public.n == key.p * key.q
        assert int(key.public.n).bit_length() == key.public.bits == bits
        assert key.p % 4 == key.q % 4 == 3
        assert math.gcd(int(key.p) - 1, int(key.q) - 1) == 2
        assert math.gcd(int(key.public.n), int((key.p - 1) * (key.q - 1))) == 1
        key.public.check(bits)


@pytest.mark.parametrize("bits", [0, 256, 520, 1000, 16384])
def test_no_key_of_another_size_is_made(bits: int) -> None:
    """Protects the layout of ciphertexts, and a process from days of looking for primes."""
    with pytest.raises(ValueError, match="512 to 8192, a multiple of 16"):
        generate_key(bits)


def test_it_decrypts_what_phe_encrypts(private: PaillierPrivateKey) -> None:
    """Protects the yardstick: it is the same cryptosystem."""
    theirs = phe.PaillierPublicKey(int(private.public.n))
    numbers = [0, 1, 2**200, int(private.public.n) - 1]
    assert private.decrypt([long(theirs.raw_encrypt(number)) for number in numbers]) == numbers


def test_a_key_crosses_the_wire_whole(private: PaillierPrivateKey) -> None:
    """Protects the first step of every member: the key that is pinned is the key that is used."""
    public = private.public
    assert public.fingerprint == fingerprint(public.n)
    taken = PaillierPublicKey.from_bytes(public.to_bytes(), 512, public.fingerprint, [public])
    assert taken == public
    assert hash(taken) == hash(public)
    assert taken.ciphertext_bytes == 128


def test_a_key_that_is_not_pinned_is_refused(private: PaillierPrivateKey, other: PaillierPrivateKey) -> None:
    """Protects the parties from a key of whoever can write to the topic."""
    with pytest.raises(BadRecord) as caught:
        PaillierPublicKey.from_bytes(other.public.to_bytes(), 512, private.public.fingerprint)
    assert caught.value.reason == "unpinned_key"


def prime(bits: int, remainder: int = 3) -> int:
    while True:
        drawn = int.from_bytes(os.urandom(bits // 8), "big") | 3 << (bits - 2)
        drawn += (remainder - drawn) % 4
        if is_prime(drawn):
            return drawn


def test_keys_that_anybody_could_break_are_refused(
    private: PaillierPrivateKey, other: PaillierPrivateKey
) -> None:
    """Protects the parties from a coordinator's bad luck, and from a file that was edited: each of these is
    decrypted at once."""
    p, q = int(private.p), int(private.q)
    assert "modulo 4" in refused(private.public.n - 1)
    assert "modulo 4" in refused(p * prime(256, 1))
    assert "prime" in refused(prime(512, 1))
    assert "power" in refused(p * p)
    assert "nearly equal" in refused(p * next(n for n in range(p + 4, p + 10**6, 4) if is_prime(n)))
    assert "factor below" in refused(_with_factor(13))
    assert "factor below" in refused(_with_factor(65_519))
    assert "bits" in refused(private.public.n >> 1, 512)
    assert "in common" in refused(p * int(other.q), older=(other.public, private.public))
    assert "bytes of a key" in _refused_length(private)
    # What is wrong in none of these ways is taken.
    PaillierPublicKey(p * q).check(512, [other.public])


def _with_factor(factor: int) -> int:
    """A number of 512 bits that is 1 modulo 4, with this factor."""
    n = (3 << 510) - (3 << 510) % factor
    while n % 4 != 1:
        n += factor
    return n


def _refused_length(private: PaillierPrivateKey) -> str:
    with pytest.raises(BadRecord) as caught:
        PaillierPublicKey.from_bytes(private.public.to_bytes() + b"\x00", 512, private.public.fingerprint)
    return caught.value.text


def test_primes_that_are_none_make_no_private_key(private: PaillierPrivateKey) -> None:
    """Protects decryption: with a composite factor it returns wrong numbers and no error."""
    p, q = int(private.p), int(private.q)
    for one, two in ((p, q + 2), (p * q, 3), (p, p), (p, prime(256, 1)), (1, p * q)):
        with pytest.raises(ValueError, match="not two primes"):
            PaillierPrivateKey(one, two)


def test_a_private_key_shows_nothing_of_itself(private: PaillierPrivateKey) -> None:
    """Protects the secret from logs."""
    assert str(private.p) not in repr(private)
    assert f"{int(private.p):x}"[:16] not in repr(private)
