"""A federation of differentially private Frank-Wolfe under faults, by seed."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from dp_frank_wolfe.proof.checks import check_budget, check_outcome, check_said
from dp_frank_wolfe.proof.ledgers import made_up_files, without_power_cuts
from dp_frank_wolfe.proof.observed_messages import recorded
from dp_frank_wolfe.proof.rollback import check_rolled_back
from dp_frank_wolfe.proof.scenario import DPFrankWolfeScenario, S, scenario

from streamfl.contract.seeding import rng_for
from streamfl.simulation.vertical.members import LABELS, samples_topic
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.federation import Verdict, run
from streamfl.testing.faults.permanent_faults import of_a_member, of_a_partition, of_a_process
from streamfl.testing.faults.systems import FaultSimulation

__all__ = ["FAULTS", "simulate", "simulate_liveness"]

# Virtual seconds after which the server goes on without a party.
PATIENCE = 20.0


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Runs the scenario of this seed on a bus, memory or sqlite, and checks all that must hold of it."""
    return _simulate(scenario(seed), bus)


def simulate_liveness(seed: int, bus: str = "memory") -> Verdict:
    """The same with a fault that stays: all that does not depend on the missing member comes to its end.

    Without a party the others' fit goes on. Without the server no fit goes on, and parties report that nobody
    answers."""
    chosen = _with_a_fault_that_stays(seed)
    verdict = _simulate(chosen, bus)
    if chosen.absent == S and verdict.failure is not None and verdict.failure.startswith("not done"):
        silent = not any("nothing has come" in text for text in chosen.observed.troubles)
        failure = f"nobody says that the server is away: {verdict.failure}" if silent else None
        return replace(verdict, failure=failure)
    return verdict


def _simulate(chosen: DPFrankWolfeScenario, bus: str) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="streamfl-simulation-") as folder:
        chosen = replace(chosen, folder=Path(folder))
        made_up_files(chosen)

        def check(faulty: FaultyBus) -> None:
            if chosen.absent is None:
                with chosen.observed.not_noted():
                    check_outcome(faulty, chosen)
            check_budget(chosen)
            check_rolled_back(faulty, chosen)
            check_said(faulty, chosen)

        with without_power_cuts(), recorded(chosen.observed, chosen.fragment_bytes):
            return run(chosen, check, bus)


def _with_a_fault_that_stays(seed: int) -> DPFrankWolfeScenario:
    draws = rng_for(seed, "simulation", "a DP Frank-Wolfe fault that stays")
    chosen = scenario(seed)
    workers = {name: max(2, count) for name, count in chosen.workers.items()}
    at = float(draws.uniform(0.0, chosen.faulty_seconds))
    kind = ("process", "partition", "member")[int(draws.integers(3))]
    if kind == "member":
        window = {**chosen.sections["window"], "patience_seconds": PATIENCE}
        chosen = replace(
            chosen, workers=workers, patient=False, sections={**chosen.sections, "window": window}
        )
        absent = [*chosen.parties, S][int(draws.integers(len(chosen.parties) + 1))]
        if [absent] == list(chosen.parties):
            # If no party is left, the server asks for ever.
            absent = S
        permanent_fault = of_a_member(absent, workers, at)
        return replace(chosen, permanent_fault=permanent_fault, absent=absent)
    chosen = replace(chosen, workers=workers)
    if kind == "process":
        return replace(chosen, permanent_fault=of_a_process(draws, at, list(workers)))
    topics = [*(samples_topic(party) for party in chosen.parties), LABELS]
    topic = topics[int(draws.integers(len(topics)))]
    permanent_fault = of_a_partition(topic, 0, at)
    return replace(chosen, permanent_fault=permanent_fault)


FAULTS = FaultSimulation(simulate, simulate_liveness)
