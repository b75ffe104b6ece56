"""Permanent faults: all work that does not depend on the lost parts has to be finished."""

from __future__ import annotations

import re
import sys

import pytest
from fault_runs import check_seeds_repeat, run_once
from pofmkl.proof.faults import simulate_liveness

from streamfl.configuration.settings import BusSection
from streamfl.runtime.ticks import Ticks
from streamfl.testing.faults import fault_simulations
from streamfl.testing.faults.__main__ import main

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_starts")]

# Short runs that bring every kind. If a change of the scenarios takes one away, the others follow.
FIRST = {
    "pofmkl": (2, 9, 11, 16, 18),
    "vafl": (4, 5, 12, 17, 19),
    "fdskl": (8, 17, 19, 20, 129),
    "quasi-newton": (2, 3, 8, 15, 16),
    "dp-frank-wolfe": (2, 3, 9, 13, 14),
}
SEEDS = range(20)
# One process of a member, and a whole member.
KINDS = {
    "hears nothing",
    "is not heard",
    r"-\d never comes back",
    r"(?<!-\d) never comes? back",
    "cannot be read",
}
SYSTEMS = {
    name: found.simulate_liveness
    for name, found in fault_simulations().items()
    if found.simulate_liveness is not None
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_can_go_on_does(system: str) -> None:
    """Protects all members from one that is permanently gone: a process cut off in one direction or dead, a
    whole member, or an unreadable partition. All others' samples are predicted and learnt in bounded time,
    and all checks hold. Runs go on until every kind of fault has come.
    """
    left = set(KINDS)
    for seed in (*FIRST.get(system, ()), *SEEDS):
        verdict = run_once(SYSTEMS[system], seed)
        assert verdict.failure is None, f"SEED={seed} LIVENESS=1"
        left -= {kind for kind in left if re.search(kind, verdict.description)}
        if not left:
            return
    assert left == set()


def test_a_run_goes_on_while_a_tick_is_due_at_once() -> None:
    """Protects parts of predictions that are charged and not yet sent. After the restart nobody can read the
    labels, so the worker withholds the tick that sends the parts until it gives the labels up. Meanwhile
    nothing moves, and the role asks for the tick with a ``wake_at`` of 0."""
    verdict = run_once(SYSTEMS["dp-frank-wolfe"], 9004)
    assert verdict.failure is None
    restarted = next(line for line in verdict.lines if line.endswith("killed and started again"))
    assert (
        float(verdict.lines[-1].split()[0]) - float(restarted.split()[0])
        > BusSection().connect_timeout_seconds
    )


def test_a_seed_is_one_history() -> None:
    """Protects the reproduction of a failure. The systems' own tests repeat a run of each."""
    check_seeds_repeat(simulate_liveness, 2)


def test_a_tick_that_is_withheld_for_ever_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the value of permanent faults: waiting for ever for something that never comes fails. It also
    protects the reproduction of a failure: a liveness run has another command."""
    monkeypatch.setattr(Ticks, "_wait_no_longer", lambda self: None)
    monkeypatch.setattr(sys, "argv", ["simulate", "--liveness", "--seed", "21", "--system", "pofmkl"])
    assert main() != 0
    out = capsys.readouterr().out
    assert "FAILED  make simulate SYSTEM=pofmkl SEED=21 LIVENESS=1" in out
    assert "Error" not in out
