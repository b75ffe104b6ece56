"""A few seeds of every installed system on SQLite. Each system's own tests run many seeds in memory."""

from __future__ import annotations

import pytest
from fault_runs import check_seeds_hold

from streamfl.testing.faults import fault_simulations

pytestmark = pytest.mark.usefixtures("quick_starts")

# Of POF-MKL, test_sqlite_simulation runs these seeds and more.
SYSTEMS = {name: found for name, found in fault_simulations().items() if name != "pofmkl"}
# Short runs with several kinds of faults. Of others, the first two.
SEEDS = {"vafl": (4, 11), "fdskl": (8, 11), "quasi-newton": (2, 8), "dp-frank-wolfe": (4, 7)}


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_check_holds(system: str) -> None:
    """Protects every system from a change of the SQLite bus that loses or doubles something at a fault."""
    check_seeds_hold(SYSTEMS[system].simulate, SEEDS.get(system, (0, 1)), "sqlite")
