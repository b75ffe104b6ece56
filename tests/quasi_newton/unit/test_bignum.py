"""Long numbers: what they are made of may be missing, and inverses are taken many at a time."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from streamfl.quasi_newton import bignum
from streamfl.role import ConfigurationError


@pytest.mark.parametrize("missing", ["gmpy2", "phe"])
def test_who_lacks_the_extra_is_told_how_to_get_it(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects an operator from a traceback of an import."""
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "streamfl.quasi_newton.bignum")
    with pytest.raises(ConfigurationError, match=r"pip install 'streamfl\[paillier\]'"):
        importlib.import_module("streamfl.quasi_newton.bignum")


def test_many_inverses_are_each_an_inverse() -> None:
    """Protects negative entries of a matrix: they are powers of these."""
    modulus = 10**9 + 7
    numbers = [3, 10**9, 12345, 1]
    assert [one * other % modulus for one, other in zip(numbers, bignum.inverses(numbers, modulus), strict=True)] == [1] * 4
    assert bignum.inverses([], modulus) == []
    with pytest.raises(ZeroDivisionError):
        bignum.inverses([3, 10, 7], 35)


def test_what_needs_no_encryption_needs_no_extra() -> None:
    """Protects `precision = "plain"`, the link and the alignment: they work where phe and gmpy2 are missing."""
    program = (
        "import sys; sys.modules.update(gmpy2=None, phe=None);"
        "import streamfl.quasi_newton.fixed_point, streamfl.quasi_newton.link, streamfl.quasi_newton.alignment"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
