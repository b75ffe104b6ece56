"""The reference of the federated forest: an example to check by hand, and what must hold of any rules.

If the reference is wrong, the forest's spec in docs/forest.md is written from figures that no role will
reach.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

# The benchmarks are programs beside the package. They are not installed with it.
sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.forest import messages
from benchmarks.forest.cells import Stream
from benchmarks.forest.reference import Forest
from benchmarks.forest.rules import Rules, uniform
from benchmarks.forest.study import Alarm, grow
from benchmarks.forest.tables import INPUTS, LABEL, Tables, shares

Floats = NDArray[np.float64]
SMALL = Rules(trees=3)


def stream(clients: int = 5, rounds: int = 60, seed: int = 0) -> Stream:
    generator = np.random.default_rng(seed)
    inputs = generator.uniform(size=(clients, rounds, 3))
    labels = np.where(inputs[..., 0] > 0.5, 0.9, 0.1) + 0.05 * generator.normal(size=(clients, rounds))
    return Stream(inputs, labels, labels, np.ones(labels.shape, np.bool_))


def in_rounds(forest: Forest, rounds: int) -> Floats:
    clients = np.arange(len(forest.labels))
    found = np.empty((len(clients), rounds))
    for t in range(rounds):
        found[:, t] = forest.predict(t, clients)
        forest.learn(t, clients, np.full(len(clients), t))
    return found


def test_an_example_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients, two rounds, one tree: x = .1, .7, .9, .3 with labels 0, 1, 1, 0, and thresholds .2, .5, .8
    to choose from.

    Gains S_R^2 / n_R + S_L^2 / n_L - S^2 / n, with S = 2 and n = 4, so S^2 / n = 1:
        .2: right .3 .7 .9, sum 2: 4/3 + 0/1 - 1 = 1/3     .5: right .7 .9, sum 2: 4/2 + 0/2 - 1 = 1
        .8: right .9, sum 1: 1/1 + 1/3 - 1 = 1/3
    So the cell splits at .5, and its parts are worth 0 and 1.
    """
    thresholds = np.full(32, 2.0)
    thresholds[:3] = 0.2, 0.5, 0.8

    def candidates(_tables: Tables, code: NDArray[np.int64], *_: object) -> tuple[NDArray[np.int64], Floats]:
        return np.zeros((len(code), 32), np.int64), np.tile(thresholds, (len(code), 1))

    monkeypatch.setattr(Tables, "candidates", candidates)
    inputs = np.array([[0.1, 0.9, 0.2], [0.7, 0.3, 0.8]])[..., None]
    labels = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    lags = np.zeros(labels.shape, np.int64)
    forest = Forest(inputs, labels, Rules(trees=1, least=4), 0, lags, lags)
    clients = np.arange(2)
    assert np.isnan(forest.predict(0, clients)).all()  # No label is known, so the tree has no value yet.
    forest.learn(0, clients, np.array([0, 0]))
    # A client's item is one bit a candidate: .1 is above no threshold, .7 above .2 and .5. Two items split
    # nothing.
    assert forest.stored[1].tolist() == [0b000, 0b011]
    assert (
        forest.bytes_up[:, 0].tolist() == [8 + 2 + 10] * 2
    )  # The first labels have four bytes: their range is not known.
    assert forest.predict(1, clients) == pytest.approx(
        [0.5, 0.5], abs=1e-4
    )  # The mean of the two labels, as 16-bit codes.
    forest.learn(1, clients, np.array([1, 1]))
    assert forest.stored[1].tolist() == [0b000, 0b011, 0b111, 0b001]
    assert forest.bytes_up[:, 1].tolist() == [8 + 2 + 7] * 2
    # Labels lie in .5 - 4 ... .5 + 4, so their codes are 143.4 and 111.6, each plus what client and sample
    # draw, and cut.
    assert np.rint((forest.stored[2][2:] + 3.5) / 8 * 255).tolist() == [143, 111]
    assert (forest.cells.size, forest.cells["threshold"][0]) == (3, np.float32(0.5))
    assert forest.cells["items"][:3].tolist() == [4, 2, 2]
    # x = .2 and .8 fall into its two parts. A label's code is exact to a 255th of the range, 8 deviations to
    # each side of the mean.
    step = (forest.tables.label_high - forest.tables.label_low) / 255
    np.testing.assert_allclose(forest.predict(2, clients), [0.0, 1.0], atol=step)


def test_the_bytes_of_messages() -> None:
    """The examples of docs/forest.md."""
    first = messages.items(0, 1, False, [(0, [(0, 0b011, 1.0)])])
    assert first.hex(" ") == "02 01 00 00 01 00 01 00 00 00 00 00 03 00 00 00 00 00 80 3f"
    second = messages.items(0, 2, True, [(0, [(0, 0b001, 111)])])
    assert second.hex(" ") == "01 02 00 00 01 00 01 00 00 00 00 00 01 00 00 00 6f"
    record = messages.block([1, *[255] * 6], [(1, 1, 1, 2, 0b000, 0b110)])
    assert record.hex(" ") == "01 01 ff ff ff ff ff ff 01 01 01 00 01 02 00 00 00 00 00 06 00 00 00"
    assert (len(first), len(second)) == (
        messages.ITEMS + messages.RUN + messages.FIRST_ITEM, messages.ITEMS + messages.RUN + messages.ITEM,
    )  # fmt: skip
    assert len(record) == messages.BLOCK - messages.KEY + messages.PART


def test_a_stranger_draws_the_numbers_of_the_page() -> None:
    assert uniform(0, 0) == pytest.approx(0.106833342799175, abs=1e-15)
    assert uniform(7, 1, 2, 3) == pytest.approx(0.157337039773229, abs=1e-15)
    tables = Tables(2, 1, Rules(), 0)
    tables.low, tables.high = np.array([-0.5]), np.array([float(np.float32(1.3))])
    uncut = np.full((1, 1), np.inf, np.float32)
    feature, threshold = tables.candidates(np.array([0]), np.array([0]), -uncut, uncut)
    assert set(feature[0].tolist()) == {0}
    np.testing.assert_allclose(
        threshold[0, :4].astype(np.float32), [1.2859396, 0.83362967, 0.8057461, -0.46874297], rtol=1e-7
    )


def test_no_prediction_knows_its_label_or_a_later_one() -> None:
    changed = stream().labels.copy()
    changed[:, 30:] = 0.5
    before = grow(stream(), SMALL, 0).predictions[0]
    after = grow(replace(stream(), labels=changed, told=changed), SMALL, 0).predictions[0]
    assert np.array_equal(before[:, :31], after[:, :31], equal_nan=True)
    assert not np.array_equal(before[:, 31:], after[:, 31:])


def test_no_client_knows_of_a_label_before_it_has_gone_up_and_down() -> None:
    """Else the figures under lag are of a server that knows what no server can know yet."""
    up, down, when = 3, 2, 4
    told = stream().labels.copy()
    told[0, when] = 3.0
    before = grow(stream(), SMALL, 0, up=up, down=down).predictions[0, 1:]
    after = grow(replace(stream(), labels=told, told=told), SMALL, 0, up=up, down=down).predictions[0, 1:]
    heard = when + up + down + 1
    assert np.array_equal(before[:, :heard], after[:, :heard], equal_nan=True)
    assert not np.array_equal(before[:, heard:], after[:, heard:], equal_nan=True)
    inputs = stream().inputs.copy()
    inputs[0, when] = 3.0
    after = grow(replace(stream(), inputs=inputs), SMALL, 0, up=up, down=down).predictions[0, 1:]
    assert np.array_equal(
        before[:, : heard - 1], after[:, : heard - 1], equal_nan=True
    )  # They are told before the label.


def test_a_liar_that_speaks_first_sets_no_range() -> None:
    """The others' labels come a round later. A range made of the liar's alone would cut all of them to one
    number."""
    honest = stream(clients=20)
    told = honest.labels.copy()
    told[0] = 1e6
    late = np.ones(told.shape, np.int64)
    late[0] = 0
    forest = grow(replace(honest, told=told), SMALL, 0, late=late).forests[0]
    assert forest.tables.ranges[1][0] == 1  # The pass in which the others' labels came.
    for _, low, high in forest.tables.ranges[1:]:
        assert -10 < low < 0.1 < 0.9 < high < 10
    found = grow(replace(honest, told=told), SMALL, 0, late=late).predictions[0, 1:]
    assert np.nanmax(np.abs(found)) < 10


def test_one_client_counts_no_more_than_most() -> None:
    tables = Tables(5, 1, Rules(), 0)
    clients = np.array([0] * 1000 + [1, 2, 3, 4] * 3)
    labels = np.where(clients == 0, 0.7, clients / 10)[:, None]
    tables.note(LABEL, clients, labels, np.zeros(len(clients), np.int64))
    tables.note(INPUTS, clients, labels, np.zeros(len(clients), np.int64))
    tables.take(0)
    tables.renew(0)
    assert tables.mean == pytest.approx((0.7 + 0.1 + 0.2 + 0.3 + 0.4) / 5)


def test_no_feature_holds_more_than_its_share() -> None:
    np.testing.assert_allclose(shares(np.array([97.0, 1, 1, 1, 0, 0]), 0.25), [0.25, 0.25, 0.25, 0.25, 0, 0])
    np.testing.assert_allclose(
        shares(np.array([97.0, 1, 0, 0, 0, 0]), 0.25), [0.25, 0.25, 0.125, 0.125, 0.125, 0.125]
    )
    np.testing.assert_allclose(shares(np.array([60.0, 20, 12, 8]), 0.4), [0.4, 0.3, 0.18, 0.12])
    np.testing.assert_allclose(
        shares(np.array([9.0, 1]), 0.25), [0.5, 0.5]
    )  # Two features cannot keep to a quarter.


def test_one_client_moves_the_tables_little() -> None:
    generator = np.random.default_rng(0)
    inputs, labels = generator.normal(size=(20, 40, 2)), generator.normal(size=(20, 40))

    def of(inputs: Floats, labels: Floats) -> Tables:
        tables = Tables(40, 2, Rules(), 0)
        for row, column in zip(inputs, labels, strict=True):
            tables.note(INPUTS, np.arange(40), row, np.zeros(40, np.int64))
            tables.note(LABEL, np.arange(40), column[:, None], np.zeros(40, np.int64))
        tables.take(0)
        tables.renew(0)
        return tables

    honest = of(inputs, labels)
    labels[:, 7], inputs[:, 7] = 1e6, -1e6
    lied = of(inputs, labels)
    assert lied.label_high - lied.label_low < 1.3 * (honest.label_high - honest.label_low)
    assert (lied.high - lied.low < 1.3 * (honest.high - honest.low)).all()


@pytest.mark.parametrize("large", [1, 30])
def test_one_client_raises_no_alarm(large: int) -> None:
    """Not even where one honest client's losses are always large: then the next largest loss is no bound."""
    generator = np.random.default_rng(0)
    honest, lied, risen = Alarm(), Alarm(), Alarm()
    alarms = [False, False, False]
    for number in range(300):
        losses = generator.exponential(size=40)
        losses[1] *= large
        one, all_of_them = losses.copy(), losses.copy()
        if number >= 150:
            one[0], all_of_them = 1e6, 5 * losses
        for place, (alarm, seen) in enumerate(((honest, losses), (lied, one), (risen, all_of_them))):
            alarms[place] |= alarm.rises(seen)
    assert alarms == [False, False, True]


def test_a_client_holds_no_more_weight_than_its_labels_allow() -> None:
    forged = replace(stream(rounds=100), forger="items")
    share = {}
    for claim in (2.0, float("inf")):
        forest = grow(forged, replace(SMALL, claim=claim, doubt=float("inf")), 0).forests[0]
        stored = forest.stored
        version = forest.blocks["version"][forest.cells["block"][stored[0]]]
        share[claim] = np.bincount(version[stored[4] == 4], stored[3][stored[4] == 4]).max()
    assert share[2.0] <= 2 * 100 + 1 / 0.02 < share[float("inf")]


def test_a_client_whose_labels_nobody_confirms_is_not_believed() -> None:
    honest = stream(clients=10)
    told = honest.labels.copy()
    told[9] *= -20
    forest = grow(replace(honest, told=told), SMALL, 0).forests[0]
    mean = forest.guard.sums / forest.guard.counts
    assert mean[9] > 4 * np.median(mean) > mean[:9].max()
    believing = grow(replace(honest, told=told), replace(SMALL, doubt=float("inf")), 0).forests[0]
    assert (forest.stored[4] == 9).sum() < 0.3 * (
        believing.stored[4] == 9
    ).sum()  # Those that came before it was judged.


def test_a_client_that_makes_up_items_costs_the_others_little() -> None:
    long = stream(clients=20, rounds=100)
    forged = replace(long, forger="items")
    errors = []
    for given, rules in (
        (long, SMALL),
        (forged, SMALL),
        (forged, replace(SMALL, doubt=float("inf"), claim=float("inf"))),
    ):
        found = grow(given, rules, 0, alarm=False).predictions[0, :19, 20:]
        errors.append(np.square(found - long.labels[:19, 20:]).mean())
    assert errors[1] - errors[0] < 0.5 * (errors[2] - errors[0])
