"""What a worker does for a sample: bytecodes and calls, against the figures in benchmarks/counts.csv."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.counts import COUNTED, VERSION, Meter, compared, keep, kept

ROOT = Path(__file__).parents[2]
PLACE = (VERSION, "system", "role")


@pytest.mark.long
def test_a_sample_takes_no_more_than_it_did() -> None:
    """Protects users' throughput: a change that makes a step's code longer by more than 5% is found on the
    busiest machine.

    In a process of its own, because pytest adds to what is logged and collected.
    """
    command = [sys.executable, "-m", "benchmarks.counts"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("before", "now", "failed"),
    [
        ({PLACE: 100.0}, {PLACE: 104.9}, False),
        ({PLACE: 100.0}, {PLACE: 105.1}, True),
        ({PLACE: 100.0}, {PLACE: 50.0}, False),
        ({}, {PLACE: 100.0}, True),
        ({PLACE: 100.0}, {}, True),
    ],
)
def test_more_than_five_percent_above_the_file_fails(
    before: dict[tuple[str, str, str], float], now: dict[tuple[str, str, str], float], failed: bool
) -> None:
    """Protects the guard itself: it lets rounding through, but neither growth nor a role that the file lacks
    or has in vain."""
    figures = (
        {place: dict.fromkeys(COUNTED, value) for place, value in one.items()} for one in (before, now)
    )
    assert [one.failed for one in compared(*figures)] == [failed] * len(COUNTED)


def test_what_was_not_counted_stays_in_the_file(tmp_path: Path) -> None:
    """Protects the figures of other versions of Python: a file is written as it was read."""
    file = tmp_path / "counts.csv"
    keep(kept(), file)
    assert kept(file) == kept()
    assert kept()


def test_only_the_steps_of_watched_workers_count() -> None:
    """Protects the meaning of a figure: what a federation does around a role's steps is not the role's."""

    class Worker:
        def step(self, timeout: float) -> bool:
            return [abs(number) for number in range(int(timeout))] != []

    def figures(steps: int) -> dict[str, float]:
        meter, worker, other = Meter(), Worker(), Worker()
        meter.watch("role", worker, samples=1)
        worker.step(100.0)
        meter.begin()
        for _ in range(steps):
            worker.step(100.0)
            other.step(100.0)
        return meter.figures()["role"]

    once = figures(1)
    assert once["bytecodes"] > 100
    assert 100 <= once["C calls"] < 110
    assert {what: count / 3 for what, count in figures(3).items()} == once
