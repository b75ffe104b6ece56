"""Packing: signed numbers come out of their slots as they went in, and nothing overflows in silence."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint, OutOfBounds, kinds
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, PaillierPublicKey
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.products import add
from streamfl.quasi_newton.encryption.randomness import RandomnessContext

PLACE = RandomnessContext("federation", "run", "guest", 1, "gradient")
KIND = FixedPoint(0, 1000)


def test_slots_by_key() -> None:
    """Protects the formulas of traffic: columns over slots, rounded up."""
    assert Packing(PaillierPublicKey(2**2047 + 1), FixedPoint(0, 2**63 - 1)).slots == 31
    assert Packing(PaillierPublicKey(2**1023 + 1), FixedPoint(0, 2**63 - 1)).slots == 15
    packing = Packing(PaillierPublicKey(2**1023 + 1), FixedPoint(0, 2**63 - 1))
    assert [packing.plaintexts(count) for count in (0, 1, 15, 16, 31)] == [0, 1, 1, 2, 3]


@given(st.lists(st.integers(-1000, 1000), max_size=150))
@settings(deadline=None)
def test_numbers_come_out_as_they_went_in(private: PaillierPrivateKey, numbers: list[int]) -> None:
    """Protects gradients of any sign, the last slots of a plaintext and the first of the next."""
    packing = Packing(private.public, KIND)
    packed = packing.pack(numbers)
    assert len(packed) == packing.plaintexts(len(numbers))
    assert all(0 <= plaintext < private.public.n for plaintext in packed)
    assert packing.unpack(packed, len(numbers)) == numbers


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "largest", [1, 2**7 - 1, 2**7, 2**7 + 1, 2**58 - 1, 2**58, 2**72, 2**509 - 1 - 2**500]
)
def test_extremes_in_every_slot(private: PaillierPrivateKey, largest: int, sign: int) -> None:
    """Protects the sums at the bounds: every slot at its largest, of one sign or of alternating ones."""
    packing = Packing(private.public, FixedPoint(0, largest))
    for pattern in (1, -1):
        numbers = [sign * largest * pattern**index for index in range(2 * packing.slots + 1)]
        assert packing.unpack(packing.pack(numbers), len(numbers)) == numbers


def test_ciphertexts_are_packed_as_plaintexts_are(private: PaillierPrivateKey) -> None:
    """Protects the upload: what the coordinator unpacks are the columns, in order. Sums of packed ones are
    packed sums."""
    kind = FixedPoint(0, 10**6)
    packing = Packing(private.public, kind.sum_of(2))
    encryptor = Encryptor(private.public, bytes(range(32)))
    numbers = [random.Random(0).randint(-(10**6), 10**6) for _ in range(packing.slots + 3)]
    packed = packing.pack_ciphertexts(encryptor.encrypt(numbers, PLACE))
    assert len(packed) == 2
    assert packing.unpack(private.decrypt(packed), len(numbers)) == numbers
    twice = add(private.public, packed, packed)
    assert packing.unpack(private.decrypt(twice), len(numbers)) == [2 * number for number in numbers]
    assert packing.pack_ciphertexts([]) == []


def test_a_slot_that_is_one_bit_too_narrow_is_never_built(
    private: PaillierPrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects every result: with one bit less the extremes come out wrong. So a width is derived, and slots
    fill less than n."""
    kind = kinds(2, 1000, 1000).gradients
    packing = Packing(private.public, kind)
    assert packing.slots * packing.width < private.public.bits - 1
    numbers = [kind.largest, -kind.largest] * (packing.slots // 2)
    assert packing.unpack(packing.pack(numbers), len(numbers)) == numbers
    monkeypatch.setattr(FixedPoint, "slot_bits", property(lambda self: self.largest.bit_length()))
    narrow = Packing(private.public, kind)
    with pytest.raises(BadRecord):
        narrow.unpack(narrow.pack(numbers), len(numbers))


def test_a_key_too_short_for_one_slot_is_refused(private: PaillierPrivateKey) -> None:
    """Protects a federation from settings that cannot work."""
    Packing(private.public, FixedPoint(0, 2**509 - 1))
    with pytest.raises(ValueError, match="do not fit"):
        Packing(private.public, FixedPoint(0, 2**510))


def test_an_own_number_that_does_not_fit_is_refused(private: PaillierPrivateKey) -> None:
    """Protects the neighbouring slot."""
    packing = Packing(private.public, KIND)
    with pytest.raises(OutOfBounds):
        packing.pack([0, 1001])
    with pytest.raises(OutOfBounds):
        packing.pack([-1001])


def test_plaintexts_that_are_no_packed_numbers_are_refused(private: PaillierPrivateKey) -> None:
    """Protects the party from a wrong answer: a residue that was masked otherwise, or numbers too large for
    the kind."""
    packing = Packing(private.public, KIND)
    n = int(private.public.n)
    for plaintexts, count, reason in (
        ([1001], 1, "out_of_bounds"),
        ([n - 1001], 1, "out_of_bounds"),
        ([n // 3], 5, "out_of_bounds"),
        ([1 << packing.width], 1, "out_of_bounds"),
        ([n], 1, "out_of_bounds"),
        ([-1], 1, "out_of_bounds"),
        ([1, 1], 1, "shape"),
        ([], 1, "shape"),
    ):
        with pytest.raises(BadRecord) as caught:
            packing.unpack(plaintexts, count)
        assert caught.value.reason == reason
