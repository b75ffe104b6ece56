"""What is measured of a federation's work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from streamfl.contract.role import Work
from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.encryption.randomness import RandomnessContext
from streamfl.quasi_newton.encryption.scheme import numbers_to_bytes
from streamfl.quasi_newton.tools import steps
from streamfl.quasi_newton.training import background_tasks

OWN, PLACE = background_tasks.Own(b"", b""), RandomnessContext("f", "1", "g", 0, "outputs")
KIND = background_tasks.Kind.of(kinds(2, 100, 100).gradients)
THREE = numbers_to_bytes([1, 2, 3])
MATRIX = np.ones((3, 2), "<i8").tobytes()


@pytest.mark.parametrize(
    ("function", "content", "expected"),
    [
        (background_tasks.encrypted, background_tasks.Encrypting(OWN, PLACE, THREE, KIND), {"encrypt": 1}),
        # Blinded for the peers, masked and blinded for the coordinator.
        (
            background_tasks.multiplied,
            background_tasks.Multiplying(OWN, [THREE], THREE, MATRIX, 2, KIND, PLACE, PLACE, True),
            {"add": 1, "multiply": 1, "encrypt": 3},
        ),
        (
            background_tasks.multiplied,
            background_tasks.Multiplying(OWN, [THREE], b"", MATRIX, 2, KIND, PLACE, PLACE, False),
            {"multiply": 1, "encrypt": 1},
        ),
        (
            background_tasks.added,
            background_tasks.Adding(OWN, [THREE], THREE, KIND, PLACE),
            {"add": 1, "encrypt": 1},
        ),
        (background_tasks.opened, background_tasks.Opening(b"", b"", THREE), {"decrypt": 1}),
        (background_tasks.blinded, background_tasks.Aligning(bytes(32), b"s", ["a", "b"], 9), {"align": 1}),
    ],
)
def test_each_step_is_measured_once(
    monkeypatch: pytest.MonkeyPatch, function: object, content: object, expected: dict[str, int]
) -> None:
    """Protects whoever asks where the time goes: each part of each kind of work is counted as what it is, and
    the result is the same as without a clock.
    """
    ticks = itertools.count()
    monkeypatch.setattr(steps.time, "process_time", lambda: float(next(ticks)))
    seconds = steps.Seconds()
    pool = steps.MeasuredWork(seconds)
    assert callable(function)
    work = Work("work", 0, b"0", function, background_tasks.request(content))
    pool.start([work])
    assert pool.wait(0.0)
    assert list(pool.results()) == [function(work.content)]
    found = seconds.by_step()
    assert {name: spent for name, spent in found.items() if spent and name != "rest"} == expected
