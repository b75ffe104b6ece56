"""A party that is gone for good, and a coordinator that waits for who never answers."""

from __future__ import annotations

from typing import Any

import pytest
from mutations import after, check_caught
from vafl.proof.faults import simulate, simulate_liveness
from vafl.proof.scenario import FOR_EVER

from streamfl.vafl.coordinator.entities import CoordinatorEntities

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_starts")]


def waits_for_who_never_answers(patch: pytest.MonkeyPatch) -> None:
    def change(result: Any, self: Any, names: Any, rows: Any, *given: Any) -> Any:
        # The quorum of who never saw the entity is waited for as long as ever.
        unanswered = (self._embeddings["unanswered"][rows] & self._embeddings["asked"][rows]).any(axis=1)
        for name, row, waits in zip(names, rows, unanswered, strict=True):
            if waits and name in self._pending:
                self._pending.put(name, row, FOR_EVER)
        return result

    after(patch, CoordinatorEntities, "settle", change)


def test_a_coordinator_that_waits_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the worth of faults that stay: what waits for ever for what never comes fails within 200
    seeds."""
    waits_for_who_never_answers(monkeypatch)
    check_caught("coordinator: waits for a party that never answers", simulate_liveness, 102)
    # Where everybody comes back in the end it does no harm that shows.
    assert [seed for seed in (5, 17, 36) if simulate(seed).failure] == []
