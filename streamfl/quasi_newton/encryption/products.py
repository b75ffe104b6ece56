"""Arithmetic on ciphertexts: sums, and products with a matrix of whole numbers by buckets.

Nothing here is blinded again. That is done once, last, before a result is sent: in
``training/background_tasks``, where ``multiplied`` computes a batch's [[d]]'X for its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.quasi_newton.encryption.bignum import inverses, long, power
from streamfl.quasi_newton.encryption.keys import PaillierPublicKey

__all__ = ["add", "add_plain", "transposed_product"]

# Most bits of a digit. Wider digits never pay: the steps from the largest digit down grow faster than
# products of rows are saved.
WIDEST_WINDOW = 14
# Larger numbers could overflow while they are cut into digits.
LARGEST = 2**61
# For more than this many steps from one digit to the next, one power is cheaper than products.
GAP = 4


def add(key: PaillierPublicKey, *vectors: Sequence[int]) -> list[int]:
    """[[sum of vectors]]: the product of the ciphertexts at each place. ValueError if lengths differ."""
    if not vectors:
        raise ValueError("nothing to add")
    total = list(vectors[0])
    for vector in vectors[1:]:
        total = [one * other % key.n_squared for one, other in zip(total, vector, strict=True)]
    return total


def add_plain(key: PaillierPublicKey, ciphertexts: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """[[v + m]] from [[v]] and whole numbers m of any sign: c (1 + n m) = c + n (c m mod n) modulo n^2."""
    n, n_squared = key.n, key.n_squared
    return [
        (ciphertext + n * (ciphertext * long(number) % n)) % n_squared
        for ciphertext, number in zip(ciphertexts, numbers, strict=True)
    ]


def transposed_product(key: PaillierPublicKey, ciphertexts: Sequence[int], matrix: NDArray[Any]) -> list[int]:
    """[[d]]'X: for each column j the ciphertext of sum_i d_i X_ij, prod_i c_i^X_ij modulo n^2.

    Pippenger's buckets: X_ij is cut into signed digits of w bits. From the largest digit down to 1, each row
    is multiplied into a running product once, at its digit. At each step the running product is multiplied
    into the result, so a row counts as often as its digit says. A negative digit takes the row's inverse.

    key: that the rows are encrypted under.
    ciphertexts: of d, one for each row, coprime to n.
    matrix: (rows, columns), whole numbers of any sign, up to 2^61.
    """
    if matrix.ndim != 2 or len(matrix) != len(ciphertexts) or matrix.dtype != np.int64:
        raise ValueError(
            f"{matrix.dtype} {matrix.shape}: expected int64, a row for each of {len(ciphertexts)} ciphertexts"
        )
    if matrix.size and max(int(matrix.max()), -int(matrix.min())) > LARGEST:
        raise ValueError(f"a number is beyond {LARGEST}")
    if not len(ciphertexts):
        return [long(1)] * matrix.shape[1]
    # A row's ciphertext is at the row's number, its inverse at -1 minus the number: a list's negative index.
    both = [*ciphertexts, *reversed(inverses(ciphertexts, key.n_squared))]
    return [_column_product(both, column, key.n_squared) for column in matrix.T]


def _column_product(both: Sequence[int], column: NDArray[np.int64], modulus: int) -> int:
    largest = max(abs(int(column.max())), abs(int(column.min())))
    bits = _window_bits(len(column), largest)
    total = long(1)
    for digits in reversed(list(_signed_digits(column, bits, largest))):
        if total != 1:
            total = power(total, 1 << bits, modulus)
        total = total * _buckets_product(both, digits, modulus) % modulus
    return total


def _buckets_product(both: Sequence[int], digits: NDArray[np.int64], modulus: int) -> int:
    """prod_i c_i^digit_i, for small digits."""
    rows = np.flatnonzero(digits)
    if not len(rows):
        return long(1)
    values = digits[rows]
    sizes = np.abs(values)
    order = np.argsort(-sizes, kind="stable")
    sources, sizes = np.where(values < 0, -1 - rows, rows)[order].tolist(), sizes[order].tolist()
    # running: product of all rows whose digit is the present one or larger. Each step down by one multiplies
    # the result by it.
    running, total, at = long(1), long(1), sizes[0]
    for source, size in zip(sources, sizes, strict=True):
        if size != at:
            total = _descend(total, running, at - size, modulus)
            at = size
        running = running * both[source] % modulus
    return _descend(total, running, at, modulus)


def _descend(total: int, running: int, steps: int, modulus: int) -> int:
    if steps > GAP:
        return total * power(running, steps, modulus) % modulus
    for _ in range(steps):
        total = total * running % modulus
    return total


def _signed_digits(column: NDArray[np.int64], bits: int, largest: int) -> Iterator[NDArray[np.int64]]:
    """Digits d_k with column = sum_k d_k 2^(bits k), -2^(bits-1) <= d_k < 2^(bits-1), the lowest first, in
    the column's shape."""
    half, rest = 1 << (bits - 1), column
    for _ in range(_digit_count(largest, bits)):
        digits = ((rest + half) & ((1 << bits) - 1)) - half
        yield digits
        # The number is divisible by 2^bits, so the shift is exact for negative numbers too.
        rest = (rest - digits) >> bits


def _digit_count(largest: int, bits: int) -> int:
    """How many signed digits hold every number up to ``largest`` on either side of 0."""
    reach, count = (1 << (bits - 1)) - 1, 1
    while reach < largest:
        # The largest positive number that these digits can hold. The negative range is longer.
        reach = (reach << bits) + (1 << (bits - 1)) - 1
        count += 1
    return count


def _window_bits(rows: int, largest: int) -> int:
    """The digit's width with the fewest products: each row once a digit, the steps down from the largest
    digit, and the shifts."""

    def products(bits: int) -> float:
        count, half = _digit_count(largest, bits), 1 << (bits - 1)
        stops = min(rows, half)
        # From one digit in use to the next by products or by a power, as in _descend.
        way = stops * min(half / stops, 2 + 1.5 * math.log2(half / stops))
        return count * (rows + way) + (count - 1) * bits

    return min(range(2, WIDEST_WINDOW + 1), key=products)
