"""Runs of federations under faults, for tests of code that no mutation changes: a process makes each run
once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cache

from streamfl.testing.faults import Verdict

__all__ = ["Simulate", "check_every_fault_is_met", "check_seeds_hold", "check_seeds_repeat", "run_once"]

# With as many seeds every fault comes in each system.
ENOUGH = 60

# A system's run of a seed on a bus, "memory" or "sqlite".
Simulate = Callable[[int, str], Verdict]


@cache
def run_once(simulate: Simulate, seed: int, bus: str = "memory") -> Verdict:
    """The run of a seed, from an earlier test if one has made it."""
    return simulate(seed, bus)


def check_seeds_hold(simulate: Simulate, seeds: Iterable[int], bus: str = "memory") -> Counter[str]:
    """Every check of every seed holds. Returns how often each kind of fault was met."""
    verdicts = [run_once(simulate, seed, bus) for seed in seeds]
    assert [
        f"SEED={verdict.seed} BUS={bus}  # {verdict.failure}" for verdict in verdicts if verdict.failure
    ] == []
    return sum((verdict.faults for verdict in verdicts), Counter[str]())


def check_every_fault_is_met(
    simulate: Simulate, seeds: Iterable[int], faults: Collection[str], bus: str = "memory"
) -> None:
    """Every check of every seed holds, and these faults are all that are met.

    A change of the code changes what is met. If a fault comes in none of the seeds any more, further ones are
    run until it does.
    """
    met = check_seeds_hold(simulate, seeds, bus)
    for seed in range(ENOUGH):
        if set(met) >= set(faults):
            break
        met += check_seeds_hold(simulate, [seed], bus)
    assert set(met) == set(faults)


def check_seeds_repeat(simulate: Simulate, *seeds: int, bus: str = "memory") -> None:
    """A second run of a seed is the first, to the byte."""
    assert [simulate(seed, bus).hash for seed in seeds] == [
        run_once(simulate, seed, bus).hash for seed in seeds
    ]
