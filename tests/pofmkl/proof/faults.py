"""A POF-MKL federation under faults, by seed."""

from __future__ import annotations

from dataclasses import replace

from pofmkl.proof.checks import check_alike, check_outcome, check_said
from pofmkl.proof.scenario import Scenario, scenario

from streamfl.contract.seeding import rng_for
from streamfl.simulation.clients import SAMPLES
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.federation import Federation, Reading, Verdict, run
from streamfl.testing.faults.history import History
from streamfl.testing.faults.permanent_faults import GONE, PermanentFault, of_a_process
from streamfl.testing.faults.systems import FaultSimulation

__all__ = ["FAULTS", "simulate", "simulate_liveness"]


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Run the POF-MKL scenario of this seed on a bus, memory or sqlite, and check everything that must
    hold."""
    chosen = scenario(seed)

    def check(faulty: FaultyBus) -> None:
        check_outcome(faulty, chosen)
        if chosen.exact:
            calm = Federation(chosen.calm, History())
            calm.run()
            check_alike(faulty, calm.bus, chosen)

    return run(chosen, check, bus)


def simulate_liveness(seed: int, bus: str = "memory") -> Verdict:
    """As :func:`simulate`, with a permanent fault: everything that does not depend on the lost parts must
    complete."""
    chosen = _with_a_fault_that_stays(seed)

    def check(faulty: FaultyBus) -> None:
        if chosen.servers_are_gone:
            check_said(faulty, chosen)
        else:
            check_outcome(faulty, chosen.within_reach(faulty))

    return run(chosen, check, bus)


def _with_a_fault_that_stays(seed: int) -> Scenario:
    """The scenario of this seed with a permanent fault, or with a client that falls silent and so has fewer
    samples."""
    draws = rng_for(seed, "simulation", "what stays")
    chosen = scenario(seed)
    learning = chosen.settings.learning.model_copy(
        update={"round_timeout_seconds": 5.0, "catch_up_patience_seconds": 2.0}
    )
    settings = chosen.settings.model_copy(update={"learning": learning})
    chosen = replace(
        chosen,
        settings=settings,
        exact=False,
        workers={name: max(2, count) for name, count in chosen.workers.items()},
    )
    at = float(draws.uniform(0.0, chosen.faulty_seconds))
    kinds = ["process", "process", "client"]
    if learning.staleness == "async":
        kinds.append("servers")
    if not chosen.late_labels and chosen.partitions > 1:
        kinds += ["partition"] * 2
    kind = kinds[int(draws.integers(len(kinds)))]
    if kind == "process":
        return replace(chosen, permanent_fault=of_a_process(draws, at, ["client", "server"]))
    if kind == "servers":
        gone = {f"server-{n}": GONE for n in range(chosen.workers["server"])}
        return replace(chosen, permanent_fault=PermanentFault("all servers never come back", at, gone))
    if kind == "partition":
        place = SAMPLES, int(draws.integers(chosen.partitions))
        permanent_fault = PermanentFault(
            f"partition {place[1]} of the samples cannot be read", at, {}, frozenset([place])
        )
        return replace(chosen, permanent_fault=permanent_fault)
    silent = f"client-{int(draws.integers(chosen.clients))}"

    def until(readings: tuple[Reading, ...], end: float) -> tuple[Reading, ...]:
        # Its labels are still written.
        return tuple(one for one in readings if one.client != silent or one.at < end)

    if chosen.late_labels:
        return replace(chosen, permanent_fault=of_a_process(draws, at, ["client", "server"]))
    return replace(
        chosen, readings=tuple(until(own, at) for own in chosen.readings), last=until(chosen.last, 0.0)
    )


FAULTS = FaultSimulation(simulate, simulate_liveness)
