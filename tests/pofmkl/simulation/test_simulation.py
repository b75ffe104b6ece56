"""Federations of POF-MKL under faults: seeds hold, meet every fault, and are the same run whenever and
wherever they are run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fault_runs import check_seeds_hold, run_once
from pofmkl.proof.faults import simulate
from pofmkl.proof.scenario import scenario

from streamfl.testing.faults.__main__ import main
from streamfl.testing.faults.fault_rates import FAULTS

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_starts")]

SEEDS = range(20)


def test_every_check_holds_and_every_fault_is_met() -> None:
    """Protects exactly-once, the lockstep theorem, byte budgets, bounds and progress under faults at every
    call of the loop.

    A kind of fault that no longer came would protect nothing any more.
    """
    met = check_seeds_hold(simulate, SEEDS)
    assert set(met) == set(FAULTS)
    assert [kind for kind in FAULTS if met[kind] < 3] == []


def test_scenarios_are_of_every_kind() -> None:
    """Protects the breadth of the seeds: every mode with every preset, with and without a budget, alone and
    scaled out."""
    chosen = [scenario(seed) for seed in SEEDS]
    modes = {(one.settings.learning.preset, one.settings.learning.staleness) for one in chosen}
    assert modes == {
        (preset, mode) for preset in ("paper", "default") for mode in ("lockstep", "bounded", "async")
    }
    assert {one.settings.learning.preset for one in chosen if one.exact} == {"paper", "default"}
    assert {one.settings.bus.processing_guarantee for one in chosen} == {"exactly_once", "at_least_once"}
    assert {one.settings.uplink.budget_bytes_per_second is None for one in chosen} == {True, False}
    assert {one.settings.federation.shards for one in chosen} == {1, 2, 3}
    assert {(one.workers["client"], one.workers["server"]) for one in chosen} == {
        (c, s) for c in (1, 2, 3) for s in (1, 2)
    }
    assert {one.partitions for one in chosen} == {1, 2, 3, 4}
    assert {(one.settings.learning.staleness, one.late_labels) for one in chosen} == {
        (mode, late) for mode in ("lockstep", "bounded", "async") for late in (True, False)
    }


def test_a_seed_is_one_history() -> None:
    """Protects whoever reproduces a failure: a run again, in another process with other hashes of text, is
    the same to the byte."""
    seeds = range(1, 3)
    here = [run_once(simulate, seed) for seed in seeds]
    assert {one.description.split(",")[0] for one in here} == {"preset paper", "preset default"}
    assert [one.lines for one in here] == [simulate(seed).lines for seed in seeds]
    program = f"from pofmkl.proof.faults import simulate; print(*(simulate(seed).hash for seed in {seeds}))"
    environment = os.environ | {"PYTHONHASHSEED": "1", "OPENBLAS_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [one.hash for one in here]


def test_a_seed_can_be_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Protects the transcript: what each process did and met, in order of time, and the verdict at the
    end."""
    monkeypatch.setattr(sys, "argv", ["simulate", "--seed", "3", "--system", "pofmkl", "--transcript"])
    assert main() == 0
    out = capsys.readouterr().out
    verdict = run_once(simulate, 3)
    assert out.startswith("\n".join(verdict.lines))
    times = [float(line.split()[0]) for line in verdict.lines]
    assert times == sorted(times)
    for text in (
        "client-0    joins",
        "commits samples[",
        "FAULT ",
        "nothing fails any more",
        "killed and started again",
    ):
        assert text in out
    assert f"hash {verdict.hash}" in out
    assert "all checks hold" in out
