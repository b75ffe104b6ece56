"""The warning about a model that is worse than the labels' mean, and the mean's loss."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streamfl.simulation.baseline import mean_loss, running_mean_loss, say_where_useless

CHANCE = np.random.default_rng(3)


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_the_mean_loses_what_it_loses_label_by_label(classes: int) -> None:
    """Protects the comparison: the expected loss is computed label by label with plain counts."""
    labels = CHANCE.integers(0, classes, 50).astype(float) if classes > 1 else CHANCE.uniform(size=50)
    seen, losses = ([1 / max(2, classes)] * classes if classes > 1 else [0.5]), []
    for place, label in enumerate(labels.tolist(), 1):
        guess = [one / place for one in seen]
        losses.append((guess[0] - label) ** 2 if classes == 1 else -math.log(guess[int(label)]))
        if classes == 1:
            seen[0] += label
        else:
            seen[int(label)] += 1
    assert running_mean_loss(labels, classes) == pytest.approx(np.mean(losses), rel=1e-12)
    if classes == 1:
        hindsight = float(np.var(labels))
    else:
        shares = [float((labels == one).mean()) for one in range(classes)]
        hindsight = -sum(share * math.log(share) for share in shares if share)
    assert mean_loss(labels, classes) == pytest.approx(hindsight, rel=1e-12)
    assert math.isnan(running_mean_loss(labels[:0], classes))


def test_only_what_is_worse_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Protects users from a model that is worse than none, and from warnings about a better or unmeasured
    one."""
    not_worse = [
        ("good", 0.4, 0.5),
        ("even", 0.5, 0.5),
        ("none", None, 0.5),
        ("empty", 0.5, math.nan),
        ("alone", 0.5, None),
    ]
    say_where_useless(not_worse, "Raise it")
    assert capsys.readouterr().err == ""
    say_where_useless([("good", 0.4, 0.5), ("the test rows", 0.63, 0.6)], "Raise it")
    told = capsys.readouterr().err
    assert told.count("worse than none") == 1
    for part in ("the test rows", "0.63", "0.6", "Raise it"):
        assert part in told
