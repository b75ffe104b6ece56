"""Blinding and masks: a function of the secret and of all that is hidden, and undone by nobody else."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from itertools import count

import numpy as np
import phe
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from gmpy2 import legendre
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.encryptor import Encryptor, exponent_bits
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint, OutOfBounds
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, PaillierPublicKey, generate_key
from streamfl.quasi_newton.encryption.masks import Masks
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.products import add_plain
from streamfl.quasi_newton.encryption.randomness import RandomnessContext, SecretRandomness

SECRET, OTHER = bytes(range(32)), bytes(range(1, 33))
PLACE = RandomnessContext("federation", "run", "host", 3, "inner-products")
PLACES = [
    replace(PLACE, federation="federation2"),
    replace(PLACE, run="run2"),
    replace(PLACE, role="guest"),
    replace(PLACE, iteration=4),
    replace(PLACE, kind="changes"),
    # Bytes that move from one field to the next.
    replace(PLACE, federation="federationr", run="un"),
]


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@given(st.lists(st.integers(-(2**400), 2**400), max_size=5))
@settings(deadline=None, max_examples=20)
def test_what_is_encrypted_is_decrypted_by_phe(private: PaillierPrivateKey, numbers: list[int]) -> None:
    """Protects the plaintexts: they are Paillier's, whatever blinds them. The oracle is phe's own
    decryption."""
    n = int(private.public.n)
    theirs = phe.PaillierPrivateKey(phe.PaillierPublicKey(n), int(private.p), int(private.q))
    ciphertexts = Encryptor(private.public, SECRET).encrypt(numbers, PLACE)
    assert [theirs.raw_decrypt(int(ciphertext)) for ciphertext in ciphertexts] == [
        number % n for number in numbers
    ]


@pytest.fixture(name="longer", scope="module")
def _longer() -> PaillierPrivateKey:
    """Of 1,024 bits, the same in every run: an exponent is a quarter of them."""
    drawn = hashlib.shake_256(b"a key for tests")
    blocks = count(0, 64)
    content = drawn.digest(1_000_000)
    return generate_key(1024, lambda size: content[(at := next(blocks)) : at + size])


@pytest.mark.parametrize("name", ["private", "longer"])
def test_it_is_the_blinding_that_the_paper_describes(name: str, request: pytest.FixtureRequest) -> None:
    """Protects other implementations, and the table: h = -y^2, exponents of 256 bits by SHAKE-256, Python's
    pow."""
    public = request.getfixturevalue(name).public
    n, n_squared, size = int(public.n), int(public.n_squared), public.bits // 8
    secret = HKDF(SHA256(), 32, None, b"streamfl/1 quasi-newton randomness").derive(SECRET)
    begun = b"streamfl quasi-newton/1" + secret + hashlib.sha256(n.to_bytes(size, "big")).digest()
    y = 1 + int.from_bytes(hashlib.shake_256(begun + framed(b"base")).digest(size + 16), "big") % (n - 1)
    h = pow(-pow(y, 2, n) % n, n, n_squared)
    encryptor = Encryptor(public, SECRET)
    assert encryptor.h == h

    numbers = [7, -9, *range(20)]
    bare = [(1 + n * (number % n)) % n_squared for number in numbers]
    content = b"".join(ciphertext.to_bytes(2 * size, "big") for ciphertext in bare)
    digest = hashlib.blake2b(content, key=secret, digest_size=32, person=b"streamfl content").digest()
    place = framed(b"federation", b"run", b"host", b"3", b"inner-products", b"short blinding", digest)
    expected = []
    for index, ciphertext in enumerate(bare):
        x = int.from_bytes(hashlib.shake_256(begun + place + index.to_bytes(8, "big")).digest(32), "little")
        expected.append(ciphertext * pow(h, x, n_squared) % n_squared)
    assert encryptor.encrypt(numbers, PLACE) == expected


@given(st.binary(min_size=32, max_size=32))
@settings(deadline=None, max_examples=30)
@example(bytes(32))
@example(b"\xff" * 32)
@example(b"\1" + bytes(31))
@example(bytes(31) + b"\x80")
def test_any_exponent_is_the_power_that_it_says(longer: PaillierPrivateKey, exponent: bytes) -> None:
    """Protects what decrypts: the product in two halves is Python's power for every exponent, the least and
    the largest too."""
    encryptor = _encryptor(int(longer.p), int(longer.q))
    expected = pow(int(encryptor.h), int.from_bytes(exponent, "little"), int(longer.public.n_squared))
    assert encryptor._blinding(exponent) == expected


@cache
def _encryptor(p: int, q: int) -> Encryptor:
    return Encryptor(PaillierPrivateKey(p, q).public, SECRET)


@pytest.mark.parametrize(
    ("bits", "wanted"), [(512, 256), (1024, 256), (2048, 256), (3072, 384), (4096, 512), (8192, 1024)]
)
def test_exponents_are_as_long_as_is_said(bits: int, wanted: int) -> None:
    """Protects the blinding from a square root of all exponents that could be tried: 256 bits, and an eighth
    of a longer key's."""
    assert exponent_bits(PaillierPublicKey(2**bits - 1)) == wanted


def test_blindings_are_spread_over_the_group(longer: PaillierPrivateKey) -> None:
    """Protects equal numbers from a look at their ciphertexts: of 2,000 that encrypt 0, remainders modulo n
    are spread evenly, by their size and by small moduli, and half of them are squares modulo either prime.
    """
    n, count_of = int(longer.public.n), 2_000
    drawn = [int(one) % n for one in _encryptor(int(longer.p), int(longer.q)).encrypt([0] * count_of, PLACE)]
    for places in (
        [16 * one // n for one in drawn],
        [one % 16 for one in drawn],
        [one % 17 for one in drawn],
    ):
        assert chisquare(np.bincount(places)).pvalue > 1e-3
    for prime in (int(longer.p), int(longer.q)):
        squares = sum(legendre(one, prime) == 1 for one in drawn)
        assert binomtest(squares, count_of).pvalue > 1e-3


def test_h_lies_in_no_small_part_of_the_group(private: PaillierPrivateKey) -> None:
    """Protects the blinding: -y^2 is no square for either prime, so h generates all that blinding is to
    reach."""
    for secret in (SECRET, OTHER):
        h = int(Encryptor(private.public, secret).h)
        for prime in (int(private.p), int(private.q)):
            assert pow(h, (prime - 1) // 2, prime) == prime - 1


def test_an_identical_redo_is_identical_bytes(private: PaillierPrivateKey) -> None:
    """Protects law 7: after a crash the same is sent, and a second process draws as the first did."""
    encryptor, again = Encryptor(private.public, SECRET), Encryptor(private.public, SECRET)
    for numbers in ([5, 5, -1], []):
        first = encryptor.encrypt(numbers, PLACE)
        assert again.encrypt(list(numbers), PLACE) == first
        assert again.rerandomise(first, PLACE) == encryptor.rerandomise(first, PLACE)
        assert Masks(private.public, SECRET).mask(first, PLACE) == Masks(private.public, SECRET).mask(
            first, PLACE
        )


def test_whatever_differs_gives_other_randomness_everywhere(
    private: PaillierPrivateKey, other: PaillierPrivateKey
) -> None:
    """Protects an altered redo: a number, a field of the place, secret, key or length, and nothing is drawn
    twice."""
    numbers = [5, 5, -1]
    seen: list[bytes] = []
    draws: list[tuple[PaillierPrivateKey, bytes, RandomnessContext, list[int]]] = [
        (private, SECRET, place, numbers) for place in (PLACE, *PLACES)
    ]
    draws += [(private, OTHER, PLACE, numbers), (other, SECRET, PLACE, numbers)]
    draws += [
        (private, SECRET, PLACE, altered) for altered in ([5, 5, -2], [5, -1, 5], [5, 5], [5, 5, -1, 0])
    ]
    for key, secret, place, content in draws:
        randomness = SecretRandomness(key.public, secret)
        digest = randomness.digest([1 + key.public.n * (number % key.public.n) for number in content])
        for use in (b"blinding", b"mask"):
            seen += randomness.draw(place, use, digest, len(content), 32)
    assert len(set(seen)) == len(seen)


def test_equal_numbers_are_not_equal_ciphertexts(private: PaillierPrivateKey) -> None:
    """Protects one-hot columns and labels: who sees a vector cannot sort its rows into classes."""
    ciphertexts = Encryptor(private.public, SECRET).encrypt([1] * 20, PLACE)
    assert len(set(ciphertexts)) == 20


def test_rerandomised_ciphertexts_say_the_same(private: PaillierPrivateKey) -> None:
    """Protects the values of what leaves."""
    encryptor = Encryptor(private.public, SECRET)
    first = encryptor.encrypt([1, -2, 3], PLACE)
    second = Encryptor(private.public, OTHER).rerandomise(first, PLACE)
    assert private.decrypt(second) == private.decrypt(first)
    assert not set(first) & set(second)


def test_a_mask_comes_off_again(private: PaillierPrivateKey) -> None:
    """Protects the party's gradient: packed, masked, blinded, decrypted, unmasked and unpacked it is what it
    was."""
    packing, masks = Packing(private.public, FixedPoint(0, 10**9)), Masks(private.public, SECRET)
    encryptor = Encryptor(private.public, SECRET)
    numbers = [(-1) ** index * (10**9 - index) for index in range(3 * packing.slots - 1)]
    packed = packing.pack_ciphertexts(encryptor.encrypt(numbers, PLACE))
    masked, digest = masks.mask(packed, PLACE)
    answer = private.decrypt(encryptor.rerandomise(masked, PLACE))
    assert (
        packing.unpack(Masks(private.public, SECRET).unmask(answer, PLACE, digest), len(numbers)) == numbers
    )
    for wrong in ((PLACES[0], digest), (PLACE, bytes(32))):
        with pytest.raises(BadRecord):
            packing.unpack(masks.unmask(answer, *wrong), len(numbers))


def test_an_answer_that_is_no_residue_is_refused(private: PaillierPrivateKey) -> None:
    """Protects the party from a number that looks like another after the mask is off."""
    for plaintext in (int(private.public.n), -1):
        with pytest.raises(BadRecord) as caught:
            Masks(private.public, SECRET).unmask([plaintext], PLACE, bytes(32))
        assert caught.value.reason == "out_of_bounds"


def test_numbers_outside_the_group_are_refused(private: PaillierPrivateKey) -> None:
    """Protects a sum from coming out as its remainder."""
    n = int(private.public.n)
    encryptor = Encryptor(private.public, SECRET)
    encryptor.encrypt([n - 1, -(n // 2), 0], PLACE)
    for number in (n, -n // 2 - 1, 2**600):
        with pytest.raises(OutOfBounds):
            encryptor.encrypt([number], PLACE)
    with pytest.raises(ValueError, match="too few"):
        Encryptor(private.public, SECRET[:31])


def test_vectors_of_numpy_and_of_python_are_the_same(private: PaillierPrivateKey) -> None:
    """Protects a redo by another way of computing: what kind of integer a number was must not change a
    byte."""
    encryptor, numbers = Encryptor(private.public, SECRET), [5, -(2**40), 0]
    expected = encryptor.encrypt(numbers, PLACE)
    assert encryptor.encrypt(np.array(numbers), PLACE) == expected
    assert encryptor.encrypt(np.array(numbers, dtype=object), PLACE) == expected
    assert encryptor.encrypt([number % private.public.n for number in numbers], PLACE) == expected
    assert add_plain(private.public, expected, np.array(numbers)) == add_plain(
        private.public, expected, numbers
    )
    packing = Packing(private.public, FixedPoint(0, 2**40))
    assert packing.pack(np.array(numbers)) == packing.pack(numbers)
