"""One cell of Table 1 on the paper's data: what the benchmark's document claims has to be true of the code as
it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.quasi_newton.table1 import Problem, Run, read
from streamfl.quasi_newton.learning.descent import DescentSettings


@pytest.fixture(name="problem", scope="module")
def _problem(data: Path) -> Problem:
    return Problem(read(data, "credit_default", 0))


def run(problem: Problem, **changed: float) -> Run:
    return problem.run(DescentSettings(batch=1000, epochs=14, **changed), 0)  # type: ignore[arg-type]


def test_credit_default_in_few_epochs_and_as_well_as_the_optimum(problem: Problem) -> None:
    """Protects the claim of few and cheap rounds: at most 8 epochs, 2 of them to within 3e-4, with the
    defaults."""
    found = run(problem)
    assert found.stopped is not None
    assert found.stopped <= 8
    assert found.to_gap <= 2.5
    assert found.loss <= 0.4957
    assert found.auc == pytest.approx(0.7195, abs=3e-3)


def test_a_step_without_a_bound_at_a_high_rate_ends_nowhere(problem: Problem) -> None:
    """Protects the rule's reason: the same run with the paper's freedom is thrown away by its own batches."""
    found = run(problem, learning_rate=1.0, largest_step=1e9)
    assert found.stopped is None
