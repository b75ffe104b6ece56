"""Which faults exist, how likely each is, and whether it happens now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from streamfl.contract.seeding import rng_for

__all__ = ["DURING_WORK", "FAULTS", "FaultDraws", "Rates", "drawn_by", "drawn_rates"]

FAULTS = (
    "crash before poll",
    "crash after poll",
    "crash before commit",
    "crash after commit",
    "crash while restoring",
    "crash inside a transaction",
    "record damaged",
    "slow",
    "stopped",
    "leaves",
    "call failed",
    "commit refused",
    "commit failed",
    "answer lost",
    "broker pause",
    "updates repeated",
    "offsets forgotten",
    "half a commit",
    "changelog late",
    "late EndTxn",
)
# Only systems with long work have this fault.
DURING_WORK = "crash during work"


@dataclass(frozen=True)
class Rates:
    """Probability of each fault at each point where it can happen; 0: never.

    session_timeout: seconds of silence after which the cluster gives a member's partitions to others.
    """

    crash: float = 0.0
    slow: float = 0.0
    stop: float = 0.0
    leave: float = 0.0
    fail: float = 0.0
    refuse: float = 0.0
    lose_answer: float = 0.0
    pause: float = 0.0
    repeat: float = 0.0
    forget_offsets: float = 0.0
    half: float = 0.0
    late: float = 0.0
    withhold: float = 0.0
    late_end: float = 0.0
    damage: float = 0.0
    session_timeout: float = 6.0

    @property
    def in_a_file(self) -> Rates:
        """The rates for a bus in one file. Each of its commits is one transaction, so some faults cannot
        happen."""
        return replace(self, half=0.0, late=0.0, forget_offsets=0.0, withhold=0.0, late_end=0.0)


class FaultDraws:
    """Draws whether a fault happens. While ``faulty`` is False none does."""

    def __init__(self, rates: Rates, seed: int) -> None:
        self.rates = rates
        self.faulty = False
        self.draws = rng_for(seed, "simulation", "faults")
        # Each of these faults has its own generator, so that scenarios without it are the same as before it
        # was added.
        self.late_draws = rng_for(seed, "simulation", "late EndTxn")
        self.damage_draws = rng_for(seed, "simulation", "damage")

    def happens(self, probability: float) -> bool:
        return self.faulty and probability > 0 and bool(self.draws.random() < probability)

    def holds_back(self) -> bool:
        """Whether a request to end a transaction is delayed, so that the client gets no answer."""
        return (
            self.faulty and self.rates.late_end > 0 and bool(self.late_draws.random() < self.rates.late_end)
        )

    def is_killed_inside(self) -> bool:
        """Whether the process is killed when such a delayed request arrives in the middle of its next
        transaction."""
        return self.faulty and bool(self.late_draws.random() < 0.3)

    def damages(self) -> bool:
        """Whether a record of a changelog is damaged when it is read."""
        return self.faulty and self.rates.damage > 0 and bool(self.damage_draws.random() < self.rates.damage)


def drawn_by(draws: np.random.Generator) -> tuple[Callable[[float], bool], Callable[[int, int], int]]:
    """Two functions that draw a scenario's choices: True with a probability, and a whole number between two
    bounds, both included."""

    def chance(probability: float) -> bool:
        return bool(draws.random() < probability)

    def between(low: int, high: int) -> int:
        return int(draws.integers(low, high + 1))

    return chance, between


def drawn_rates(draws: np.random.Generator, seed: int, exactly_once: bool) -> Rates:
    """Draws the rates. Each fault is left out of half of the scenarios, so that one fault cannot hide the
    effect of another."""

    def rate(most: float, draws: np.random.Generator = draws) -> float:
        chosen, size = draws.random(2)
        return most * float(size) if chosen < 0.5 else 0.0

    return Rates(
        crash=rate(0.03),
        slow=rate(0.03),
        stop=rate(0.02),
        leave=rate(0.03),
        fail=rate(0.03),
        refuse=rate(0.1),
        lose_answer=rate(0.1),
        pause=rate(0.005),
        repeat=rate(0.3),
        forget_offsets=rate(0.1) if exactly_once else 0.0,
        half=rate(0.4),
        late=rate(0.3),
        withhold=rate(1.0),
        late_end=rate(0.5, rng_for(seed, "simulation", "rate of late ends")) if exactly_once else 0.0,
        damage=rate(0.1, rng_for(seed, "simulation", "rate of damage")),
        session_timeout=float(draws.choice([1.0, 3.0, 6.0])),
    )
