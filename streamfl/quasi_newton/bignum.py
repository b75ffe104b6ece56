"""Long whole numbers: gmpy2's, and how to get it and phe where they are missing.

An ``int`` of these modules may be gmpy2's ``mpz``. It takes part in arithmetic with Python's own and is equal to it; a
remainder is as fast as GMP where the modulus is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from streamfl.role import ConfigurationError

__all__ = [
    "NOT_INSTALLED",
    "from_bytes",
    "gcd",
    "inverse",
    "inverses",
    "is_power",
    "is_prime",
    "long",
    "power",
    "primorial",
    "product",
    "square_root",
    "to_bytes",
]

NOT_INSTALLED = "phe and gmpy2 are not installed: pip install 'streamfl[paillier]'"

try:
    import gmpy2
    import phe  # noqa: F401  (both are one extra: a member that has half of it is told at once)
except ImportError:
    raise ConfigurationError(NOT_INSTALLED) from None

# GMP's own test, and rounds of Miller and Rabin after it.
ROUNDS = 40


def long(number: int) -> int:
    """The number as GMP has it."""
    result: int = gmpy2.mpz(number)
    return result


def power(base: int, exponent: int, modulus: int) -> int:
    """base^exponent modulo the modulus; ZeroDivisionError for a negative exponent of what has no inverse."""
    result: int = gmpy2.powmod(base, exponent, modulus)
    return result


def gcd(one: int, other: int) -> int:
    """The greatest common divisor."""
    result: int = gmpy2.gcd(one, other)
    return result


def inverse(number: int, modulus: int) -> int:
    """The inverse modulo the modulus; ZeroDivisionError where there is none."""
    result: int = gmpy2.invert(number, modulus)
    return result


def inverses(numbers: Sequence[int], modulus: int) -> list[int]:
    """The inverse of each number, by one inversion and three products a number (Montgomery's trick).

    ZeroDivisionError where one of them has none.
    """
    if not numbers:
        return []
    products = [numbers[0]]
    for number in numbers[1:]:
        products.append(products[-1] * number % modulus)
    rest = inverse(products[-1], modulus)
    found = []
    for index in range(len(numbers) - 1, 0, -1):
        found.append(products[index - 1] * rest % modulus)
        rest = rest * numbers[index] % modulus
    found.append(rest)
    found.reverse()
    return found


def product(numbers: Iterable[int], modulus: int) -> int:
    """The product modulo the modulus; 1 of nothing."""
    total = long(1)
    for number in numbers:
        total = total * number % modulus
    return total


def is_prime(number: int) -> bool:
    """Whether the number is a prime; wrong with a probability below 2^-80."""
    return bool(gmpy2.is_prime(number, ROUNDS))


def is_power(number: int) -> bool:
    """Whether the number is a square, a cube or a higher power."""
    return bool(gmpy2.is_power(number))


def primorial(limit: int) -> int:
    """The product of all primes up to the limit."""
    result: int = gmpy2.primorial(limit)
    return result


def square_root(number: int) -> int:
    """The square root, rounded down."""
    return math.isqrt(int(number))


def to_bytes(number: int, size: int) -> bytes:
    """The number as ``size`` bytes, big-endian; OverflowError where it does not fit."""
    return int(number).to_bytes(size, "big")


def from_bytes(content: bytes) -> int:
    """The number that :func:`to_bytes` wrote."""
    return long(int.from_bytes(content, "big"))
