"""Blinding and masks: a function of the secret and of all that is hidden, and undone by nobody else."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.encryptor import Encryptor, exponent_bits
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint, OutOfBounds
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, PaillierPublicKey
from streamfl.quasi_newton.encryption.masks import Masks
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.randomness import RandomnessContext

SECRET = bytes(range(32))
PLACE = RandomnessContext("federation", "run", "host", 3, "inner-products")


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


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


@pytest.mark.parametrize(("bits", "wanted"), [(512, 256), (2048, 256), (3072, 384), (8192, 1024)])
def test_exponents_are_as_long_as_is_said(bits: int, wanted: int) -> None:
    """Protects the blinding from a square root of all exponents that could be tried: 256 bits, and an eighth
    of a longer key's."""
    assert exponent_bits(PaillierPublicKey(2**bits - 1)) == wanted


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
    for wrong in ((replace(PLACE, run="run2"), digest), (PLACE, bytes(32))):
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
