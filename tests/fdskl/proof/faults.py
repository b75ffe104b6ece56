"""A federation of masked sums under faults, by seed."""

from __future__ import annotations

from dataclasses import replace

from fdskl.proof.checks import check_outcome
from fdskl.proof.observed_messages import recorded
from fdskl.proof.scenario import LABELS, FdsklScenario, scenario, scenario_of_several

from streamfl.contract.seeding import rng_for
from streamfl.testing.faults.federation import Verdict, run
from streamfl.testing.faults.permanent_faults import of_a_member, of_a_partition, of_a_process
from streamfl.testing.faults.systems import FaultSimulation

__all__ = ["FAULTS", "simulate", "simulate_liveness", "simulate_several"]


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Run the scenario of this seed on a bus, memory or sqlite, and check everything that must hold."""
    return _simulate(scenario(seed), bus)


def simulate_several(seed: int, bus: str = "memory") -> Verdict:
    """The same with several active parties."""
    return _simulate(scenario_of_several(seed), bus)


def simulate_liveness(seed: int, bus: str = "memory") -> Verdict:
    """The same with a permanent fault: everything that does not depend on the lost part has to finish.

    Without a party no sum is complete. Then the active party goes on asking, gives up unanswered rounds, and
    reports it."""
    chosen = _with_a_fault_that_stays(seed)
    if chosen.absent is None:
        return _simulate(chosen, bus)
    verdict = _simulate(chosen, bus)
    if verdict.failure is None or not verdict.failure.startswith("not done"):
        return verdict
    failure = None
    others = [f"{name}-" for name in chosen.parties if name != chosen.active]
    waiting = verdict.failure.partition("waiting:")[2].partition("; ticks")[0]
    if any(name in waiting for name in others):
        failure = f"others than the active party wait: {waiting}"
    elif chosen.observed.reused:
        failure = chosen.observed.reused[0]
    elif not chosen.observed.trouble or (chosen.observed.announced and not chosen.observed.abandoned):
        failure = (
            f"given up: {chosen.observed.abandoned}, trouble was said: {chosen.observed.trouble}, but "
            f"waiting: {waiting}"
        )
    return replace(verdict, failure=failure)


def _simulate(chosen: FdsklScenario, bus: str) -> Verdict:
    with recorded(chosen.observed):
        return run(chosen, lambda faulty: check_outcome(faulty, chosen), bus)


def _with_a_fault_that_stays(seed: int) -> FdsklScenario:
    draws = rng_for(seed, "simulation", "what stays, of masked sums")
    chosen = scenario(seed)
    workers = {name: max(2, count) for name, count in chosen.workers.items()}
    # So that no party waits for ever for columns that never come.
    alignment = chosen.settings.alignment.model_copy(
        update={"reply_seconds": min(0.5, chosen.settings.alignment.reply_seconds), "patience_seconds": 15.0}
    )
    settings = chosen.settings.model_copy(update={"alignment": alignment})
    chosen = replace(chosen, settings=settings, workers=workers, synchronous=False)
    at = float(draws.uniform(0.0, chosen.faulty_seconds))
    kind = ("process", "partition", "party")[int(draws.integers(3))]
    if kind == "process":
        return replace(chosen, permanent_fault=of_a_process(draws, at, list(workers)))
    if kind == "party":
        others = [name for name in chosen.parties if name != chosen.active]
        absent = others[int(draws.integers(len(others)))]
        permanent_fault = of_a_member(absent, workers, at)
        return replace(chosen, permanent_fault=permanent_fault, absent=absent)
    topics = [*(f"samples-{name}" for name in chosen.parties), LABELS]
    place = topics[int(draws.integers(len(topics)))], int(draws.integers(chosen.partitions))
    permanent_fault = of_a_partition(*place, at)
    return replace(chosen, permanent_fault=permanent_fault)


FAULTS = FaultSimulation(simulate, simulate_liveness)
