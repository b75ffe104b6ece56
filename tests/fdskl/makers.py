"""Parties of FDSKL as several tests make them: built from settings, with entropy that can be told again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.roles import ROLES
from streamfl.fdskl.sums.masks import OwnIncarnation

COLUMNS = ("x", "y")


def settings_of(party: str, parties: int, **sections: dict[str, Any]) -> FdsklSettings:
    """A small federation of parties p0, p1, …, of which p0 is active: what is said here goes before what is
    usual."""
    small: dict[str, dict[str, Any]] = {
        "learning": {
            "bandwidth": 1.0, "block_instances": 3, "block_features": 2, "features_limit": 6, "window": 8,
            "visits": 2,
            "regularisation": 1e-3,
        },
        "alignment": {"reply_seconds": 0.7, "expiry_seconds": 20.0, "limit": 40, "linger_ms": 100.0},
        "aggregation": {"round_seconds": 2.0, "rounds_in_flight": 2},
        "standardisation": {"first_entities": 2, "transform": "none"},
    }  # fmt: skip
    merged = {name: {**content, **sections.pop(name, {})} for name, content in small.items()}
    federation = {
        "name": "f",
        "parties": [f"p{number}" for number in range(parties)],
        **sections.pop("federation", {}),
    }
    active = federation.get("active", "p0")
    labels = (
        {"labels": {"topic": "labels", "label": "y"}}
        if party in ([active] if isinstance(active, str) else active)
        else {}
    )
    content = {
        "federation": federation,
        "role": {"kind": WORKER},
        "party": {"name": party},
        "samples": {"topic": "samples", "features": list(COLUMNS)},
    }
    return FdsklSettings.model_validate({**content, **labels, **merged, **sections})


def secret_bytes(*names: object) -> bytes:
    """32 bytes that follow from names alone."""
    return hashlib.blake2b(repr(names).encode(), digest_size=32).digest()


@cache
def life_of(party: int, number: int) -> OwnIncarnation:
    """The incarnation that the party gets with its n-th entropy."""
    return OwnIncarnation(secret_bytes(party, number))


def lives(party: int, first: int = 0) -> Callable[[], bytes]:
    """Entropy of a party: another one at each call, the same for each role that is made."""
    numbers = count(first)
    return lambda: secret_bytes(party, next(numbers))


def make_worker(settings: FdsklSettings, entropy: Callable[[], bytes] | None = None) -> FdsklParty:
    """The party's role, whose secret and incarnations follow from its name."""
    role = ROLES[WORKER].build(settings)
    assert isinstance(role, FdsklParty)
    own = settings.own
    role.given = replace(role.given, secret=secret_bytes("secret", own), entropy=entropy or lives(own))
    return role
