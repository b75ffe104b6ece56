"""What the coordinator decides with one batch: how long a step may be, and when it is over."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from streamfl.quasi_newton.learning.descent import FARTHEST, Descent, DescentSettings, DescentState

BOUND = 0.1


def length(descent: Descent, square: float) -> float:
    """Of a step along a gradient of this square."""
    return float(descent.step(np.array([square]))[0]) * np.sqrt(square)


def test_the_bound_grows_while_it_shortens_each_step_and_losses_fall() -> None:
    """Protects tables whose optimum is far away, and all others from steps that were longer for one
    moment."""
    descent = Descent(DescentSettings(batch=10, largest_step=BOUND))
    for number, loss in enumerate((8.0, 7.0, 6.0, 5.0, 4.0, 3.0)):
        assert length(descent, 1e6) == pytest.approx(BOUND * min(2.0**number, FARTHEST))
        descent.end_epoch(loss, 1)
    descent.end_epoch(3.5, 1)
    assert length(descent, 1e6) == pytest.approx(BOUND * FARTHEST / 2)
    # Of two steps, one is short enough by itself.
    assert length(descent, 1e-6) < BOUND
    descent.end_epoch(2.0, 2)
    assert length(descent, 1e6) == pytest.approx(BOUND * FARTHEST / 2)


def test_many_batches_keep_their_bound() -> None:
    """Protects large tables: a batch with outliers never throws the weights far."""
    descent = Descent(DescentSettings(batch=10, largest_step=BOUND))
    for loss in (8.0, 7.0, 6.0):
        assert length(descent, 1e6) == pytest.approx(BOUND)
        descent.end_epoch(loss, 3)
    assert length(descent, 1e6) == pytest.approx(BOUND)


@pytest.mark.parametrize(
    ("batches", "expected"), [(1, [False, False, False, False, True]), (3, [False, True, False, True, True])]
)
def test_two_losses_that_agree_by_chance_are_not_the_end_of_one_batch(
    batches: int, expected: list[bool]
) -> None:
    """Protects the last directions of little curvature, and trainings of many batches from a pass more than
    they need."""
    descent = Descent(DescentSettings(batch=10))
    assert [descent.end_epoch(loss, batches) for loss in (0.5, 0.5, 0.4, 0.4, 0.4)] == expected


def test_it_goes_on_as_it_was() -> None:
    """Protects a coordinator that is started again, also in the middle of an epoch, and one that a release
    before wrote."""
    learning = DescentSettings(batch=10, largest_step=BOUND)
    first = Descent(learning)
    for loss in (8.0, 7.0, 7.0):
        first.step(np.array([1e6]))
        first.end_epoch(loss, 1)
    first.step(np.array([1e-6]))
    encoded = msgspec.msgpack.encode(first.state)
    again = Descent(learning)
    again.restore(msgspec.msgpack.decode(encoded, type=DescentState))
    for descent in (first, again):
        descent.step(np.array([1e6]))
    assert first.end_epoch(7.0, 2) == again.end_epoch(7.0, 2) is True
    assert first.state == again.state
    of_before = msgspec.msgpack.decode(
        msgspec.msgpack.encode([0, b"", None, 0, 0, 0, False, False]), type=DescentState
    )
    again.restore(of_before)
    assert length(again, 1e6) == pytest.approx(BOUND)
