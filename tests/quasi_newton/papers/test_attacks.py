"""What parties find out over many iterations: as much as after one pass over frozen batches, and everything otherwise."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.quasi_newton.gradient_attacks import (
    HOST,
    Equations,
    Federation,
    fixed,
    heard,
    label_auc,
    make,
    numbers_of,
    own_model,
    reshuffled,
    single_member,
    solve,
    tiny_batches,
)
from streamfl.quasi_newton.descent import Learning
from streamfl.quasi_newton.lab.direct import Trace

LEARNING = Learning(batch=100, memory=24)


@cache
def federation() -> Federation:
    """1,005 rows at first, so that 5 fill no batch of 100, and 1,300 at the end."""
    return make()


def attacked(traces: list[Trace]) -> float:
    equations = sum((heard(trace, federation().host, HOST, numbers_of(LEARNING)) for trace in traces), Equations([], []))
    return label_auc(equations, federation().host, federation().labels)


def test_three_retrainings_tell_a_host_no_more_of_labels_than_one_epoch() -> None:
    """Protects labels: least squares over every gradient the host received, with records that come and batches that go."""
    once = Learning(batch=100, memory=24, epochs=1)
    one_epoch = attacked(fixed(federation(), once, retrainings=0))
    traces = fixed(federation(), LEARNING, retrainings=3)
    assert [len(trace.batches) for trace in traces] == [10, 10, 10, 10]
    assert sum(trace.epochs for trace in traces) > 10
    assert attacked(traces) <= one_epoch + 0.02
    assert own_model(federation()) < one_epoch < 0.82


def test_reshuffled_batches_tell_a_host_nearly_every_label() -> None:
    """Protects the test above: the same attack finds the labels of the mutant that draws batches anew."""
    assert attacked(reshuffled(federation(), LEARNING, epochs=13)) >= 0.95


def test_a_retraining_with_new_batches_tells_a_host_more() -> None:
    """Protects the partition's life: frozen within a training is not enough."""
    once = Learning(batch=100, memory=24, epochs=1)
    anew = fixed(federation(), LEARNING, retrainings=3, repartition=True)
    assert attacked(anew) > attacked(fixed(federation(), once, retrainings=0)) + 0.05


def test_batches_that_are_refused_would_tell_every_label() -> None:
    """Protects the least batch and the least support: without them one visit is enough."""
    assert tiny_batches(federation()) == 1.0
    assert single_member(federation())


def test_the_attack_solves_what_can_be_solved() -> None:
    """Protects the attacks' figures: with as many equations as rows the remainder is found exactly."""
    random = np.random.default_rng(0)
    inputs, hidden = random.normal(size=(40, 5)), random.normal(size=40)
    rows = [random.choice(40, 20, replace=False) for _ in range(30)]
    found = solve(Equations(rows, [inputs[batch].T @ hidden[batch] for batch in rows]), inputs, 1e-9)
    np.testing.assert_allclose(found, hidden, atol=1e-5)
