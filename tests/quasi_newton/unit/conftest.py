"""Keys of tests: short, the same in every run, made once a session."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, generate_key


def entropy(seed: str) -> Callable[[int], bytes]:
    """Bytes that look random and are the same for a seed."""
    calls = iter(range(10**9))
    return lambda size: hashlib.shake_256(f"{seed} {next(calls)}".encode()).digest(size)


@pytest.fixture(name="private", scope="session")
def _private() -> PaillierPrivateKey:
    return generate_key(512, entropy("one"))


@pytest.fixture(name="other", scope="session")
def _other() -> PaillierPrivateKey:
    return generate_key(512, entropy("another"))


@pytest.fixture(name="longer", scope="session")
def _longer() -> PaillierPrivateKey:
    return generate_key(1024, entropy("longer"))
