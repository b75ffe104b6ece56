"""Deterministic simulation of a whole federation with faults. A seed determines the run.

The roles, the worker's loop and the bus's interface are the real ones. Time is virtual (:mod:`.schedule`).
The cluster's faults are drawn from the seed (:mod:`.cluster`). Each system provides scenarios, also drawn
from the seed, and checks that must hold in every run (:mod:`.systems`). ``python -m streamfl.testing.faults
--seed 7`` runs one scenario of each system.
"""

from streamfl.testing.faults.federation import CheckFailed, Verdict
from streamfl.testing.faults.systems import FaultSimulation, fault_simulations

__all__ = ["CheckFailed", "FaultSimulation", "Verdict", "fault_simulations"]
