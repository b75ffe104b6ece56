"""Deterministic simulation: a whole federation with faults, as one function of a seed.

The roles, the worker's loop and the bus's interface are the real ones. Time is virtual (:mod:`.schedule`), and the cluster and its
faults are drawn from the seed (:mod:`.cluster`). A system brings its scenarios, drawn from the seed too, and what must hold
whatever happened (:mod:`.systems`). ``python -m streamfl.testing.faults --seed 7`` runs one of each system.
"""

from streamfl.testing.faults.federation import CheckFailed, Verdict
from streamfl.testing.faults.systems import FaultSimulation, fault_simulations

__all__ = ["CheckFailed", "FaultSimulation", "Verdict", "fault_simulations"]
