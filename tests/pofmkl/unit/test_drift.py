"""A client whose errors rise: what it forgets, and that a restart does not show."""

from __future__ import annotations

import numpy as np
import pytest
from pofmkl.unit.test_windowed import assert_same_after_restart, learner, stream, take

from streamfl.kernels import LOGISTIC

CHANGE = 300


@pytest.mark.long
@pytest.mark.parametrize(("cut", "river"), [(345, ()), (400, ("linear", "hoeffding"))])
def test_restored_goes_on_as_if_never_stopped(cut: int, river: tuple[str, ...]) -> None:
    """Protects a restart before a change is found, soon after, and long after: equal bit for bit, and a
    change was found."""
    inputs, labels = stream(samples=450, change=CHANGE)
    assert assert_same_after_restart(inputs, labels, cut, {"river": river, "detector": "adwin"}).drifts >= 2


def test_batch_equals_its_samples_one_by_one() -> None:
    """A change that is found amid a batch must scale the samples behind it as if they had come later."""
    inputs, labels = stream(samples=400, change=CHANGE)
    together, single = learner(detector="adwin"), learner(detector="adwin")
    rows = [[one.borrow(), one.borrow()] for one in (together, single)]
    taken = take(together, rows[0], inputs, labels)
    each = [take(single, rows[1], inputs[:, t : t + 1], labels[:, t : t + 1]) for t in range(labels.shape[1])]
    assert together.drifts == single.drifts >= 2
    np.testing.assert_allclose(
        taken.predictions.reshape(labels.shape),
        np.stack([one.predictions for one in each], axis=1),
        rtol=1e-9,
    )
    np.testing.assert_allclose(
        taken.log_weights_after.reshape(*labels.shape, -1),
        np.stack([one.log_weights_after for one in each], axis=1),
        rtol=1e-6,
    )


def test_label_mean_and_neighbours_follow_a_change_within_fifty_samples() -> None:
    """What the reaction is for: without it the mean of the labels would be a sixth of the way, and neighbours
    of both kinds."""
    inputs, labels = stream(1, CHANGE + 50, change=CHANGE)
    one, other = learner(detector="adwin"), learner(detector="none")
    rows = [one.borrow()], [other.borrow()]
    for t in range(CHANGE + 50):
        for some, row in zip((one, other), rows, strict=True):
            take(some, row, inputs[:, t : t + 1], labels[:, t : t + 1])
        if t == CHANGE - 1:
            assert one.drifts == 0
    assert one.drifts >= 1
    after = labels[0, CHANGE:][np.isfinite(labels[0, CHANGE:])]
    known = one.snapshot(rows[0][0])
    moments = known.moments
    assert moments["label_mean"] == pytest.approx(after.mean(), abs=0.01)
    assert moments["labels"] == moments["kept"] == len(after)
    np.testing.assert_allclose(known.kept_labels[: len(after)], after, rtol=1e-6)
    assert other.snapshot(rows[1][0]).moments["label_mean"] < after.mean() / 2


def test_scale_stays_where_labels_are_as_they_were() -> None:
    """The kernels were trained on the scale: another function of the inputs, at the same level, is no reason
    to change it."""
    inputs, labels = stream(1, CHANGE + 60)
    labels[0, CHANGE:] = 0.6 - labels[0, CHANGE:]
    one = learner(detector="adwin")
    row = one.borrow()
    take(one, [row], inputs, labels)
    assert one.drifts >= 1
    moments = one.snapshot(row).moments
    assert moments["labels"] == np.isfinite(labels).sum()
    assert moments["kept"] == pytest.approx(np.isfinite(labels[0, CHANGE:]).sum(), abs=8)


@pytest.mark.long
def test_no_change_is_found_where_there_is_none() -> None:
    """A false alarm costs what the client knows."""
    inputs, labels = stream(3, 1000)
    one = learner(detector="adwin")
    take(one, [one.borrow() for _ in range(3)], inputs, labels)
    assert one.drifts == 0


def test_change_of_classes_is_found() -> None:
    """The logistic loss has errors of another kind: classes that swap have to be found as well."""
    inputs, labels = stream(1, CHANGE + 100)
    labels = np.where(np.isnan(labels), np.nan, (labels > 0.3).astype(float))
    labels[0, CHANGE:] = 1.0 - labels[0, CHANGE:]
    one = learner(loss=LOGISTIC, detector="adwin")
    row = one.borrow()
    take(one, [row], inputs[:, :CHANGE], labels[:, :CHANGE])
    assert one.drifts == 0
    take(one, [row], inputs[:, CHANGE:], labels[:, CHANGE:])
    assert one.drifts >= 1
