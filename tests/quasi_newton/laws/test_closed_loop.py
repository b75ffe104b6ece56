"""Guest, hosts and coordinator as roles come to what the arithmetic alone comes to."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from quasi_newton.federations import Secrets, settings_of
from quasi_newton.laws.closed_loop import ClosedLoop

from streamfl.quasi_newton.training.training_progress import TRAINED

ROWS = 250


def federation(hosts: int, secrets: Secrets | None = None, **sections: dict[str, Any]) -> ClosedLoop:
    names = ["g", *(f"h{number + 1}" for number in range(hosts)), "c"]
    return ClosedLoop({name: settings_of(name, hosts, secrets, **sections) for name in names})


def trained(
    hosts: int, secrets: Secrets | None = None, rows: int = ROWS, **sections: dict[str, Any]
) -> ClosedLoop:
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
        kept = [at for at, (_, was_kept) in enumerate(trace.pairs) if was_kept][
            -party.settings.learning.memory :
        ]
        pairs = np.array([[trace.steps[number][at], trace.curvatures[number][at]] for at in kept])
        assert np.array_equal(party.iterates.own.pairs, pairs.reshape(party.iterates.own.pairs.shape))
    assert loop.members["c"].role.task(0).epoch_loss == trace.losses[-1]
    assert loop.rejections() == []


@pytest.mark.parametrize(("hosts", "masked"), [(1, False), (2, True)])
def test_encrypted_training_is_the_arithmetic(secrets: Secrets, hosts: int, masked: bool) -> None:
    """Messages, alignment, encryption, packing, blinding and masks change no bit of what is learnt."""
    loop = trained(hosts, secrets, encryption={"mask_gradients": masked}, learning={"epochs": 3})
    assert loop.direct().epochs == 3
    assert any(kept for _, kept in loop.direct().pairs)
    assert_equals_direct(loop)


def outcome(loop: ClosedLoop) -> list[bytes]:
    """What every party has learnt."""
    models = [loop.party(name).iterates.model for name in loop.members if name != "c"]
    return [b"" if model is None else model.tobytes() for model in models]


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"learning": {"output_bound": 0.01}}, "beyond the bound"),
        ({"learning": {"min_support": 60}, "preprocessing": {"method": "quantile-bins"}}, "columns"),
        (
            {"learning": {"batch": 240, "min_batch": 240}, "alignment": {"entities": 240}},
            "too few for a batch",
        ),
        ({"learning": {"largest_leverage": 0.02}}, "rows are so far out"),
    ],
)
def test_a_training_that_comes_to_nothing_ends_everywhere(sections: dict[str, Any], text: str) -> None:
    """Nobody waits for a member that cannot go on, and the operator of each is told."""
    loop = trained(2, **sections)
    troubles = [member.role.trouble for member in loop.members.values()]
    assert all(trouble is not None and "training 1 has ended" in trouble for trouble in troubles), troubles
    assert any(text in str(trouble) for trouble in troubles)
    assert not any(member.role.waiting for member in loop.members.values())
    assert [member.role.counts.failed_trainings for member in loop.members.values()] == [1, 1, 1, 1]
    for name in loop.members:
        loop.restart(name)
        assert loop.members[name].role.trouble is not None


def test_each_party_keeps_its_part_of_the_model() -> None:
    """Protects scoring: what is kept scores the rows of the training as the last epoch's mean iterate does,
    after a restart too. Plain numbers come to the same bits as the arithmetic."""
    loop = trained(1)
    assert_equals_direct(loop)
    for name in ("g", "h1"):
        loop.restart(name)
        party = loop.party(name)
        model = party.trained
        assert model is not None
        assert (model.version, model.intercept, len(party.learnt)) == (1, name == "g", 200)
        names = sorted(party.learnt)
        assert party.iterates.model is not None
        assert np.array_equal(model.weights, party.iterates.model)
        assert len(model.outputs(party.table.rows(names)[0])) == 200


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
