"""Deliberate bugs in a role, to check that wrong messages find them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from streamfl.testing.fuzz.campaign import run
from streamfl.testing.fuzz.systems import targets


def check_found(owner: Any, name: str, wrong: Any, only: str, patch: pytest.MonkeyPatch) -> None:
    """With ``wrong`` in place of an owner's attribute, a run over the targets whose names contain ``only``
    finds defects.

    A federation is recorded once in a process, so it is recorded before the mistake is there. Otherwise all
    later tests of the process would get the recording of a federation with the mistake.
    """
    for _ in targets(Random(0), only):
        pass
    patch.setattr(owner, name, wrong)
    # The draws depend on every bound in the code and on the recordings, so a few seeds may find nothing.
    assert any(run(4_000, seed=seed, only=only).defects for seed in range(1, 13))


def trusts_the_sender(self: Any, *received: Any) -> None:
    return
