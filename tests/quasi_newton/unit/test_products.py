"""Products of ciphertexts: equal to powers one by one, and to the integers beneath."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamfl.quasi_newton.encryption import products
from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey
from streamfl.quasi_newton.encryption.products import add, add_plain, transposed_product
from streamfl.quasi_newton.encryption.randomness import RandomnessContext

PLACE = RandomnessContext("federation", "run", "guest", 1, "residuals")


@pytest.fixture(name="encryptor", scope="module")
def _encryptor(private: PaillierPrivateKey) -> Encryptor:
    return Encryptor(private.public, bytes(range(32)))


def signed(private: PaillierPrivateKey, ciphertexts: list[int]) -> list[int]:
    n = int(private.public.n)
    return [int(plaintext) - n * (2 * plaintext > n) for plaintext in private.decrypt(ciphertexts)]


def one_by_one(private: PaillierPrivateKey, ciphertexts: list[int], matrix: NDArray[np.int64]) -> list[int]:
    """prod_i c_i^X_ij with Python's own powers."""
    modulus = int(private.public.n_squared)
    results = []
    for column in matrix.T.tolist():
        total = 1
        for ciphertext, number in zip(ciphertexts, column, strict=True):
            total = total * pow(int(ciphertext), number, modulus) % modulus
        results.append(total)
    return results


SHAPES = {
    "one row": lambda generator: generator.integers(-(2**16), 2**16, (1, 3)),
    "signs only": lambda generator: generator.integers(-1, 2, (50, 3)),
    "one hot": lambda generator: 256 * (generator.random((40, 4)) < 0.1).astype(np.int64),
    "an outlier": lambda generator: np.where(
        generator.random((40, 2)) < 0.05, 2**40, generator.integers(-9, 9, (40, 2))
    ),
    "largest": lambda generator: generator.choice([-(2**61), 2**61, 2**61 - 1, 1 - 2**61], (8, 2)),
    "no column": lambda generator: np.zeros((4, 0), dtype=np.int64),
}


@pytest.mark.parametrize("name", SHAPES)
def test_it_is_the_product_of_powers(private: PaillierPrivateKey, encryptor: Encryptor, name: str) -> None:
    """Protects every gradient: the same group element as power by power, hence the same bytes whatever the
    window."""
    matrix = SHAPES[name](np.random.default_rng(1))
    numbers = [random.Random(2).randint(-(2**31), 2**31) for _ in range(len(matrix))]
    ciphertexts = encryptor.encrypt(numbers, PLACE)
    found = transposed_product(private.public, ciphertexts, matrix)
    assert found == one_by_one(private, ciphertexts, matrix)
    assert signed(private, found) == [
        sum(d * int(x) for d, x in zip(numbers, column, strict=True)) for column in matrix.T
    ]


@pytest.mark.parametrize("bits", [2, 7, 14])
def test_every_window_gives_the_same(
    private: PaillierPrivateKey, encryptor: Encryptor, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects determinism: members with batches of other sizes choose other windows."""
    matrix = np.random.default_rng(bits).integers(-(2**20), 2**20, (25, 2))
    matrix[0] = [2**20, -(2**20)]
    ciphertexts = encryptor.encrypt(list(range(25)), PLACE)
    monkeypatch.setattr(products, "_window_bits", lambda rows, largest: bits)
    assert transposed_product(private.public, ciphertexts, matrix) == one_by_one(private, ciphertexts, matrix)


@given(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=12), st.integers(2, 14))
@settings(deadline=None)
def test_digits_make_up_the_number(numbers: list[int], bits: int) -> None:
    """Protects the cutting of numbers at every edge of a window: the oracle is Python's integers."""
    column = np.array(numbers)
    largest = max(abs(number) for number in numbers)
    totals = [0] * len(numbers)
    for place, digits in enumerate(products._signed_digits(column, bits, largest)):
        assert np.abs(digits).max() <= 2 ** (bits - 1)
        totals = [
            total + int(digit) * 2 ** (bits * place) for total, digit in zip(totals, digits, strict=True)
        ]
    assert totals == numbers


@pytest.mark.parametrize(("rows", "largest"), [(1000, 768), (3000, 2**16), (20, 2**16)])
def test_a_window_is_near_the_best(rows: int, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the speed: the products are counted, with every window, and the chosen one needs few more than
    the least."""
    column = np.random.default_rng(0).integers(-largest, largest + 1, rows)
    column[0] = largest
    counted = {}
    for bits in range(2, 15):
        monkeypatch.setattr(products, "_window_bits", lambda rows, largest, bits=bits: bits)
        monkeypatch.setattr(products, "power", lambda base, exponent, modulus: Counted.power(base, exponent))
        Counted.products = 0
        products._column_product([Counted()] * 2 * rows, column, 1)
        counted[bits] = Counted.products
    monkeypatch.undo()
    assert counted[products._window_bits(rows, largest)] <= 1.1 * min(counted.values())


class Counted:
    """A number of which only the products are counted."""

    products = 0.0

    def __mul__(self, other: object) -> Counted:
        Counted.products += 1
        return self

    __rmul__ = __mul__

    def __mod__(self, modulus: int) -> Counted:
        return self

    @staticmethod
    def power(base: object, exponent: int) -> Counted:
        Counted.products += 1.25 * exponent.bit_length()
        return Counted()


def test_what_is_no_matrix_for_these_rows_is_refused(private: PaillierPrivateKey) -> None:
    """Protects rows from another row's numbers, and digits from overflow."""
    for matrix in (np.zeros((2, 1)), np.zeros((3, 1), dtype=np.int64), np.zeros(2, dtype=np.int64)):
        with pytest.raises(ValueError, match="expected int64"):
            transposed_product(private.public, [3, 5], matrix)
    with pytest.raises(ValueError, match="beyond"):
        transposed_product(private.public, [3, 5], np.array([[2**61 + 1], [0]]))
    with pytest.raises(ValueError, match="beyond"):
        transposed_product(private.public, [3, 5], np.array([[-(2**63)], [0]]))


def test_vectors_of_other_lengths_are_not_added(private: PaillierPrivateKey) -> None:
    """Protects against rows that silently fall away."""
    with pytest.raises(ValueError):
        add(private.public, [3, 5], [3])
    with pytest.raises(ValueError):
        add_plain(private.public, [3, 5], [3])
    with pytest.raises(ValueError):
        add(private.public)
