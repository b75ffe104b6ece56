"""What a system provides for simulations with faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from streamfl.contract.system import load, systems_with
from streamfl.testing.faults.clients import client_scenarios
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.federation import Shape, Verdict, run
from streamfl.testing.faults.rekeying import simulate
from streamfl.testing.proof import installed_proofs

__all__ = ["FaultSimulation", "fault_simulations"]

S = TypeVar("S", bound=Shape)


@dataclass(frozen=True)
class FaultSimulation:
    """A system's scenarios.

    simulate: runs the scenario of a seed on a bus, memory or sqlite, and checks what must hold.
    simulate_liveness: the same on the memory bus with a permanent fault; None: the system has no such
    scenarios.
    """

    simulate: Callable[[int, str], Verdict]
    simulate_liveness: Callable[[int, str], Verdict] | None = None

    @classmethod
    def of(cls, scenario: Callable[[int], S], check: Callable[[FaultyBus, S], None]) -> FaultSimulation:
        """scenario: returns the scenario of a seed. check: raises CheckFailed if something does not hold at
        its end."""

        def simulate(seed: int, bus: str = "memory") -> Verdict:
            chosen = scenario(seed)
            return run(chosen, lambda faulty: check(faulty, chosen), bus)

        return cls(simulate)


def fault_simulations() -> dict[str, FaultSimulation]:
    """Fault simulations by name: those of every installed system, and that of the rekey command."""
    members, found = systems_with("members"), dict[str, FaultSimulation]()
    for name, proof in installed_proofs().items():
        if proof.faults:
            found[name] = load(proof.faults)
        elif name in members:
            check = load(proof.check) if proof.check else None
            found[name] = FaultSimulation.of(*client_scenarios(load(members[name].members or ""), check))
    return {**found, "rekey": FaultSimulation(simulate)}
