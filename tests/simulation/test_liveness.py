"""Faults that stay, and a core that has to go on: everything that does not depend on what is gone comes to its end."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from simulation.test_mutations import Mutation, check_caught, instead

from streamfl.pofmkl.server import PofmklServer
from streamfl.runtime.worker import Worker
from streamfl.simulation.faults import Verdict, simulate
from streamfl.simulation.faults.__main__ import main
from streamfl.simulation.faults.pofmkl import simulate_liveness
from streamfl.simulation.faults.scenario import FOR_EVER
from streamfl.simulation.faults.vafl import simulate as simulate_vafl
from streamfl.simulation.faults.vafl import simulate_liveness as simulate_vafl_liveness
from streamfl.vafl.coordinator import VaflCoordinator

SEEDS = range(20)
KINDS = ("hears nothing", "is not heard", "-0 never comes back", "cannot be read")


@pytest.mark.parametrize(
    ("simulate_system", "alone"),
    [(simulate_liveness, "all servers never come back"), (simulate_vafl_liveness, "p0 never comes back")],
)
def test_what_can_go_on_does(simulate_system: Callable[[int], Verdict], alone: str) -> None:
    """Protects everybody from one who is gone for good: a process that is cut off in one direction or dead, a whole member, a
    partition that cannot be read. All others' samples are predicted and learnt in bounded time, and whatever must hold does.
    """
    verdicts = [simulate_system(seed) for seed in SEEDS]
    assert [f"LIVENESS=1 SEED={verdict.seed}  # {verdict.failure}" for verdict in verdicts if verdict.failure] == []
    stayed = Counter(kind for verdict in verdicts for kind in (*KINDS, alone) if kind in verdict.description)
    assert set(stayed) == {*KINDS, alone}


def test_a_seed_is_one_history() -> None:
    """Protects whoever reproduces a failure."""
    for simulate_system in (simulate_liveness, simulate_vafl_liveness):
        assert simulate_system(2).hash == simulate_system(2).hash


def test_a_failing_seed_says_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Protects the way back from a failure: the command of a liveness run is another one."""
    withholds_ticks_for_ever(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["simulate", "--liveness", "--seed", "6", "--system", "pofmkl"])
    assert main() != 0
    assert "FAILED  make simulate SYSTEM=pofmkl SEED=6 LIVENESS=1" in capsys.readouterr().out


def withholds_ticks_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "_wait_no_longer", lambda self: None)


def waits_for_who_never_answers(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: VaflCoordinator, partition: int) -> None:
        self.alignment = dataclasses.replace(self.alignment, reply_seconds=FOR_EVER)
        real(self, partition)

    instead(patch, VaflCoordinator, "open", change)


def rounds_wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: PofmklServer, partition: int) -> None:
        self.round_timeout = FOR_EVER
        real(self, partition)

    instead(patch, PofmklServer, "open", change)


# What is put into the code, the seed that is tried first, and how seeds without a fault that stays judge it.
MUTATIONS: dict[str, tuple[Mutation, Callable[[int], Verdict], int, Callable[[int], Verdict] | None]] = {
    "worker: a tick is withheld for ever": (withholds_ticks_for_ever, simulate_liveness, 34, simulate),
    "coordinator: waits for a party that never answers": (waits_for_who_never_answers, simulate_vafl_liveness, 19, simulate_vafl),
    "server: a round waits for ever": (rounds_wait_for_ever, simulate_liveness, 6, None),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the worth of faults that stay: what waits for ever for what never comes fails within 200 seeds."""
    mutation, simulate_system, first, without = MUTATIONS[name]
    mutation(monkeypatch)
    check_caught(name, simulate_system, first)
    if without is not None:
        # Where everybody comes back in the end it does no harm that shows.
        assert [seed for seed in range(5) if without(seed).failure] == []
