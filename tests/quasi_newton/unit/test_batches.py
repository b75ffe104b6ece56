"""The partition: once a record is in a batch it stays there, and batches that would tell too much are
refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamfl.quasi_newton.rows.batches import (
    FrozenBatches,
    check_batch,
    check_support,
    far_rows,
    least_batch,
    secret_start,
)


def names(first: int, end: int) -> list[str]:
    return [f"customer-{number}" for number in range(first, end)]


def test_new_records_fill_new_batches_and_move_nobody() -> None:
    """Protects labels: the difference of two partitions' gradients is that of the few records that moved."""
    batches = FrozenBatches(10, seed=1)
    assert batches.add(names(0, 25)) == [0, 1]
    before = dict(batches.batches)
    assert batches.waiting == 5
    assert batches.add(names(0, 30)) == [2]
    assert {number: batches.batches[number] for number in before} == before
    assert {name for batch in batches.batches.values() for name in batch} == set(names(0, 30))
    assert all(len(batch) == 10 for batch in batches.batches.values())


def test_parties_that_learn_of_records_in_another_order_have_the_same_batches() -> None:
    """Protects agreement: rows are summed over parties place by place."""
    one, other = FrozenBatches(8, seed=5), FrozenBatches(8, seed=5)
    one.add(names(0, 40))
    other.add(reversed(names(0, 40)))
    assert one.batches == other.batches
    different = FrozenBatches(8, seed=6)
    different.add(names(0, 40))
    assert one.batches != different.batches
    assert one.batches[0] != tuple(names(0, 8))


def test_batches_expire_whole_and_their_records_never_return() -> None:
    """Protects a record that expires: in another batch it would be the difference of two sums."""
    batches = FrozenBatches(5, seed=0)
    batches.add(names(0, 15))
    gone = batches.batches[0]
    assert batches.expire(1) == [0]
    assert list(batches.batches) == [1, 2]
    assert batches.add(gone) == []
    assert batches.waiting == 0
    assert batches.expire(9) == [1, 2]


def test_small_batches_are_refused() -> None:
    """Protects labels from a batch with as many equations as rows."""
    assert least_batch(10) == 256
    assert least_batch(24) == 480
    check_batch(480, 24)
    for rows, columns, least in ((255, 3, 256), (479, 24, 256), (999, 3, 1000)):
        with pytest.raises(ValueError, match="would show labels"):
            check_batch(rows, columns, least)


def test_columns_with_few_members_are_refused() -> None:
    """Protects the one customer with a flag: the column's gradient is that customer's residual."""
    random = np.random.default_rng(0)
    inputs = np.column_stack(
        [random.normal(size=300), np.ones(300), np.zeros(300), np.zeros(300), np.full(300, 2.5)]
    )
    inputs[7, 2] = 1.0
    inputs[:40, 3] = 1.0
    inputs[:9, 4] = random.normal(size=9)
    assert check_support(inputs, 10) == [2, 4]
    assert check_support(inputs, 41) == [2, 3, 4]
    assert check_support(inputs, 1) == []


def hat(inputs: Any, intercept: bool) -> Any:
    """Leverages by the definition, x_i (X'X)^+ x_i'."""
    columns = np.column_stack([inputs, np.ones(len(inputs))]) if intercept else inputs
    return np.diag(columns @ np.linalg.pinv(columns, rcond=1e-12))


@pytest.mark.parametrize("intercept", [False, True])
def test_no_row_is_left_that_stands_out(intercept: bool) -> None:
    """Protects labels: whoever is muted has too large a leverage by the hat matrix in some turn, and nobody
    has who is left."""
    random = np.random.default_rng(0)
    for columns in (1, 4, 9):
        inputs = np.round(np.exp(1.5 * random.normal(size=(400, columns))) * 256) / 256
        far = far_rows(inputs, 0.2, intercept=intercept)
        left, muted = inputs[~far], np.flatnonzero(far)
        assert 0 < len(muted) < 200
        assert hat(left, intercept).max() <= 0.2
        # Turn by turn, as it is told: those that stand out go together.
        seen = np.zeros(400, dtype=bool)
        while (out := hat(inputs[~seen], intercept) > 0.2).any():
            seen[np.flatnonzero(~seen)[out]] = True
        assert np.array_equal(far, seen)


def test_two_columns_that_differ_in_one_row_mute_it() -> None:
    """Protects a label: the difference of two sums is the residual of the one row, however small the
    difference of the columns."""
    random = np.random.default_rng(0)
    inputs = np.round(random.normal(0, 60, size=(1000, 3)) * 256) / 256
    inputs[:, 1] = inputs[:, 0]
    inputs[17, 1] += 1 / 256
    assert check_support(inputs, 10) == []
    for largest in (0.2, 0.9):
        assert np.flatnonzero(far_rows(inputs, largest)).tolist() == [17]
    # A weighted sum of three columns does it as well.
    inputs[:, 1] = random.normal(size=1000)
    inputs[:, 2] = inputs[:, 0] - inputs[:, 1]
    inputs[5, 2] += 0.5
    assert np.flatnonzero(far_rows(inputs, 0.2)).tolist() == [5]


def test_the_intercept_counts() -> None:
    """Protects hosts' outputs: at the guest a column that is 1 but in one row makes, with the ones, this
    row's residual."""
    inputs = np.ones((300, 1))
    inputs[8] = 0.0
    assert not far_rows(inputs, 0.2).any()
    assert np.flatnonzero(far_rows(inputs, 0.2, intercept=True)).tolist() == [8]


def test_nobody_is_muted_where_nobody_stands_out() -> None:
    """Protects accuracy: columns that repeat one another, that are constant or that five rows share are
    learnt from in full."""
    random = np.random.default_rng(0)
    inputs = np.column_stack([random.normal(size=(300, 3)), np.zeros(300), np.full(300, 2.5), np.zeros(300)])
    inputs = np.column_stack([inputs, inputs[:, 0], inputs[:, 1] - inputs[:, 2]])
    inputs[:5, 5] = 1.0
    alone = np.zeros((300, 1))
    alone[:5] = 1.0
    for intercept in (False, True):
        assert not far_rows(inputs[:, [0, 1, 2, 3, 4, 6, 7]], 0.2, intercept=intercept).any()
        assert not far_rows(inputs, 1.0, intercept=intercept).any()
    # Exactly 1 / 5 each: processors that differ in the last bits have to agree.
    assert not far_rows(alone, 0.2).any()
    alone[4] = 0.0
    assert np.flatnonzero(far_rows(alone, 0.2)).tolist() == [0, 1, 2, 3]


def test_muting_ends() -> None:
    """Protects a party from a loop without end: where each turn leaves a new row that stands out, all are
    muted, and that is it."""
    steps = np.diag(2.0 ** -np.arange(40)) + np.diag(np.full(39, 1 / 256), 1)
    for inputs in (
        np.eye(50),
        3.0 ** np.arange(12)[:, np.newaxis],
        steps,
        np.zeros((20, 2)),
        np.zeros((20, 0)),
        np.zeros((0, 3)),
    ):
        far = far_rows(inputs, 1e-3)
        assert np.array_equal(far, inputs.any(axis=1))


def test_first_weights_come_from_the_partys_own_secret() -> None:
    """Protects labels at the first step: weights that peers can compute leave only labels unknown."""
    first = secret_start(b"a" * 32, b"bank/run 1/guest", 12)
    assert (np.abs(first) <= 0.05).all()
    assert np.unique(first).size == 12
    np.testing.assert_array_equal(first, secret_start(b"a" * 32, b"bank/run 1/guest", 12))
    for secret, context in ((b"b" * 32, b"bank/run 1/guest"), (b"a" * 32, b"bank/run 2/guest")):
        assert not np.isin(secret_start(secret, context, 12), first).any()
    with pytest.raises(ValueError, match="too few"):
        secret_start(b"short", b"", 3)
