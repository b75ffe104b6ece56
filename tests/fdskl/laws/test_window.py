"""The window of ``newton`` after a restart: the same entities, the same f, and the same steps from there on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fdskl.laws.closed_loop import ClosedLoop
from fdskl.makers import settings_of

LEARNING = {"window": 30, "block_instances": 6, "block_features": 4, "features_limit": 24, "visits": 2}
ENTITIES = 60


def learnt(restarts: dict[int, int], **learning: Any) -> ClosedLoop:
    """Three parties; entities come, are predicted and get their labels, some of them again.

    restarts: by the number of a label, the turns of the parties that come after it before the active party ends; it ends at once
    with 0, and in the middle of an iteration's rounds with a few.
    """
    alignment = {"expiry_seconds": 1e6, "limit": 200, "linger_ms": 5.0}
    sections = {"learning": {**LEARNING, **learning}, "alignment": alignment}
    loop = ClosedLoop([settings_of(f"p{number}", 3, **sections) for number in range(3)])
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


@pytest.mark.parametrize("learning", [{}, {"sweeps": 2}, {"cache_bytes": 24 * 4 * 10}, {"loss": "square"}])
@pytest.mark.parametrize(
    "restarts", [{20: 0}, {29: 0, 41: 0}, {23: 1, 29: 3, 35: 2, 47: 5}, {number: number % 4 for number in range(8, 60)}]
)
def test_a_restart_leaves_the_window_as_it_was(restarts: dict[int, int], learning: dict[str, Any]) -> None:
    """Protects what was learnt from a restart: entities, their labels and their f are what they would be, and so are the steps
    that are taken from there, whether features are in the cache or have to be asked for.
    """
    stayed, restarted = (loop.active.active_partition(0) for loop in (learnt({}, **learning), learnt(restarts, **learning)))
    entities = list(stayed.labelled)
    assert len(entities) == LEARNING["window"]
    assert list(restarted.labelled) == entities
    assert restarted.labelled.labels == stayed.labelled.labels
    assert restarted.labelled.labels_of(entities).tolist() == stayed.labelled.labels_of(entities).tolist()
    assert restarted.labelled.known_of(entities).tolist() == stayed.labelled.known_of(entities).tolist()
    assert restarted.model.version == stayed.model.version > 8
    one, other = stayed.model.snapshot(), restarted.model.snapshot()
    assert (one.first, one.version) == (other.first, other.version)
    np.testing.assert_allclose(other.alphas, one.alphas, rtol=1e-4, atol=1e-4 * np.abs(one.alphas).max())
    outputs = stayed.labelled.outputs_of(entities)
    assert np.std(outputs[~np.isnan(outputs)]) > 0.1
    np.testing.assert_allclose(restarted.labelled.outputs_of(entities), outputs, rtol=1e-4, atol=1e-4)
