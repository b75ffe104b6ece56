"""The partition: once a record is in a batch it stays there, and batches that would tell too much are refused."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.quasi_newton.batches import FrozenBatches, check_batch, check_support, least_batch, secret_start


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
    inputs = np.column_stack([random.normal(size=300), np.ones(300), np.zeros(300), np.zeros(300), np.full(300, 2.5)])
    inputs[7, 2] = 1.0
    inputs[:40, 3] = 1.0
    inputs[:9, 4] = random.normal(size=9)
    assert check_support(inputs, 10) == [2, 4]
    assert check_support(inputs, 41) == [2, 3, 4]
    assert check_support(inputs, 1) == []


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
