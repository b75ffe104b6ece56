"""Long whole numbers: gmpy2's, and how to get it where it is missing.

Without it all else of the system can be loaded, as commands do that look at every installed system.

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
    "require",
    "secret_power",
    "square_root",
    "to_bytes",
]

NOT_INSTALLED = "gmpy2 is not installed, which Paillier's encryption needs: pip install 'streamfl[paillier]'"

try:
    import gmpy2
except ImportError:
    gmpy2 = None

# GMP's own test, and rounds of Miller and Rabin after it.
ROUNDS = 40


def require() -> None:
    """ConfigurationError where gmpy2 is missing: said at the start, and not at the first number that is to be encrypted."""
    if gmpy2 is None:
        raise ConfigurationError(NOT_INSTALLED)


def long(number: int) -> int:
    """The number as GMP has it."""
    result: int = gmpy2.mpz(number)
    return result


def power(base: int, exponent: int, modulus: int) -> int:
    """base^exponent modulo the modulus; ZeroDivisionError for a negative exponent of what has no inverse."""
    result: int = gmpy2.powmod(base, exponent, modulus)
    return result


def secret_power(base: int, exponent: int, modulus: int) -> int:
    """The same of an odd modulus and an exponent above 0 that is secret: how long it takes tells nothing of their bits."""
    result: int = gmpy2.powmod_sec(base, exponent, modulus)
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
