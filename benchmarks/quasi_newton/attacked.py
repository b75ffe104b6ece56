"""What several attacks need: a short key that is the same in every run, and secrets of the members."""

from __future__ import annotations

import hashlib
from functools import cache

from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, generate_key

HOST_SECRET, GUEST_SECRET, LINK_SECRET = (bytes([number]) * 32 for number in (1, 2, 3))


@cache
def key_of(bits: int) -> PaillierPrivateKey:
    """The coordinator's key. Attacks do not break keys, so most of them have one of 512 bits."""
    calls = iter(range(10**9))
    return generate_key(bits, lambda size: hashlib.shake_256(f"{bits} {next(calls)}".encode()).digest(size))
