"""Guest, hosts and coordinator as roles come to what the arithmetic alone comes to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quasi_newton.federations import Secrets, settings_of
from quasi_newton.laws.closed_loop import ClosedLoop

from streamfl.quasi_newton.party_settings import TRAINED

ROWS = 350


def federation(hosts: int, secrets: Secrets | None = None, **sections: dict[str, Any]) -> ClosedLoop:
    names = ["g", *(f"h{number + 1}" for number in range(hosts)), "c"]
    return ClosedLoop({name: settings_of(name, hosts, secrets, **sections) for name in names})


def trained(hosts: int, secrets: Secrets | None = None, rows: int = ROWS, **sections: dict[str, Any]) -> ClosedLoop:
    loop = federation(hosts, secrets, **sections)
    loop.write_table(rows, 3, hosts, missing=7)
    loop.settle()
    return loop


def assert_equals_direct(loop: ClosedLoop) -> None:
    """Weights, pairs and the model of every party, to the last bit."""
    trace = loop.direct()
    names = [name for name in loop.members if name != "c"]
    for number, name in enumerate(names):
        party = loop.party(name)
        assert party.progress.phase == TRAINED, party.progress.failure
        assert np.array_equal(party.iterates.own.weights, trace.weights[number][-1])
        assert party.iterates.model is not None
        assert np.array_equal(party.iterates.model, trace.model[number])
        kept = [at for at, (_, was_kept) in enumerate(trace.pairs) if was_kept][-party.settings.learning.memory :]
        pairs = np.array([[trace.steps[number][at], trace.curvatures[number][at]] for at in kept])
        assert np.array_equal(party.iterates.own.pairs, pairs.reshape(party.iterates.own.pairs.shape))
    assert loop.members["c"].role.task(0).epoch_loss == trace.losses[-1]
    assert loop.rejections() == []


@pytest.mark.parametrize("hosts", [1, 2])
def test_plain_training_is_the_arithmetic(hosts: int) -> None:
    """Messages, alignment, masks and rounds change no bit of what is learnt."""
    loop = trained(hosts)
    assert len(loop.party("g").rows.names) == 300
    assert loop.direct().epochs == 4
    assert any(kept for _, kept in loop.direct().pairs)
    assert_equals_direct(loop)
