"""What the active party counts of its predictions once their labels come."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from fdskl.laws.closed_loop import ClosedLoop
from fdskl.makers import settings_of

from streamfl.fdskl.learning.labelled import LabelledEntities
from streamfl.fdskl.learning.losses import LOGISTIC, SQUARE, MarginLoss
from streamfl.fdskl.party.figures import ActiveFigures
from streamfl.fdskl.predicting.prequential_totals import FEWEST, PrequentialTotals, measure_totals, of_no_use
from streamfl.state.changelog import ChangedParts

OUTPUTS = np.array([0.4, -1.3, 0.2, 2.0, -0.1, 0.7])
SIGNS = np.array([1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
NUMBERS = np.array([0.1, -0.9, 0.3, 0.8, 0.0, 0.6])


def measured(loss: MarginLoss, labels: np.ndarray) -> dict[str, float]:  # type: ignore[type-arg]
    figures, totals = ActiveFigures(loss), PrequentialTotals()
    for output, label in zip(OUTPUTS.tolist(), labels.tolist(), strict=True):
        totals.score(figures.score(output, label), label)
    return {one.name: one.value for one in figures.measure([totals], 0, 0, 0, 0, 0)}


def test_losses_of_classes_are_added_up() -> None:
    """Protects boards: loss, share of right predictions and regret are of the same predictions, against odds
    of two to one."""
    found = measured(LOGISTIC, SIGNS)
    lost = np.log(1 + np.exp(-SIGNS * OUTPUTS)).sum()
    assert found["scored"] == 6
    assert found["right_predictions"] == 4
    assert found["loss_sum"] == pytest.approx(lost)
    assert found["regret"] == pytest.approx(lost + 4 * np.log(4 / 6) + 2 * np.log(2 / 6))
    assert "squared_error_sum" not in found


def test_losses_of_numbers_are_added_up() -> None:
    """Protects boards: the best constant is the mean, and what it loses is the labels' variance."""
    found = measured(SQUARE, NUMBERS)
    lost = np.square(OUTPUTS - NUMBERS).sum()
    assert found["loss_sum"] == found["squared_error_sum"] == pytest.approx(lost)
    assert found["regret"] == pytest.approx(lost - 6 * NUMBERS.var())
    assert "right_predictions" not in found


def test_squared_errors_are_in_the_labels_own_unit() -> None:
    """Protects who reads an error: labels of 0 to 20 have the squared error of their own unit, and losses
    stay scaled."""
    active = ActiveFigures(SQUARE, 20.0)
    active.score(0.5, 0.25)
    found = {one.name: one.value for one in active.measure([PrequentialTotals()], 0, 0, 0, 0, 0)}
    assert found["squared_error_sum"] == pytest.approx(5.0**2)
    assert found["loss_sum"] == pytest.approx(0.25**2)


def test_rounds_that_timed_out_have_the_name_of_all_systems() -> None:
    """Protects the board of service health: a round that was too slow is counted as every system counts one,
    others are not."""
    loop = ClosedLoop([settings_of(f"p{number}", 2) for number in range(2)])
    for number in range(3):
        loop.write_sample(f"e{number}", float(number))
    loop.settle()
    for number in range(3):
        loop.write_label(f"e{number}", float(number % 2))
    for _ in range(3):
        loop.step(0, 1000)
        loop.now += 21.0
    figures = {(one.name, one.labels): one.value for one in loop.active.measure()}
    assert figures["timed_out_rounds", ()] == figures["abandoned_rounds", (("reason", "timeout"),)] == 2


def test_a_whole_life_is_taken_back() -> None:
    """Protects the board after a restart: what was lost, and the best constant of all labels, are those of
    the whole life."""
    parts = ChangedParts()
    before = LabelledEntities(parts, 10)
    for number, (output, label) in enumerate(zip(OUTPUTS.tolist(), SIGNS.tolist(), strict=True)):
        before.score(float(LOGISTIC.value(output, label)), label)
        before.add(f"e{number}", label)
    again = ChangedParts()
    after = LabelledEntities(again, 10)
    counts = dict(parts.changed_state())[b"labels"]
    assert counts is not None
    again.restore(b"labels", counts)
    found = {one.name: one.value for one in measure_totals([after.totals], LOGISTIC)}
    lost = np.log(1 + np.exp(-SIGNS * OUTPUTS)).sum()
    assert found["lifetime_labels"] == 6
    assert found["lifetime_loss"] == pytest.approx(lost)
    assert found["regret"] == pytest.approx(lost + 4 * np.log(4 / 6) + 2 * np.log(2 / 6))


def test_a_release_before_takes_back_what_it_knows() -> None:
    """Protects a roll-back: the sums stand behind what a release without them reads, and such a release's
    state is taken too."""

    class Before(msgspec.Struct, array_like=True):
        labels: int = 0
        fresh: int = 0

    parts = ChangedParts()
    entities = LabelledEntities(parts, 10)
    entities.score(0.5, 1.0)
    entities.add("e", 1.0)
    counts = dict(parts.changed_state())[b"labels"]
    assert counts is not None
    assert msgspec.msgpack.decode(counts, type=Before) == Before(1, 1)
    parts.restore(b"labels", msgspec.msgpack.encode(Before(3, 2)))
    assert (entities.labels, entities.totals) == (3, PrequentialTotals())


def test_sums_stay_where_they_can_be_taken_back() -> None:
    """Protects a worker from state that it cannot read: whatever labels and outputs are, a sum that is
    remembered is a number."""
    totals = PrequentialTotals()
    for _ in range(3):
        totals.score(4e300, -1e150)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(totals), type=PrequentialTotals) == totals


@pytest.mark.parametrize("loss", [LOGISTIC, SQUARE])
def test_predictions_that_a_constant_beats_are_of_no_use(loss: MarginLoss) -> None:
    """Protects operators from a model that is worse than none, and from a warning about few labels, or about
    one that is better."""
    labels = np.where(np.arange(FEWEST) % 4 < 3, 1.0, -1.0)
    mean, odds = labels.mean(), np.log(3.0)
    best = float(loss.value(odds if loss is LOGISTIC else mean, labels).sum())
    for worse in (0.99, 1.01):
        totals = PrequentialTotals(FEWEST, worse * best, float(labels.sum()), float(np.square(labels).sum()))
        told = of_no_use(totals, loss)
        assert (told is None) == (worse < 1)
        if told is not None:
            assert f"{best / FEWEST:.4g}" in told
    assert of_no_use(PrequentialTotals(FEWEST - 1, 1e9, 0.0, FEWEST - 1.0), loss) is None


def test_the_active_party_says_that_its_model_is_of_no_use() -> None:
    """Protects the log of a running federation: with each iteration it says what `simulate` would have
    said."""
    loop = ClosedLoop([settings_of(f"p{number}", 2) for number in range(2)])
    for number in range(3):
        loop.write_sample(f"e{number}", float(number))
    loop.settle()
    totals = loop.active.active_partition(0).labelled.totals
    totals.labels, totals.loss = FEWEST, 1e6
    for number in range(3):
        loop.write_label(f"e{number}", float(number % 2))
    loop.settle()
    assert loop.active.active_partition(0).model.version == 1
    assert [
        "worse than none" in one.text for one in loop.active.notices() if one.reason == "worse_than_mean"
    ] == [True]


def test_the_predictions_of_version_0_are_not_held_against_the_model() -> None:
    """Protects whoever has predictions long before the first label from the warning that the model is worse
    than none: these predictions were made by none."""
    loop = ClosedLoop([settings_of(f"p{number}", 2) for number in range(2)])
    for number in range(5):
        if number == 3:
            assert loop.active.active_partition(0).model.version == 1
        loop.write_sample(f"e{number}", float(number))
        loop.settle()
        loop.write_label(f"e{number}", float(number % 2))
        loop.settle()
    found = {one.name: one.value for one in loop.active.measure()}
    assert (found["scored"], found["lifetime_labels"]) == (5, 2)
