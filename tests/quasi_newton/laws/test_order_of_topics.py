"""Topics of different parties are read in no order: what one has uploaded may be heard before another's rows
are."""

from __future__ import annotations

from collections import deque

import pytest
from quasi_newton.federations import settings_of
from quasi_newton.laws.closed_loop import ClosedLoop

from streamfl.quasi_newton.members.training_progress import TRAINED

MOST_TURNS = 500


@pytest.mark.parametrize("backwards", [False, True])
def test_the_coordinator_may_hear_one_party_after_the_other(backwards: bool) -> None:
    """Protects a training from standing still: an upload that was opened came before another party's rows,
    which were refused."""
    names = ["g", "h1", "h2", "c"]
    loop = ClosedLoop({name: settings_of(name, 2, learning={"epochs": 1}) for name in names})
    loop.write_table(220, 3, 2)
    coordinator = loop.members["c"]
    for _ in range(MOST_TURNS):
        if any([loop.step(name) for name in names[:-1]]):  # noqa: C419
            continue
        coordinator.unread = deque(sorted(coordinator.unread, key=lambda one: one[0], reverse=backwards))
        if not loop.step("c", most=1):
            loop.now += 5.0
        if all(loop.party(name).progress.phase == TRAINED for name in names[:-1]):
            break
    assert loop.rejections() == []
    assert [loop.party(name).progress.phase for name in names[:-1]] == [TRAINED] * 3
