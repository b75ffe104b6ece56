"""Arithmetic on ciphertexts: sums, and products with a matrix of whole numbers by buckets.

Nothing here is blinded anew: that comes last, once, before a result leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.quasi_newton.bignum import inverses, long, power
from streamfl.quasi_newton.keys import PublicKey

__all__ = ["add", "add_plain", "transposed_product"]

# Of a digit. Wider ones never pay: the way down grows faster than rows are saved.
WIDEST_WINDOW = 14
# Digits of larger numbers could overflow while they are cut.
LARGEST = 2**61
# Buckets that are empty one after the other: from so many on a power is cheaper than products.
GAP = 4


def add(key: PublicKey, *vectors: Sequence[int]) -> list[int]:
    """[[sum of vectors]]: the product of the ciphertexts at each place. ValueError where lengths differ."""
    if not vectors:
        raise ValueError("nothing to add")
    total = list(vectors[0])
    for vector in vectors[1:]:
        total = [one * other % key.n_squared for one, other in zip(total, vector, strict=True)]
    return total


def add_plain(key: PublicKey, ciphertexts: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """[[v + m]] of [[v]] and whole numbers m of any sign: c (1 + n m) = c + n (c m mod n) modulo n^2."""
    n, n_squared = key.n, key.n_squared
    return [
        (ciphertext + n * (ciphertext * long(number) % n)) % n_squared
        for ciphertext, number in zip(ciphertexts, numbers, strict=True)
    ]


def transposed_product(key: PublicKey, ciphertexts: Sequence[int], matrix: NDArray[Any]) -> list[int]:
    """[[d]]'X: for each column j the ciphertext of sum_i d_i X_ij, prod_i c_i^X_ij modulo n^2.

    Pippenger's buckets: X_ij is cut into signed digits of w bits. From the largest digit down to 1, each row is multiplied into a
    running product once, when its digit is come to, and the running product into the result once a step; so a row is counted as
    often as its digit says. A negative digit takes the row's inverse.

    key: that the rows are encrypted under.
    ciphertexts: of d, one a row, coprime to n.
    matrix: (rows, columns), whole numbers of any sign, up to 2^61.
    """
    if matrix.ndim != 2 or len(matrix) != len(ciphertexts) or matrix.dtype != np.int64:
        raise ValueError(f"{matrix.dtype} {matrix.shape}: expected int64, a row for each of {len(ciphertexts)} ciphertexts")
    if matrix.size and max(int(matrix.max()), -int(matrix.min())) > LARGEST:
        raise ValueError(f"a number is beyond {LARGEST}")
    if not len(ciphertexts):
        return [long(1)] * matrix.shape[1]
    # A row's ciphertext under its number, its inverse under the number's complement: a list's negative indices.
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
    """prod_i c_i^digit_i, for digits that are small."""
    rows = np.flatnonzero(digits)
    if not len(rows):
        return long(1)
    values = digits[rows]
    sizes = np.abs(values)
    order = np.argsort(-sizes, kind="stable")
    sources, sizes = np.where(values < 0, -1 - rows, rows)[order].tolist(), sizes[order].tolist()
    # running: of all rows whose digit is the present one or larger. Each step down by one multiplies the result by it.
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
    """Digits d_k with column = sum_k d_k 2^(bits k), -2^(bits-1) <= d_k < 2^(bits-1), the lowest first: arrays as the column."""
    half, rest = 1 << (bits - 1), column
    for _ in range(_digit_count(largest, bits)):
        digits = ((rest + half) & ((1 << bits) - 1)) - half
        yield digits
        # A shift of what is divisible: exact for negative numbers too.
        rest = (rest - digits) >> bits


def _digit_count(largest: int, bits: int) -> int:
    """How many signed digits hold every number up to ``largest`` on either side of 0."""
    reach, count = (1 << (bits - 1)) - 1, 1
    while reach < largest:
        # The most that the digits so far can hold on the positive side, which is the shorter one.
        reach = (reach << bits) + (1 << (bits - 1)) - 1
        count += 1
    return count


def _window_bits(rows: int, largest: int) -> int:
    """The digit's width with the fewest products: each row once a digit, the way down from the largest one, and the shifts."""

    def products(bits: int) -> float:
        count, half = _digit_count(largest, bits), 1 << (bits - 1)
        stops = min(rows, half)
        # From stop to stop by products or by a power, as in _descend.
        way = stops * min(half / stops, 2 + 1.5 * math.log2(half / stops))
        return count * (rows + way) + (count - 1) * bits

    return min(range(2, WIDEST_WINDOW + 1), key=products)
