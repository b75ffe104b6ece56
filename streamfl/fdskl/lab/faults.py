"""A federation of masked sums under faults, by seed."""

from __future__ import annotations

from dataclasses import replace

from streamfl.fdskl.lab.checks import check_outcome
from streamfl.fdskl.lab.said import recorded
from streamfl.fdskl.lab.scenario import LABELS, FdsklScenario, scenario
from streamfl.seeding import rng_for
from streamfl.simulation.faults.federation import Verdict, run
from streamfl.simulation.faults.staying import Staying, of_a_process
from streamfl.simulation.faults.systems import FaultSimulation

__all__ = ["FAULTS", "simulate", "simulate_liveness"]


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Run the scenario of this seed on a bus, memory or sqlite, and check whatever must hold of it."""
    return _simulate(scenario(seed), bus)


def simulate_liveness(seed: int, bus: str = "memory") -> Verdict:
    """The same with a fault that stays: whatever does not depend on what is gone comes to its end."""
    return _simulate(_with_a_fault_that_stays(seed), bus)


def _simulate(chosen: FdsklScenario, bus: str) -> Verdict:
    with recorded(chosen.said):
        return run(chosen, lambda faulty: check_outcome(faulty, chosen), bus)


def _with_a_fault_that_stays(seed: int) -> FdsklScenario:
    draws = rng_for(seed, "simulation", "what stays, of masked sums")
    chosen = scenario(seed)
    workers = {name: max(2, count) for name, count in chosen.workers.items()}
    chosen = replace(chosen, workers=workers)
    at = float(draws.uniform(0.0, chosen.faulty_seconds))
    kind = ("process", "partition")[int(draws.integers(2))]
    if kind == "process":
        return replace(chosen, staying=of_a_process(draws, at, list(workers)))
    topics = [*(f"samples-{name}" for name in chosen.parties), LABELS]
    place = topics[int(draws.integers(len(topics)))], int(draws.integers(chosen.partitions))
    staying = Staying(f"partition {place[1]} of {place[0]} cannot be read", at, {}, frozenset([place]))
    return replace(chosen, staying=staying)


FAULTS = FaultSimulation(simulate, simulate_liveness)
