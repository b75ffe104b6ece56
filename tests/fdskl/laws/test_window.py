"""The window of ``newton`` after a restart: the same entities, the same f, and the same steps from there
on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fdskl.laws.closed_loop import ClosedLoop
from fdskl.makers import settings_of

from streamfl.contract.role import Received, Record
from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.newton_iteration import NewtonIteration
from streamfl.fdskl.party.active import ActivePartition
from streamfl.fdskl.sums.rounds import Question, Rounds
from streamfl.records.samples import Sample

LEARNING = {"window": 30, "block_instances": 6, "block_features": 4, "features_limit": 24, "visits": 2}
ENTITIES = 60


def members(**learning: Any) -> list[FdsklSettings]:
    alignment = {"expiry_seconds": 1e6, "limit": 200, "linger_ms": 5.0}
    return [
        settings_of(f"p{number}", 3, learning={**LEARNING, **learning}, alignment=alignment)
        for number in range(3)
    ]


def learnt(restarts: dict[int, int], **learning: Any) -> ClosedLoop:
    """Three parties; entities come, are predicted and get their labels, some of them again.

    restarts: by the number of a label, the turns of the parties that come after it before the active party
    ends; it ends at once with 0, and in the middle of an iteration's rounds with a few.
    """
    loop = ClosedLoop(members(**learning))
    for number in range(ENTITIES):
        loop.write_sample(f"e{number}", np.sin(number) * 2)
    loop.settle()
    for number in range(ENTITIES):
        loop.write_label(f"e{number}", float(np.sin(number) > 0.2))
        if number % 7 == 3:
            # Of one whose label came before: it is the youngest now.
            loop.write_label(f"e{number - 2}", 1.0)
        if number in restarts:
            for _ in range(restarts[number]):
                for party in range(3):
                    loop.step(party, 2)
            loop.restart(0)
        loop.settle()
    return loop


@pytest.mark.long
@pytest.mark.parametrize(
    ("restarts", "learning"),
    [
        ({29: 0, 41: 0}, {"loss": "square"}),
        ({23: 1, 29: 3, 35: 2, 47: 5}, {"sweeps": 2}),
        ({number: number % 4 for number in range(8, 60)}, {}),
        ({number: number % 4 for number in range(8, 60)}, {"cache_bytes": 24 * 4 * 10}),
    ],
)
def test_a_restart_leaves_the_window_as_it_was(restarts: dict[int, int], learning: dict[str, Any]) -> None:
    """Protects what was learnt from a restart: entities, their labels and their f are what they would be, and
    so are the steps that are taken from there, whether features are in the cache or have to be asked for.
    """
    stayed, restarted = (
        loop.active.active_partition(0) for loop in (learnt({}, **learning), learnt(restarts, **learning))
    )
    entities = list(stayed.labelled)
    assert len(entities) == LEARNING["window"]
    assert list(restarted.labelled) == entities
    assert restarted.labelled.labels == stayed.labelled.labels
    assert restarted.labelled.labels_of(entities).tolist() == stayed.labelled.labels_of(entities).tolist()
    assert (
        restarted.labelled.outputs_and_known(entities)[1].tolist()
        == stayed.labelled.outputs_and_known(entities)[1].tolist()
    )
    assert restarted.model.version == stayed.model.version > 8
    one, other = stayed.model.snapshot(), restarted.model.snapshot()
    assert (one.first, one.version) == (other.first, other.version)
    np.testing.assert_allclose(other.alphas, one.alphas, rtol=1e-4, atol=1e-4 * np.abs(one.alphas).max())
    outputs = stayed.labelled.outputs_and_known(entities)[0]
    assert np.std(outputs[~np.isnan(outputs)]) > 0.1
    np.testing.assert_allclose(
        restarted.labelled.outputs_and_known(entities)[0], outputs, rtol=1e-4, atol=1e-4
    )


def test_after_a_restart_features_are_asked_for_once_and_not_in_each_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects traffic: what is in memory no more comes back into it as the blocks have their turn, and then
    as little is asked for as if nobody had stopped.
    """
    asked: list[int] = []
    want = Rounds.want

    def counted(self: Rounds, question: Question) -> None:
        if isinstance(question.wanting, NewtonIteration):
            asked[-1] += len(question.entities) * sum(one.count for one in question.ranges)
        want(self, question)

    def begun(self: ActivePartition) -> Any:
        asked.append(0)
        return real(self)

    real = ActivePartition._next_iteration
    monkeypatch.setattr(Rounds, "want", counted)
    monkeypatch.setattr(ActivePartition, "_next_iteration", begun)
    totals = []
    for restarts in ({}, {27: 0}):
        learnt(restarts)
        totals.append(asked[:])
        asked.clear()
    stayed, restarted = totals
    # Three iterations fill the model, and three more visit each of its blocks.
    at = next(place for place, (one, other) in enumerate(zip(stayed, restarted, strict=True)) if one != other)
    assert sum(restarted[at : at + 3]) > sum(stayed[at : at + 3])
    assert restarted[at + 3 :] == stayed[at + 3 :]
    assert len(stayed) > at + 4


def test_an_iteration_that_has_lost_all_its_entities_is_as_after_a_restart() -> None:
    """Protects what waits from depending on a restart: the only labelled entity has new columns while an
    iteration asks for its old ones. That went on for nobody, and after a restart it was over.
    """
    loop = ClosedLoop(members())
    for entity in ("a", "b"):
        loop.write_sample(entity, 0.5)
    loop.settle()
    for _ in range(LEARNING["block_instances"]):
        loop.write_label("a", 1.0)
    loop.step(0, 1000)
    assert dict(loop.active.waiting) == {"iterations": 1}
    record = Record("samples", 0, 0, b"a", b"", (), loop.now)
    loop.members[0].unread.append(
        ("samples", Received("samples", Sample("a", "s", (-7.0, 0.5), None), record))
    )
    loop.step(0, 1000)
    assert list(loop.active.active_partition(0).labelled) == []
    stayed = dict(loop.active.waiting)
    loop.restart(0)
    assert dict(loop.active.waiting) == stayed == {"predictions": 1}
    loop.settle()
    assert [one.revision for one in loop.predictions if one.entity == "a"] == [0, 0]


@pytest.mark.parametrize("learning", [{"visits": 2}, {"sweeps": 2}, {"solver": "sgd"}])
def test_lower_limits_are_kept_to_after_a_restart(learning: dict[str, Any]) -> None:
    """Protects learning from an operator who lowers features_limit or the window: a model above its limit
    took no more steps."""
    loop = learnt({}, **learning)
    before = loop.active.active_partition(0).model
    assert before.kept == LEARNING["features_limit"]
    for member, lower in zip(loop.members, members(features_limit=8, window=12, **learning), strict=True):
        member.settings = lower
    for number in range(3):
        loop.restart(number)
    for number in range(ENTITIES, ENTITIES + 20):
        loop.write_sample(f"e{number}", np.sin(number) * 2)
        loop.settle()
        loop.write_label(f"e{number}", float(np.sin(number) > 0.2))
        loop.settle()
    active = loop.active.active_partition(0)
    assert (active.model.kept, len(active.labelled)) == (8, 12)
    assert active.model.dropped >= 16
    # One version more for what gave way at once.
    labels = active.labelled.labels
    assert active.model.version == labels // LEARNING["block_instances"] + 1
    assert active.model.version > before.version + 2
    if "solver" not in learning:
        assert active.model.visits > before.visits
        outputs = active.labelled.outputs_and_known(list(active.labelled))[0]
        assert np.isfinite(outputs).any()
    last = [one for one in loop.predictions if one.entity == f"e{ENTITIES + 19}"]
    assert [one.parties for one in last] == [3]
    assert last[0].score != 0
