"""Simulates a quasi-Newton federation under faults, by seed."""

from __future__ import annotations

from dataclasses import replace

from quasi_newton.proof.checks import check_outcome, check_said
from quasi_newton.proof.observed_messages import recorded
from quasi_newton.proof.scenario import C, QuasiNewtonScenario, scenario

from streamfl.contract.seeding import rng_for
from streamfl.simulation.vertical.members import LABELS, samples_topic
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.federation import Verdict, run
from streamfl.testing.faults.permanent_faults import of_a_member, of_a_partition, of_a_process
from streamfl.testing.faults.systems import FaultSimulation

__all__ = ["FAULTS", "simulate", "simulate_liveness"]

# Virtual seconds after which members report that nobody answers.
PATIENCE = 20.0


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Run the scenario of this seed on a bus, memory or sqlite, and check everything that must hold."""
    return _simulate(scenario(seed), bus)


def simulate_liveness(seed: int, bus: str = "memory") -> Verdict:
    """The same with a permanent fault: everything that does not depend on the lost part must finish.

    Without a member there are no more steps. Then all members that wait for it go on waiting, and some member
    must report it."""
    chosen = _with_a_fault_that_stays(seed)
    if chosen.absent is None:
        return _simulate(chosen, bus)
    found: list[str] = []
    verdict = _simulate(chosen, bus, found)
    if verdict.failure is not None and verdict.failure.startswith("not done"):
        silent = not any("nothing has come" in text for text in chosen.observed.troubles)
        failure = f"nobody says that {chosen.absent} is away: {verdict.failure}" if silent else None
        return replace(verdict, failure=failure)
    return verdict


def _simulate(chosen: QuasiNewtonScenario, bus: str, found: list[str] | None = None) -> Verdict:
    def check(faulty: FaultyBus) -> None:
        if chosen.absent is None:
            check_outcome(faulty, chosen)
        else:
            check_said(faulty, chosen)

    with recorded(chosen.observed, chosen.fragment_bytes):
        return run(chosen, check, bus)


def _with_a_fault_that_stays(seed: int) -> QuasiNewtonScenario:
    draws = rng_for(seed, "simulation", "a quasi-Newton fault that stays")
    chosen = scenario(seed)
    workers = {name: max(2, count) for name, count in chosen.workers.items()}
    alignment = {**chosen.sections["alignment"], "patience_seconds": PATIENCE}
    # A guest asks a host that answers for no further version again after each patience, without end.
    scoring = {**chosen.sections["scoring"], "versions": 10}
    sections = {**chosen.sections, "alignment": alignment, "scoring": scoring}
    chosen = replace(chosen, workers=workers, sections=sections)
    at = float(draws.uniform(0.0, chosen.faulty_seconds))
    kind = ("process", "partition", "member")[int(draws.integers(3))]
    if kind == "process":
        return replace(chosen, permanent_fault=of_a_process(draws, at, list(workers)))
    if kind == "member":
        absent = [*chosen.parties, C][int(draws.integers(len(chosen.parties) + 1))]
        permanent_fault = of_a_member(absent, workers, at)
        return replace(chosen, permanent_fault=permanent_fault, absent=absent)
    topics = [*(samples_topic(party) for party in chosen.parties), LABELS]
    topic = topics[int(draws.integers(len(topics)))]
    permanent_fault = of_a_partition(topic, 0, at)
    return replace(chosen, permanent_fault=permanent_fault)


FAULTS = FaultSimulation(simulate, simulate_liveness)
