"""Attacks on the names of entities that are not common, by what an alignment sends."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from benchmarks.attacks import Attack
from benchmarks.quasi_newton.attacked import GUEST_SECRET, HOST_SECRET, LINK_SECRET
from streamfl.quasi_newton.rows.alignment import Alignment, KeyedHashes

SESSION = b"credit/1"
PSI = "alignment.method = intersection"
# Telephone numbers of a small town: every one of them can be tried.
ALL_NAMES = [f"+49 30 {number:05}" for number in range(2_000)]
P25519, A25519 = 2**255 - 19, 486_662
P256 = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF


def found_by_trying(names: Sequence[str], *, hashed: bool) -> float:
    """Share of the guest's names that a host finds by trying every name there is with all that it knows."""
    if hashed:
        sent = set(KeyedHashes(LINK_SECRET, SESSION, names, len(names)).blind_own())
        host = KeyedHashes(LINK_SECRET, SESSION, ALL_NAMES, len(ALL_NAMES))
        found = {name for one, name in zip(host.blind_own(), host.names_in_order, strict=True) if one in sent}
    else:
        # The host multiplies with its own scalar, and with none: the guest's scalar it does not have.
        sent = set(Alignment(GUEST_SECRET, SESSION, names, len(names)).blind_own())
        tries = Alignment(HOST_SECRET, SESSION, ALL_NAMES, len(ALL_NAMES))
        known = sent | set(tries.blind_theirs(sorted(sent)))
        found = {
            name for one, name in zip(tries.blind_own(), tries.names_in_order, strict=True) if one in known
        }
    return len(found & set(names)) / len(names)


def names_tried_out(folder: Path) -> Iterator[Attack]:
    """Keyed hashes hide names from who has no key. The other member has it."""
    random = np.random.default_rng(0)
    names = [ALL_NAMES[number] for number in random.choice(len(ALL_NAMES), 100, replace=False)]
    plain, protected = (found_by_trying(names, hashed=hashed) for hashed in (True, False))
    figure = "share of the guest's names found"
    yield Attack("every name tried out", "a host", figure, plain, PSI, protected, chance=0.0)


def rate_of_trying(folder: Path) -> Iterator[Attack]:
    """How fast that goes: it depends on the machine."""
    tried, begin = 0, time.perf_counter()
    front = b"streamfl alignment/1" + len(SESSION).to_bytes(8, "big") + SESSION
    encoded = [len(name).to_bytes(8, "big") + name.encode() for name in ALL_NAMES]
    while time.perf_counter() - begin < 0.5:
        for name in encoded:
            hmac.digest(LINK_SECRET, hashlib.sha256(front + name).digest(), "sha256")
        tried += len(encoded)
    rate = tried / (time.perf_counter() - begin) / 1e6
    yield Attack("names tried out a second", "a host", "millions, one core", rate, PSI, None)


def bit_of_x25519(abscissa: bytes) -> bool:
    """Whether a number is the abscissa of a point of Curve25519, and not of its twist."""
    # The topmost bit counts for nothing (RFC 7748, 5).
    u = int.from_bytes(abscissa, "little") % 2**255 % P25519
    return pow((u * u * u + A25519 * u * u + u) % P25519, (P25519 - 1) // 2, P25519) == 1


def surviving_bits(names: Sequence[str], *, x25519: bool) -> float:
    """Share of names of which a bit of the point is the same after it was multiplied."""
    if x25519:
        scalar = X25519PrivateKey.from_private_bytes(GUEST_SECRET)
        points = [hashlib.sha256(SESSION + name.encode()).digest() for name in names]
        sent = [scalar.exchange(X25519PublicKey.from_public_bytes(point)) for point in points]
        return float(
            np.mean([bit_of_x25519(one) == bit_of_x25519(two) for one, two in zip(points, sent, strict=True)])
        )
    # All that is sent lies on the curve. Whether the abscissa is a square is the bit that is left to look at.
    guest = Alignment(GUEST_SECRET, SESSION, names, len(names))
    pairs = zip(guest.names_in_order, guest.blind_own(), strict=True)
    return float(np.mean([_square(_point_before(name)) == _square(point) for name, point in pairs]))


def _point_before(name: str) -> bytes:
    """The abscissa that stands for a name before it is multiplied: anybody can compute it."""
    parts = b"".join(len(part).to_bytes(8, "big") + part for part in (SESSION, name.encode()))
    content = hashlib.sha256(b"streamfl alignment/1" + parts).digest()
    b = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
    for attempt in range(256):
        found = hashlib.sha256(content + attempt.to_bytes(4, "big")).digest()
        x = int.from_bytes(found, "big")
        if x < P256 and pow((x**3 - 3 * x + b) % P256, (P256 - 1) // 2, P256) == 1:
            return found
    raise AssertionError("a coin has fallen on the same side 256 times")


def _square(abscissa: bytes) -> bool:
    return pow(int.from_bytes(abscissa, "big"), (P256 - 1) // 2, P256) == 1


def a_bit_of_each_name(folder: Path) -> Iterator[Attack]:
    """On X25519, a name's point lies on the curve or on its twist, and so does every multiple."""
    names = ALL_NAMES[:400]
    plain, protected = (surviving_bits(names, x25519=x25519) for x25519 in (True, False))
    figure = "share of 400 names whose bit is known"
    yield Attack(
        "one bit of each name, X25519", "who reads points", figure, plain, "P-256", protected, chance=0.5
    )
