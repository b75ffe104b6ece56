"""Deliberate bugs in a role, to check that wrong messages find them."""

from __future__ import annotations

from typing import Any

import pytest

from streamfl.testing.fuzz.campaign import run


def check_found(owner: Any, name: str, wrong: Any, only: str, patch: pytest.MonkeyPatch) -> None:
    """With ``wrong`` in place of an owner's attribute, a run over the targets whose names contain ``only``
    finds defects."""
    patch.setattr(owner, name, wrong)
    # The draws depend on every bound in the code and on the recordings, so a few seeds may find nothing.
    assert any(run(4_000, seed=seed, only=only).defects for seed in range(1, 13))


def trusts_the_sender(self: Any, *received: Any) -> None:
    return
