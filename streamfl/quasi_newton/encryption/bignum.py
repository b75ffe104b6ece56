"""Long whole numbers by gmpy2, and an error that says how to install it.

Without gmpy2 everything else of the system can be loaded, because some commands look at every installed
system.

An ``int`` of these modules may be gmpy2's ``mpz``. It mixes with Python's integers in arithmetic and
comparisons. A remainder is as fast as GMP's if the modulus is an ``mpz``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from streamfl.contract.role import ConfigurationError

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

# Number of repetitions of GMP's primality test: its own test, then rounds of Miller and Rabin.
ROUNDS = 40


def require() -> None:
    """ConfigurationError if gmpy2 is missing. Called at the start, so that the error does not come at the
    first encryption."""
    if gmpy2 is None:
        raise ConfigurationError(NOT_INSTALLED)


def long(number: int) -> int:
    """The number as an ``mpz``."""
    result: int = gmpy2.mpz(number)
    return result


def power(base: int, exponent: int, modulus: int) -> int:
    """base^exponent modulo the modulus. ZeroDivisionError for a negative exponent if the base has no
    inverse."""
    result: int = gmpy2.powmod(base, exponent, modulus)
    return result


def secret_power(base: int, exponent: int, modulus: int) -> int:
    """The same for an odd modulus and a secret exponent above 0. The time it takes reveals nothing about the
    arguments' bits."""
    result: int = gmpy2.powmod_sec(base, exponent, modulus)
    return result


def gcd(one: int, other: int) -> int:
    """The greatest common divisor."""
    result: int = gmpy2.gcd(one, other)
    return result


def inverse(number: int, modulus: int) -> int:
    """The inverse modulo the modulus. ZeroDivisionError if there is none."""
    result: int = gmpy2.invert(number, modulus)
    return result


def inverses(numbers: Sequence[int], modulus: int) -> list[int]:
    """The inverse of each number, by one inversion and three products a number (Montgomery's trick).

    ZeroDivisionError if one of them has none.
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
    """The product modulo the modulus; 1 for no numbers."""
    total = long(1)
    for number in numbers:
        total = total * number % modulus
    return total


def is_prime(number: int) -> bool:
    """Whether the number is a prime. The answer is wrong with a probability below 2^-80."""
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
    """The number as ``size`` bytes, big-endian. OverflowError if it does not fit."""
    return int(number).to_bytes(size, "big")


def from_bytes(content: bytes) -> int:
    """The number that :func:`to_bytes` encoded."""
    return long(int.from_bytes(content, "big"))
