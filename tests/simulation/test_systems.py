"""A few seeds of every installed system on SQLite. Each system's own tests run many seeds in memory."""

from __future__ import annotations

import pytest

from streamfl.testing.faults import fault_simulations

pytestmark = pytest.mark.usefixtures("quick_starts")

SYSTEMS = fault_simulations()
SEEDS = range(4)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_check_holds(system: str) -> None:
    """Protects every system from a change of the SQLite bus that loses or doubles something at a fault."""
    verdicts = [SYSTEMS[system].simulate(seed, "sqlite") for seed in SEEDS]
    assert [
        f"SEED={verdict.seed} BUS=sqlite  # {verdict.failure}" for verdict in verdicts if verdict.failure
    ] == []
