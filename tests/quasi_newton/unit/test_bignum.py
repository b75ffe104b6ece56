"""Long numbers: what they are made of may be missing, and inverses are taken many at a time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from streamfl.quasi_newton.encryption import bignum


def test_many_inverses_are_each_an_inverse() -> None:
    """Protects negative entries of a matrix: they are powers of these."""
    modulus = 10**9 + 7
    numbers = [3, 10**9, 12345, 1]
    assert [
        one * other % modulus for one, other in zip(numbers, bignum.inverses(numbers, modulus), strict=True)
    ] == [1] * 4
    assert bignum.inverses([], modulus) == []
    with pytest.raises(ZeroDivisionError):
        bignum.inverses([3, 10, 7], 35)


WITHOUT = "import sys; sys.modules.update(gmpy2=None, phe=None);"


def test_who_needs_no_encryption_needs_no_extra() -> None:
    """Protects what lists all kinds of roles that are installed, as the reference does, and
    `precision = "plain"`."""
    program = (
        f"{WITHOUT} from streamfl.contract.system import installed_systems;"
        "from streamfl.runtime.kinds import find_kind;"
        "[find_kind(kind) for system in installed_systems() for kind in system.kinds];"
        "import streamfl.quasi_newton.tools.direct, streamfl.quasi_newton.tools.keys;"
        "from quasi_newton.federations import settings_of; from streamfl.quasi_newton.roles import ROLES;"
        "[ROLES[one.role.kind].build(one) for one in (settings_of(name, 1) for name in ('g', 'h1', 'c'))]"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=environment)


def test_a_secret_exponent_gives_the_same_power() -> None:
    """Protects decryption: the way that takes the same time for all exponents is the same function."""
    for exponent in (1, 2, 3, 2**127 - 1, 2**127):
        assert bignum.secret_power(12345, exponent, 10**18 + 9) == pow(12345, exponent, 10**18 + 9)
