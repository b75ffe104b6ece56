"""Deterministic simulation: a whole federation with faults, as one function of a seed.

The roles, the worker's loop and the bus's interface are the real ones. Time is virtual (:mod:`.schedule`), the cluster and its
faults are drawn from the seed (:mod:`.cluster`), as are the federation and its data (:mod:`.scenario`), and what must hold whatever
happened is checked afterwards (:mod:`.checkers`). ``python -m streamfl.simulation.faults --seed 7`` runs one.
"""

from streamfl.simulation.faults.federation import CheckFailed, Verdict
from streamfl.simulation.faults.pofmkl import simulate
from streamfl.simulation.faults.scenario import Scenario, scenario

__all__ = ["CheckFailed", "Scenario", "Verdict", "scenario", "simulate"]
