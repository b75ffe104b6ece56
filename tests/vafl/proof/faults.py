"""Simulates a VAFL federation under faults, by seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vafl.proof.checks import check_alike, check_outcome
from vafl.proof.scenario import FOR_EVER, VaflScenario, scenario

from streamfl.contract.seeding import rng_for
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.federation import Federation, Verdict, run
from streamfl.testing.faults.history import History
from streamfl.testing.faults.permanent_faults import of_a_member, of_a_partition, of_a_process
from streamfl.testing.faults.systems import FaultSimulation
from streamfl.vafl.config import VaflSettings

__all__ = ["FAULTS", "simulate", "simulate_liveness"]


def simulate(seed: int, bus: str = "memory") -> Verdict:
    """Run the vertical scenario of this seed on a bus, memory or sqlite, and check its outcome."""
    chosen = scenario(seed)

    def check(faulty: FaultyBus) -> None:
        check_outcome(faulty, chosen)
        if chosen.synchronous:
            calm = Federation(chosen.calm, History())
            calm.run()
            check_alike(faulty, calm.bus, chosen)

    return run(chosen, check, bus)


def simulate_liveness(seed: int, bus: str = "memory") -> Verdict:
    """The same with a permanent fault: everything that does not depend on the lost process or partition
    completes."""
    chosen = _with_a_fault_that_stays(seed)
    return run(chosen, lambda faulty: check_outcome(faulty, chosen), bus)


def _with_a_fault_that_stays(seed: int) -> VaflScenario:
    draws = rng_for(seed, "simulation", "what stays, vertically")
    chosen = scenario(seed)
    parties = chosen.settings.federation.parties
    workers = {name: max(2, count) for name, count in chosen.workers.items()}
    at = float(draws.uniform(0.0, chosen.faulty_seconds))
    patience = {"expiry_seconds": FOR_EVER, "reply_seconds": 2.0}
    kind = "process" if chosen.synchronous else ("process", "party", "partition")[int(draws.integers(3))]
    if kind == "process":
        settings = _changed(chosen.settings, patience)
        permanent_fault = of_a_process(draws, at, list(workers))
        return replace(chosen, settings=settings, workers=workers, permanent_fault=permanent_fault)
    absent = parties[int(draws.integers(len(parties)))]
    most = len(parties) - 1
    # With one party absent, nothing may wait for all parties.
    learning = chosen.settings.learning
    settings = _changed(
        chosen.settings,
        {**patience, "quorum": min(most, chosen.settings.alignment.quorum)},
        # The coordinator asks parties for newer embeddings, and one of them will not answer.
        {
            "wait_for": min(most, learning.wait_for),
            "max_staleness": learning.max_staleness or 0,
            "batch_size": 1,
        },
    )
    if kind == "party":
        permanent_fault = of_a_member(absent, workers, at)
    else:
        place = f"samples-{absent}", int(draws.integers(chosen.partitions))
        permanent_fault = of_a_partition(*place, at)
    return replace(chosen, settings=settings, workers=workers, permanent_fault=permanent_fault, absent=absent)


def _changed(
    settings: VaflSettings, alignment: dict[str, Any], learning: dict[str, Any] | None = None
) -> VaflSettings:
    return settings.model_copy(
        update={
            "alignment": settings.alignment.model_copy(update=alignment),
            "learning": settings.learning.model_copy(update=learning or {}),
        }
    )


FAULTS = FaultSimulation(simulate, simulate_liveness)
