"""What lies in different topics may be read in any order, whichever was written first."""

from __future__ import annotations

import functools
from collections import deque
from itertools import permutations

import numpy as np
import pytest
from quasi_newton.federations import settings_of
from quasi_newton.laws.closed_loop import ClosedLoop

PARTIES = ("g", "h1", "h2")


class Ordered(ClosedLoop):
    """The coordinator has all that lies in one topic before the next topic's, and its turn comes last."""

    order: tuple[str, ...] = PARTIES

    def step(self, name: str, most: int = 1000, lost: bool = False) -> bool:
        if name == "c":
            places = {f"f.{party}.uploads": number for number, party in enumerate(self.order)}
            self.members[name].unread = deque(
                sorted(self.members[name].unread, key=lambda one: places[one[0]])
            )
        return super().step(name, most, lost)


@functools.cache
def learnt(order: tuple[str, ...]) -> Ordered:
    loop = Ordered({name: settings_of(name, 2) for name in ("h1", "h2", "g", "c")})
    loop.order = order
    loop.write_table(400, 3, 2)
    loop.settle()
    return loop


@pytest.mark.long
@pytest.mark.parametrize("order", list(permutations(PARTIES)))
def test_the_coordinator_reads_parties_in_any_order(order: tuple[str, ...]) -> None:
    """Protects a training from its beginning: the guest's first gradient may be read before a host's word
    that it has its rows."""
    loop, other = learnt(order), learnt(PARTIES[::-1])
    assert loop.rejections() == []
    for name in PARTIES:
        model = loop.party(name).iterates.model
        assert model is not None
        np.testing.assert_array_equal(other.party(name).iterates.model, model)
