"""Figures of a model on entities that it has not learnt from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.members.readiness import HeldOut, Readiness
from streamfl.quasi_newton.members.training_progress import GATHERING
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.rows.held_out import calibration_error, held_out_figures
from streamfl.quasi_newton.rows.table import EntityTable
from streamfl.quasi_newton.scoring.calibration import LatestCalibration
from streamfl.quasi_newton.scoring.scorecard import Calibration
from streamfl.quasi_newton.scoring.scores import Scores
from streamfl.state.changelog import ChangedParts


def test_calibration_error_is_the_mean_distance_of_bins() -> None:
    """Protects a figure that operators trust probabilities by: it is 0 where shares are as said, and their
    distance where not."""
    chances = np.repeat([0.1, 0.5, 0.9], [100, 100, 100])
    ones = np.concatenate([np.arange(100) < 10, np.arange(100) < 50, np.arange(100) < 90])
    assert calibration_error(chances, ones, bins=3) == pytest.approx(0.0)
    assert calibration_error(np.full(300, 0.8), ones, bins=1) == pytest.approx(0.3)
    # Errors of two bins do not cancel.
    assert calibration_error(chances, ones[::-1], bins=3) == pytest.approx(0.8 * 2 / 3)
    assert calibration_error(np.array([0.25]), np.array([True])) == pytest.approx(0.75)


def test_there_are_no_figures_of_one_label() -> None:
    """Protects boards from NaN: of held-out entities with one label nothing can be said."""
    outputs = np.arange(4.0)
    assert held_out_figures(outputs, np.ones(4), None) == {}
    assert held_out_figures(outputs, -np.ones(4), Calibration(0.0, 1.0)) == {}
    assert held_out_figures(np.zeros(0), np.zeros(0), None) == {}
    assert held_out_figures(outputs, np.array([-1, -1, 1, 1]), None) == {"auc": 1.0, "ks": 1.0}


@pytest.mark.parametrize(
    "stored",
    [
        (1, [3], None, True, 0, 0),
        (1, [3, None], 0.5, True, 0, 0),
        (1, [3, 2**40], None, True, 0, 0),
        (1, [3, 4], float("nan"), True, 0, 0),
        (1, [3, 4], float("inf"), True, 0, 0),
        (1, [3, 4], 0.5, True, 7, 0),
        (-1, [3, 4], 0.5, True, 0, 0),
    ],
)
def test_damaged_scores_are_refused(stored: tuple[object, ...]) -> None:
    """Protects predictions from a damaged changelog: what the guest cannot have written is refused."""
    parts = ChangedParts()
    scores = Scores(parts, EntityTable(parts, 1, True, 1e9, 10, MemberCounts()), 2)
    parts.restore(b"score/a", msgspec.msgpack.encode((1, [3, 4], 0.5, True, 1, 1)))
    with pytest.raises((BadRecord, msgspec.ValidationError)):
        parts.restore(b"score/b", msgspec.msgpack.encode(stored))
    with pytest.raises(BadRecord):
        parts.restore(b"score/" + b"x" * 300, msgspec.msgpack.encode((1, [3, 4], 0.5, True, 1, 1)))
    assert list(scores._scores) == ["a"]
    calibration = LatestCalibration(parts)
    with pytest.raises(BadRecord):
        parts.restore(b"calibration", msgspec.msgpack.encode((1, float("nan"), 1.0, 5)))
    assert calibration.fitted is None


@pytest.mark.parametrize(("entities", "least", "ready"), [(50, 20, True), (51, 20, False), (50, 48, False)])
def test_who_is_held_out_counts_as_known(entities: int, least: int, ready: bool) -> None:
    """Protects the tutorial: with as many entities as alignment.entities says a training begins, if the
    others are enough.

    It used to wait for ever, since those that are held out did not count.
    """
    parts, held_out = ChangedParts(), HeldOut(b"secret", 0.2)
    table = EntityTable(parts, 1, True, 1e9, 1000, MemberCounts(), held_out)
    for number in range(50):
        table.put(f"e{number}", 10.0, bytes(8), 1 if number % 2 else -1)
    assert (table.known, 20 < table.complete < 48) == (50, True)
    settings: Any = SimpleNamespace(
        alignment=SimpleNamespace(entities=entities, settle_seconds=5.0),
        learning=SimpleNamespace(descent=DescentSettings()),
        encryption=SimpleNamespace(agreed_key=b"k"),
        least_batch=least,
    )
    progress: Any = SimpleNamespace(phase=GATHERING, has_said=False)
    batches: Any = ()
    assert Readiness(parts, settings, progress, table, batches).due_at == (15.0 if ready else None)
