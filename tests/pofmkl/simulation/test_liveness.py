"""Servers that are gone for good, and a round that waits for who is."""

from __future__ import annotations

import pytest
from mutations import check_caught
from pofmkl.proof.faults import simulate_liveness

from streamfl.pofmkl.server.rounds import OpenRound

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_starts")]


def rounds_wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    assert isinstance(OpenRound.over_at, property)
    patch.setattr(OpenRound, "over_at", property(lambda _self: None))


def test_a_round_that_waits_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the worth of faults that stay: what waits for ever for what never comes fails within 200
    seeds."""
    rounds_wait_for_ever(monkeypatch)
    check_caught("server: a round waits for ever", simulate_liveness, 6)
