"""What an entity was predicted by serves to learn from it: asked for once, and never of columns that are
over."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from fdskl.laws.closed_loop import ClosedLoop
from fdskl.makers import settings_of

from streamfl.contract.role import Received, Record
from streamfl.fdskl.learning.feature_cache import FeatureCache
from streamfl.fdskl.messages import PHASES, ROUND
from streamfl.records.samples import Sample

FIRST, SECOND = [f"e{number}" for number in range(3)], [f"e{number}" for number in range(3, 6)]


def learnt(
    when: int | None, monkeypatch: pytest.MonkeyPatch, keeps: bool = True
) -> tuple[ClosedLoop, Counter[tuple[str, int]]]:
    """Two iterations. when: so many turns after the second one's entities came, the other party gets new
    columns of two of them, of which nobody is to make new predictions.

    Returns the federation, and how often each feature of each entity was asked for.
    """
    asked: Counter[tuple[str, int]] = Counter()
    settings: dict[str, Any] = {
        "learning": {"features_limit": 4},
        "alignment": {"linger_ms": 0.0, "revise": False},
    }
    loop = ClosedLoop([settings_of(f"p{number}", 2, **settings) for number in range(2)])
    deliver = loop._deliver

    def heard(send: Any) -> None:
        if send.channel == "rounds/p1":
            said = ROUND.decode(send.value)
            if said.purpose == PHASES:
                features = [
                    number for one in said.ranges for number in range(one.first, one.first + one.count)
                ]
                asked.update((entity, number) for entity in said.entities for number in features)
        deliver(send)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_deliver", heard)
        if not keeps:
            real = FeatureCache.put

            def put(self: FeatureCache, *given: Any, labelled: bool = True) -> None:
                if labelled:
                    real(self, *given)

            patch.setattr(FeatureCache, "put", put)
        for place, entities in enumerate((FIRST, SECOND)):
            for number, entity in enumerate(entities):
                loop.write_sample(entity, 1.0 + 3 * place + number)
            if place and when is not None:
                for turn in range(when):
                    loop.step(turn % 2, 2)
                for entity in entities[:2]:
                    record = Record("samples", 0, 0, entity.encode(), b"", (), loop.now)
                    loop.members[1].unread.append(
                        ("samples", Received("samples", Sample(entity, "s", (-7.0, 0.5), None), record))
                    )
                loop.step(1, 1000)
                # Another topic than that of sums: what was written later may be read first.
                unread = loop.members[0].unread
                loop.members[0].unread = type(unread)(sorted(unread, key=lambda one: one[0] != "revisions"))
            loop.settle()
            for number, entity in enumerate(entities):
                loop.write_label(entity, float(number % 2))
            loop.settle()
    assert loop.active.active_partition(0).model.version == 2
    return loop, asked


def test_a_feature_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects half of what a federation sends and computes: what was told for a prediction was asked for
    again to learn from."""
    _, asked = learnt(None, monkeypatch)
    assert max(asked.values()) == 1
    _, twice = learnt(None, monkeypatch, keeps=False)
    assert max(twice.values()) == 2


@pytest.mark.parametrize("when", range(12))
def test_what_is_kept_is_of_the_latest_columns(when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the model from features of columns that are over: wherever new ones come between an entity's
    question, its answer, its prediction and its label, the model is the one that asks again, bit for bit.
    """
    (one, _), (other, _) = learnt(when, monkeypatch), learnt(when, monkeypatch, keeps=False)
    for name in ("alphas", "version", "first"):
        found = [getattr(loop.active.active_partition(0).model.snapshot(), name) for loop in (one, other)]
        np.testing.assert_array_equal(*found, err_msg=name)
    assert [said.score for said in one.predictions] == [said.score for said in other.predictions]
