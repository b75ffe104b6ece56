"""Columns are cut at the range of the rows that are not far out: protection of labels costs no
convergence."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.rows.near_rows import TOLERANCE, far_from_all
from streamfl.quasi_newton.rows.preparation import Preparation
from streamfl.quasi_newton.rows.preprocessing import Method, fit_preprocessing
from streamfl.quasi_newton.rows.training_rows import TrainingRows
from streamfl.quasi_newton.tools.direct import Party, train
from streamfl.state.changelog import ChangedParts

Floats = NDArray[np.float64]
BATCH, BATCHES, LARGEST = 300, 12, 0.2
ROWS = BATCH * BATCHES
KIND = kinds(2, BATCH, BATCH).inputs


def table(seed: int = 0) -> Floats:
    """Like a table of loans: a ratio that is 10,000 in a few rows, and counts with the code 98 in fewer than
    six rows a batch."""
    draws = np.random.default_rng(seed)
    ratio = draws.normal(1.0, 0.3, ROWS)
    ratio[draws.choice(ROWS, 8, replace=False)] = draws.uniform(5e3, 5e4, 8)
    counts = draws.poisson(0.5, (ROWS, 2)).astype(float)
    counts[draws.choice(ROWS, 30, replace=False)] = 98.0
    return np.column_stack([ratio, counts, draws.normal(size=ROWS)])


def rows_of(raw: Floats, largest: float, *, intercept: bool = True) -> TrainingRows:
    found = TrainingRows(
        ChangedParts(),
        ROWS,
        BATCH,
        raw.shape[1],
        KIND,
        2,
        b"s" * 32,
        MemberCounts(),
        largest=largest,
        intercept=intercept,
    )
    found.batches.add([f"e{row}" for row in range(len(raw))], raw, np.zeros(0, np.int8))
    return found


def leverages(columns: Floats, batches: int = 1) -> Floats:
    """x_i (X'X / batches)^+ x_i' from the equation."""
    scaled = columns / np.sqrt(np.mean(columns**2, axis=0))
    inverse = np.linalg.pinv(scaled.T @ scaled / batches, rcond=TOLERANCE, hermitian=True)
    return np.einsum("ij,jk,ik->i", scaled, inverse, scaled)


@pytest.mark.parametrize("intercept", [False, True])
def test_who_is_far_from_all_is_by_the_equation(intercept: bool) -> None:
    """Protects where columns are cut: rows above the bound among all batches together, again without them
    until none is."""
    columns = table()
    whole = np.hstack([columns, np.ones((ROWS, 1))]) if intercept else columns
    far = np.zeros(ROWS, bool)
    while (found := (leverages(np.where(far[:, np.newaxis], 0.0, whole), BATCHES) > LARGEST) & ~far).any():
        far |= found
    assert 8 < far.sum() < 60
    assert np.array_equal(far_from_all(columns, BATCHES, LARGEST, intercept=intercept), far)
    # A column that is another's copy adds a direction of rounding errors, in which every row could be far.
    twice = np.hstack([columns, columns[:, :1] * (1 + 1e-9)])
    assert np.array_equal(far_from_all(twice, BATCHES, LARGEST, intercept=intercept), far)


@pytest.mark.parametrize("method", ["none", "standardise", "signed-log", "clip"])
def test_columns_have_the_range_of_the_rows_that_stay(method: Method) -> None:
    """Protects scoring and training from values that no other row has: they count as the last of the usual
    ones, in both."""
    raw = table()
    preparation = rows_of(raw, LARGEST).prepare(method)
    own = preparation.preprocessing
    assert own.low is not None
    assert own.high is not None
    assert own.high[0] < 3
    assert own.high[1:3].max() < 10
    near = (raw[:, :3] <= own.high[:3]).all(axis=1)
    # The ends are values of rows.
    assert method == "clip" or all(np.isin(own.high, raw)), "ends that no row has"
    assert near.sum() >= ROWS - 120
    result = preparation.apply(raw)
    if method != "none":
        assert np.allclose(result.mean(axis=0), 0)
        assert np.allclose(result.std(axis=0), 1)
    later = np.array([[1e9, 1e9, 98.0, 0.0]])
    assert np.array_equal(preparation.apply(later), preparation.apply(np.clip(later, own.low, own.high)))
    assert np.abs(preparation.apply(later)).max() <= np.abs(result).max()


def test_few_rows_are_muted_and_the_bound_holds() -> None:
    """Protects labels and convergence alike: 38 rows that are far out need not be left out, and nobody is
    above the bound."""
    raw = table()
    rows = rows_of(raw, LARGEST)
    preparation = rows.prepare("standardise")
    inputs, muted = rows.learnt(preparation)
    assert muted.sum() < 12
    for at in range(0, ROWS, BATCH):
        columns = np.hstack([inputs[at : at + BATCH], ~muted[at : at + BATCH, np.newaxis]]).astype(float)
        left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
        assert (left[:, sizes > 1e-12 * sizes[0]] ** 2).sum(axis=1).max() <= LARGEST + 1e-6


def test_the_bound_costs_no_convergence() -> None:
    """Protects trainings with columns as they come: with the bound they did not converge, and outputs were in
    the hundreds."""
    raw, later = table(), table(1)
    weights = np.array([0.0, 0.6, 0.5, 1.0])
    usual = np.clip(raw, None, [3.0, 4.0, 4.0, 9.0])
    signs = np.where(
        np.random.default_rng(2).random(ROWS) < 1 / (1 + np.exp(1.0 - usual @ weights)), 1.0, -1.0
    )
    found = {}
    for largest in (LARGEST, 1.0):
        parties, tests = [], []
        for part, intercept in ((slice(0, 1), True), (slice(1, 4), False)):
            rows = rows_of(raw[:, part], largest, intercept=intercept)
            preparation = rows.prepare("standardise")
            inputs, muted = rows.learnt(preparation)
            parties.append(Party(inputs, muted=muted))
            tests.append(preparation.apply(later[:, part]))
        trace = train(parties, signs, DescentSettings(batch=BATCH), np.arange(ROWS).reshape(BATCHES, BATCH))
        found[largest] = trace
        outputs = trace.outputs(tests)
        if largest < 1:
            assert trace.converged
            assert np.abs(outputs).max() < 10
    assert found[LARGEST].losses[-1] < found[1.0].losses[-1]


@pytest.mark.parametrize("method", ["clip", "quantile-bins"])
def test_ends_are_remembered(method: Method) -> None:
    """Protects scores after a restart: what restores is what was fitted; what an earlier release fitted has
    no ends."""
    raw = table()
    for made in (rows_of(raw, LARGEST).prepare(method), Preparation(fit_preprocessing(method, raw), [0, 1])):
        again = Preparation.decode(made.encode())
        assert again.encode() == made.encode()
        assert np.array_equal(again.apply(raw), made.apply(raw))
        assert (again.preprocessing.low is None) == (made.preprocessing.low is None)


def test_without_a_bound_nothing_is_cut() -> None:
    """Protects who takes the bound off: columns stay as they come."""
    raw = table()
    usual = Preparation(fit_preprocessing("standardise", raw), [0, 1, 2, 3])
    assert rows_of(raw, 1.0).prepare("standardise").encode() == usual.encode()
