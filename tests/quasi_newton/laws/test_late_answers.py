"""Who a training waits for is said as soon as that takes longer than usual, not when the patience is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.laws.scoring import scoring_federation, write_entity

from streamfl.quasi_newton.members.training_progress import ALIGNING, OUTPUTS


def is_in_a_round(loop: ClosedLoop) -> bool:
    return loop.party("g").progress.phase == OUTPUTS and loop.party("g").progress.round > 2


@pytest.mark.parametrize("reached", [lambda loop: loop.party("g").progress.phase == ALIGNING, is_in_a_round])
def test_a_host_that_is_away_is_named(reached: Callable[[ClosedLoop], bool]) -> None:
    """Protects operators: for an hour, the default patience, a guest whose host was away in the middle of a
    training was "ok", and for ever while its own records came."""
    loop = scoring_federation(2)
    loop.until(lambda: reached(loop), ("c", "g", "h2", "h1"), 1 if reached is is_in_a_round else 1000)
    there = ("c", "g", "h2")
    for number in range(40):
        write_entity(loop, f"live {number}", {"g": [0.1, 0.2, 0.3]})
        for name in there * 5:
            loop.step(name)
        loop.now += 5.0
    guest, coordinator = loop.members["g"].role, loop.members["c"].role
    assert str(guest.backlog).startswith("waits for h1 since ")
    assert "h1" in str(coordinator.backlog)
    assert "h2" not in str(guest.backlog)
    assert (guest.trouble, coordinator.trouble) == (None, None)
    loop.settle()
    assert [str(loop.members[name].role.backlog) for name in ("g", "c")] == ["None", "None"]


def test_users_records_are_no_answer() -> None:
    """Protects readiness: a guest that gets its own records is not ready, too, once its patience is over."""
    loop = scoring_federation(1, alignment={"patience_seconds": 100})
    loop.until(lambda: is_in_a_round(loop), ("c", "g", "h1"), 1)
    for number in range(40):
        write_entity(loop, f"live {number}", {"g": [0.1, 0.2, 0.3]})
        for name in ("c", "g", "c", "g"):
            loop.step(name)
        loop.now += 5.0
    assert "an answer is due" in str(loop.members["g"].role.trouble)
