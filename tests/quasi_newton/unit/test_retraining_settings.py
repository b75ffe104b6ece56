"""Which settings all members share, and which an operator may change between restarts."""

from __future__ import annotations

from typing import Any

import pytest
from quasi_newton.federations import settings_of

from streamfl.quasi_newton.roles import ROLES


def changed(name: str, section: str, key: str, value: Any) -> Any:
    return settings_of(name, 1, **{section: {key: value}})


@pytest.mark.parametrize(
    ("section", "key", "value", "shared", "may_change"),
    [
        ("alignment", "method", "keyed-hash", True, False),
        ("alignment", "held_out", 0.2, False, True),
        ("learning", "batch", 90, True, False),
        ("learning", "min_support", 7, True, False),
        ("learning", "largest_leverage", 0.5, True, False),
        ("learning", "learning_rate", 0.1, False, True),
        ("learning", "freeze_below", 0.1, False, True),
        ("preprocessing", "method", "rank", False, False),
        ("retraining", "every_seconds", 60.0, False, True),
    ],
)
def test_what_has_to_stay(section: str, key: str, value: Any, shared: bool, may_change: bool) -> None:
    """Protects batches, which all parties have to divide alike, and the way out of a failure: rate and step
    may be changed."""
    for name in ("g", "h1", "c"):
        before, after = settings_of(name, 1), changed(name, section, key, value)
        assert (before.fingerprint != after.fingerprint) == shared
        kind = ROLES[before.role.kind]
        must, may = kind.state_settings(after).compare(kind.state_settings(before).values)
        assert ([one.key for one in must], [one.key for one in may]) == (
            ([], [f"{section}.{key}"]) if may_change else ([f"{section}.{key}"], [])
        )
