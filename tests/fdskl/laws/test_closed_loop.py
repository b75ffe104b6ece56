"""The laws of restoring on a whole federation: rounds under way are not remembered, and nothing is lost or
said twice for that."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from fdskl.laws.closed_loop import ClosedLoop
from fdskl.makers import settings_of
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.iteration import SgdIteration
from streamfl.fdskl.sums import masks
from streamfl.fdskl.sums.masks import mask_key

ENTITIES = [f"e{number}" for number in range(9)]
KINDS: dict[str, dict[str, Any]] = {
    "newton-tree": {"learning": {"sweeps": 2}},
    "sgd-ring": {"learning": {"solver": "sgd"}, "aggregation": {"topology": "ring", "circle_bits": 64}},
    "newton-star": {"learning": {"cache_bytes": 0, "loss": "square"}, "aggregation": {"topology": "star"}},
}
# Which party takes how many messages, or -1: is taken up by another process; and whether what it did is lost.
Turn = tuple[int, int, bool]


def federation(kind: str, parties: int) -> list[FdsklSettings]:
    sections = {name: dict(content) for name, content in KINDS[kind].items()}
    sections["alignment"] = {"reply_seconds": 0.7, "expiry_seconds": 1e6, "limit": 40, "linger_ms": 5.0}
    return [settings_of(f"p{number}", parties, **sections) for number in range(parties)]


def run(kind: str, parties: int, turns: list[Turn], restarts: bool) -> ClosedLoop:
    """Samples, some of them twice, then labels; between any two messages of anybody a party may end."""
    loop = ClosedLoop(federation(kind, parties))

    def recorded(pair_secret: bytes, round_id: bytes, purpose: bytes, bits: int) -> bytes:
        key = mask_key(pair_secret, round_id, purpose, bits)
        assert loop.turn is not None
        loop.turn.masks[key] += 1
        return key

    patch = pytest.MonkeyPatch()
    patch.setattr(masks, "mask_key", recorded)
    waiting = iter(turns)
    try:
        # Before there is a model nobody needs to be asked.
        for number, entity in enumerate(ENTITIES[:3]):
            loop.write_sample(entity, 0.3 * number - 1.0)
            loop.write_label(entity, float(number % 2))
        loop.settle()
        for entities in (ENTITIES[3:7], ENTITIES[6:]):
            for number, entity in enumerate(entities):
                loop.write_sample(entity, 0.3 * number - 1.0)
            _take_turns(loop, [next(waiting, None) for _ in range(20)], restarts)
        loop.settle()
        for number, entity in enumerate(ENTITIES[3:]):
            loop.write_label(entity, float(number % 2))
        _take_turns(loop, list(waiting), restarts)
        loop.settle()
    finally:
        patch.undo()
    return loop


def _take_turns(loop: ClosedLoop, turns: list[Turn | None], restarts: bool) -> None:
    for turn in turns:
        if turn is None:
            return
        party, most, lost = turn
        party %= len(loop.members)
        if most < 0:
            if restarts:
                loop.restart(party)
            continue
        loop.step(party, most, lost and restarts)
        loop.now += 0.01


TURN = st.tuples(st.integers(0, 3), st.integers(-1, 4), st.sampled_from([False, False, False, True]))
TURNS = st.lists(TURN, min_size=20, max_size=60)


@pytest.mark.parametrize("kind", KINDS)
@given(turns=TURNS, parties=st.integers(2, 4))
@settings(max_examples=8, deadline=None)
def test_a_restored_party_changes_nothing_that_counts(kind: str, turns: list[Turn], parties: int) -> None:
    """Protects from predictions lost or said twice, labels lost or counted twice, and masks used twice, by a
    restart anywhere."""
    stayed, restored = run(kind, parties, turns, False), run(kind, parties, turns, True)
    for loop in (stayed, restored):
        said = Counter((one.entity, one.revision) for one in loop.predictions)
        assert max(said.values()) == 1, f"said twice: {said.most_common(3)}"
        for entity in ENTITIES:
            revisions = sorted(revision for name, revision in said if name == entity)
            assert revisions == list(range(len(revisions))), f"{entity}: revisions {revisions}"
        for member in loop.members:
            assert max(member.masks.values()) == 1, f"party {member.number} has used a mask twice"
    one, other = (loop.active.active_partition(0) for loop in (stayed, restored))
    assert (
        {said.entity for said in restored.predictions}
        == {said.entity for said in stayed.predictions}
        == set(ENTITIES)
    )
    assert one.labelled.labels == other.labelled.labels == len(ENTITIES)
    assert set(one.labelled) == set(other.labelled)
    assert one.model.version == other.model.version == len(ENTITIES) // 3
    assert not one.rounds.busy
    assert not other.rounds.busy


def test_masks_are_seen_by_this_test() -> None:
    """Protects the law above from a recorder that records nothing."""
    loop = run("newton-tree", 3, [], False)
    assert all(len(member.masks) > 4 for member in loop.members)
    outputs = loop.active.active_partition(0).model.snapshot().alphas
    assert np.abs(outputs).max() > 0


@pytest.mark.parametrize("restarts", [False, True])
def test_an_iteration_whose_entity_comes_anew_begins_without_it(restarts: bool) -> None:
    """Protects the law of restoring where own columns come anew while they are learnt from: the label was of
    what they were."""
    loop = ClosedLoop(federation("sgd-ring", 2))
    for number, entity in enumerate(ENTITIES[:3]):
        loop.write_sample(entity, 0.3 * number)
    loop.settle()
    for entity in ENTITIES[:3]:
        loop.write_label(entity, 1.0)
    loop.step(0, 3)
    active = loop.active.active_partition(0)
    assert active.rounds.busy
    assert active.model.version == 0
    loop.write_sample(ENTITIES[0], 9.0)
    loop.step(0, 1)
    if restarts:
        loop.restart(0)
    begun = loop.active.active_partition(0)._iteration
    assert isinstance(begun, SgdIteration)
    assert [entity in begun for entity in ENTITIES[:3]] == [False, True, True]
    loop.settle()
    assert loop.active.active_partition(0).model.version == 1
