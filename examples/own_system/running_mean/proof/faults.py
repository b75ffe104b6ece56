"""``make simulate``: what must hold whatever happened."""

from __future__ import annotations

from running_mean.proof.checks import check
from running_mean.proof.scenario import scenario
from streamfl.testing.faults.federation import Verdict, run
from streamfl.testing.faults.systems import FaultSimulation

__all__ = ["FAULTS"]


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Run the scenario of this seed and check it."""
    chosen = scenario(seed)
    return run(chosen, lambda faulty: check(faulty, chosen), bus)


FAULTS = FaultSimulation(simulate)
