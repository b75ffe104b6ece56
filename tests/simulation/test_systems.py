"""A few seeds of every installed system, on either bus: the simulation's part of the fast tests."""

from __future__ import annotations

import pytest

from streamfl.testing.faults import fault_simulations
from streamfl.testing.faults.buses import CLUSTERS

pytestmark = pytest.mark.usefixtures("quick_starts")

SYSTEMS = fault_simulations()
SEEDS = {"memory": range(12), "sqlite": range(4)}


@pytest.mark.parametrize("bus", CLUSTERS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_check_holds(system: str, bus: str) -> None:
    """Protects the fast tests from a change that loses or doubles something at the first fault; others run many more seeds."""
    verdicts = [SYSTEMS[system].simulate(seed, bus) for seed in SEEDS[bus]]
    assert [f"SEED={verdict.seed} BUS={bus}  # {verdict.failure}" for verdict in verdicts if verdict.failure] == []
