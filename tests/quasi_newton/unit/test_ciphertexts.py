"""Ciphertexts from the wire: what no honest member sends is refused, each for a reason that is counted."""

from __future__ import annotations

import random

import pytest

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.ciphertexts import decode_ciphertexts, encode_ciphertexts
from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey
from streamfl.quasi_newton.encryption.randomness import RandomnessContext

PLACE = RandomnessContext("federation", "run", "host", 1, "inner-products")
REASONS = {"shape", "ciphertext_range", "ciphertext_factor", "ciphertext_bare", "ciphertext_repeated"}


def test_a_vector_crosses_the_wire_and_its_size_tells_nothing(private: PaillierPrivateKey) -> None:
    """Protects magnitudes: nothing around a ciphertext depends on the value inside."""
    encryptor = Encryptor(private.public, bytes(range(32)))
    sizes = set()
    for numbers in ([0, 0, 0], [1, -1, 2**300], [-(2**300), 7, 2**24]):
        ciphertexts = encryptor.encrypt(numbers, PLACE)
        content = encode_ciphertexts(private.public, ciphertexts)
        sizes.add(len(content))
        assert decode_ciphertexts(private.public, content, 3) == ciphertexts
    assert sizes == {3 * 128}
    assert decode_ciphertexts(private.public, b"", 0) == []


def test_what_no_member_can_have_encrypted_is_refused(private: PaillierPrivateKey) -> None:
    """Protects the products and the decryption: zero, one, multiples of a factor, bare plaintexts, numbers
    beyond the group."""
    public = private.public
    n, n_squared, p = int(public.n), int(public.n_squared), int(private.p)
    good = Encryptor(public, bytes(range(32))).encrypt([5, 6, 7], PLACE)
    wrong = {
        "ciphertext_range": [0, 1, n_squared, n_squared + 5, 2**1024 - 1],
        "ciphertext_factor": [n, p, 3 * p, int(private.q) ** 2, n_squared - n],
        "ciphertext_bare": [1 + 5 * n, 1 + (n - 1) * n, n - 1, n_squared - 1, n_squared - 1 - 4 * n],
    }
    for reason, ciphertexts in wrong.items():
        for ciphertext in ciphertexts:
            content = encode_ciphertexts(public, [good[0], ciphertext, good[2]])
            with pytest.raises(BadRecord) as caught:
                decode_ciphertexts(public, content, 3)
            assert caught.value.reason == reason


def test_the_same_ciphertext_twice_is_refused(private: PaillierPrivateKey) -> None:
    """Protects from a vector that was put together of another's pieces: whoever blinds anew sends no two
    alike."""
    encryptor = Encryptor(private.public, b"s" * 32)
    one, other = encryptor.encrypt([3, 3], PLACE)
    assert decode_ciphertexts(private.public, encode_ciphertexts(private.public, [one, other]), 2) == [
        one,
        other,
    ]
    with pytest.raises(BadRecord, match="ciphertext_repeated"):
        decode_ciphertexts(private.public, encode_ciphertexts(private.public, [one, other, one]), 3)


@pytest.mark.parametrize("count", [0, 1, 2, 4, 10**12])
def test_a_vector_of_another_length_is_refused(private: PaillierPrivateKey, count: int) -> None:
    """Protects memory, and each row from another row's ciphertext."""
    with pytest.raises(BadRecord) as caught:
        decode_ciphertexts(private.public, bytes(128 * 3), count)
    assert caught.value.reason == "shape"


def test_no_bytes_lead_to_anything_but_a_counted_reason(private: PaillierPrivateKey) -> None:
    """Protects the role from a stranger's bytes."""
    generator = random.Random(0)
    for _ in range(300):
        size = generator.choice((0, 1, 127, 128, 256, 257))
        content = (
            generator.randbytes(size)
            if generator.random() < 0.5
            else bytes([generator.randrange(256)]) * size
        )
        reason = None
        try:
            decode_ciphertexts(private.public, content, generator.randrange(4))
        except BadRecord as error:
            reason = error.reason
        assert reason is None or reason in REASONS
