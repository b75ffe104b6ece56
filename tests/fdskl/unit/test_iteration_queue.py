"""Turns of several active parties, and what one of them makes of another's iteration."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from fdskl.makers import make_worker, settings_of

from streamfl.contract.role import BadRecord, StateChange
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.learning.iteration_queue import IterationQueue
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.messages import FeatureRange, Turn
from streamfl.fdskl.party.active import ActivePartition
from streamfl.state.changelog import ChangedParts


def test_turns_come_in_the_order_of_the_log() -> None:
    """Protects iterations from two that are made at once, and from one that is made twice."""
    queue = IterationQueue(ChangedParts(), (2, 0), own=0)
    assert (queue.ask(), queue.is_asked_for, queue.has_come) == (1, True, False)
    assert queue.take_request(2, 1)
    assert queue.take_request(0, 1)
    assert not queue.take_request(2, 1)
    assert not queue.has_come
    assert not queue.is_first(0, 1)
    assert queue.is_first(2, 1)
    queue.take_end()
    assert queue.has_come
    assert queue.end() == 1
    # Its end does not stand in the log yet.
    assert (queue.is_asked_for, queue.has_come, queue.ask()) == (False, False, 2)
    assert not queue.has_come
    queue.take_end()
    assert queue.take_request(0, 2)
    assert queue.has_come


@pytest.mark.parametrize(
    ("party", "number"), [(0, 2), (2, 3), (2, 2)], ids=["skipped", "far", "while-one-waits"]
)
def test_a_turn_that_cannot_be_asked_for_is_refused(party: int, number: int) -> None:
    """Protects the queue from growing without end: a party has one place in it."""
    queue = IterationQueue(ChangedParts(), (2, 0), own=0)
    queue.take_request(2, 1)
    with pytest.raises(BadRecord, match="implausible"):
        queue.take_request(party, number)


def test_nobody_says_of_a_party_that_its_turn_is_over() -> None:
    """Protects an active party's process: its turn went away while it learnt, and it ended at the assertion
    that it has it."""
    queue = IterationQueue(ChangedParts(), (2, 0), own=0)
    with pytest.raises(BadRecord, match="implausible"):
        queue.take_request(0, 1)
    queue.ask()
    queue.take_request(0, 1)
    with pytest.raises(BadRecord, match="implausible"):
        queue.check_end(0, 1)
    assert queue.end() == 1
    queue.check_end(0, 1)
    queue.check_end(2, 7)


def test_turns_are_remembered() -> None:
    """Protects a turn from a restart: whoever had it still has it, and no other."""
    parts = ChangedParts()
    queue = IterationQueue(parts, (2, 0), own=0)
    queue.ask()
    queue.take_request(0, 1)
    ((key, value),) = parts.changed_state()
    assert (key, value is not None) == (b"turns", True)
    restored = ChangedParts()
    again = IterationQueue(restored, (2, 0), own=0)
    restored.restore(key, value or b"")
    assert again.has_come
    assert not IterationQueue(ChangedParts(), (2, 0), own=0).has_come


@pytest.mark.parametrize(
    "content",
    [
        ([], [0], 0, 0),
        ([], [0, 0, 0], 0, 0),
        ([[0, 1], [0, 2]], [2, 0], 0, 0),
        ([[2, 1]], [0, 0], 0, 0),
        ([], [0, 0], 0, 1),
        ([], [0, 0], 2, 0),
    ],
)
def test_turns_of_another_federation_are_not_taken_back(content: Any) -> None:
    """Protects from state that no role can have written."""
    parts = ChangedParts()
    IterationQueue(parts, (2, 0), own=0)
    with pytest.raises(BadRecord, match="malformed"):
        parts.restore(b"turns", msgspec.msgpack.encode(content))


def partition_of_one_of_two() -> tuple[ActivePartition, int]:
    role = make_worker(settings_of("p0", 2, federation={"active": ["p0", "p1"]}, learning={"solver": "sgd"}))
    role.open(0)
    active = role.active_partition(0)
    assert active.shared is not None
    return active, active.shared.fingerprint


def test_an_iteration_after_one_that_was_not_heard_of_is_refused() -> None:
    """Protects the model from going on where the log or a state has lost an iteration: it would be another
    model in silence."""
    active, fingerprint = partition_of_one_of_two()
    active.take_turn(Turn(VERSION, fingerprint, "p1", 1, False, 0, 0, 1.0, 1.0))
    lost = Turn(VERSION, fingerprint, "p1", 1, True, 3, 0, 1.0, 0.5)
    with pytest.raises(BadRecord, match=r"iteration 3 of 'p1', and 0 is the latest here"):
        active.take_turn(lost)
    assert active.model.version == 0
    assert active.take_turn(msgspec.structs.replace(lost, model=0))
    assert (active.model.version, active.model.kept, active.model.snapshot().own) == (1, 2, ())
    assert not active.take_turn(msgspec.structs.replace(lost, model=0))


@pytest.mark.parametrize(
    ("first", "decay", "bandwidth"),
    [
        (2, 0.5, 1.0),
        (1, 0.5, 1.0),
        (0, 0.0, 1.0),
        (0, 1.5, 1.0),
        (0, float("nan"), 1.0),
        (0, 0.5, 0.0),
        (0, 0.5, float("inf")),
    ],
)
def test_an_iteration_that_none_can_make_is_refused(first: int, decay: float, bandwidth: float) -> None:
    """Protects coefficients from a factor that wipes them out, and features from being dropped before they
    are there."""
    model = KernelModel(ChangedParts(), 2, 6)
    with pytest.raises(BadRecord, match="implausible"):
        model.take_turn(first, decay, bandwidth)
    assert (model.version, model.kept, model.scale, model.bandwidth) == (0, 0, 1.0, None)


def test_own_coefficients_stay_among_others_and_come_back() -> None:
    """Protects a party's coefficients: others' features lie between, and decay and dropping by others' word
    are remembered."""
    parts, restored = ChangedParts(), ChangedParts()
    model, again = KernelModel(parts, 2, 6), KernelModel(restored, 2, 6)
    model.take_turn(0, 0.5, 3.0)
    for number in (1.0, 2.0):
        model.decay_to(model.scale * 0.5)
        model.put(model.newest, np.array([number, -number]))
        model.end_iteration()
    model.take_turn(2, 0.5, 9.0)
    for key, value in parts.changed_state():
        assert value is not None
        restored.restore(key, value)
    for one in (model, again):
        now = one.snapshot()
        assert (now.version, now.first, one.bandwidth, now.own) == (4, 2, 3.0, (FeatureRange(2, 4),))
        np.testing.assert_allclose(now.alphas, [0.25, -0.25, 1.0, -1.0, 0.0, 0.0])
        np.testing.assert_allclose(now.evaluate_own(np.eye(4)), [0.25, -0.25, 1.0, -1.0])


def test_a_party_alone_takes_no_turns_back() -> None:
    """Protects a state from being read by a party with another role in the federation."""
    role = make_worker(settings_of("p0", 2))
    role.open(0)
    with pytest.raises(BadRecord, match="not of this party"):
        role.restore(StateChange("state", 0, b"turns", b"\x90"))
