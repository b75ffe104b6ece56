"""Weight of evidence as a guest's preprocessing, from the setting to scores, against NumPy written out from
the formula."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.laws.scoring import predictions, scored
from quasi_newton.laws.test_closed_loop import assert_equals_direct, trained
from quasi_newton.makers import problem

Floats = NDArray[np.float64]
EVIDENCE: dict[str, Any] = {"preprocessing": {"method": "weight-of-evidence"}}
ROWS, COLUMNS, LEAST = 900, 3, 50
QUANTUM = 1 / 64


@pytest.fixture(name="loop", scope="module")
def _loop() -> ClosedLoop:
    return trained(1, rows=ROWS, **EVIDENCE)


def table(loop: ClosedLoop, rows: int = ROWS) -> tuple[list[int], Floats, Floats]:
    """Numbers of the entities that were learnt from, all columns of guest and host, and labels."""
    inputs, labels = problem(rows, 2 * COLUMNS, seed=3)
    return [int(name.removeprefix("customer ")) for name in loop.party("g").learnt], inputs, labels


def weights(column: Floats, labels: Floats, cuts: Floats) -> Floats:
    """log of the share of all label 1 that is in a bin, less that of label -1, with half a row more; of bins
    from below."""
    bins = np.array(
        [np.sum(column[:, np.newaxis] >= cuts, axis=1) == number for number in range(len(cuts) + 1)]
    )
    ones, zeros = (np.sum(bins & (labels == label), axis=1) for label in (1.0, -1.0))
    assert min(*ones, *zeros) >= LEAST
    return np.asarray(np.log((ones + 0.5) / (ones.sum() + 0.5)) - np.log((zeros + 0.5) / (zeros.sum() + 0.5)))


def test_the_guest_learns_from_weights_of_its_bins(loop: ClosedLoop) -> None:
    """Protects the setting: the guest's columns are weights by the formula of exactly the rows of batches;
    the host's are not."""
    numbers, inputs, labels = table(loop)
    party = loop.party("g")
    assert party.trained is not None
    found, learnt = party.trained.preparation.preprocessing, party.rows.learnt()[0]
    assert len(numbers) >= 700
    for column in range(COLUMNS):
        raw, cuts = inputs[numbers, column], found.edges[column]
        assert len(cuts) > 1
        shown = weights(raw, labels[numbers], cuts)[np.sum(raw[:, np.newaxis] >= cuts, axis=1)]
        expected = (shown - shown.mean()) / shown.std()
        # Rows that are too far out add nothing, as with any method.
        there = learnt.any(axis=1)
        assert there.mean() > 0.9
        np.testing.assert_allclose(learnt[there, column], expected[there], atol=1e-12)
    host = loop.party("h1").trained
    assert host is not None
    assert host.preparation.preprocessing.method == "standardise"
    assert not host.preparation.preprocessing.values


def test_the_training_is_the_arithmetic_and_outlives_a_restart(loop: ClosedLoop) -> None:
    """Protects what is learnt: the same bits as without roles; a new process scores with the same weights of
    bins."""
    assert_equals_direct(loop)
    before = loop.party("g").trained
    loop.restart("g")
    again = loop.party("g").trained
    assert before is not None
    assert again is not None
    _, inputs, _ = table(loop)
    raw = inputs[:, :COLUMNS].copy()
    raw[::7, 1] = np.nan
    np.testing.assert_array_equal(again.outputs(raw), before.outputs(raw))
    # No number was missing in training: nothing is known of such rows.
    assert all(own[-1] == 0.0 for own in again.preparation.preprocessing.values)
    assert dataclasses.asdict(again.inputs) == dataclasses.asdict(before.inputs)


def test_scores_are_of_weights_of_bins() -> None:
    """Protects whoever is scored: the output is the guest's weighed bins and the host's columns, each by its
    weights."""
    loop = scored(1, rows=ROWS, **EVIDENCE)
    guest, host = (loop.party(name).trained for name in ("g", "h1"))
    assert guest is not None
    assert host is not None
    numbers, inputs, labels = table(loop)
    found, total = guest.preparation.preprocessing, np.full(ROWS, guest.weights[-1])
    for column, weight in enumerate(guest.weights[:-1]):
        cuts = found.edges[column]
        own = weights(inputs[numbers, column], labels[numbers], cuts)
        shown = own[np.sum(inputs[:, [column]] >= cuts, axis=1)]
        of_rows = shown[numbers]
        total += weight * (shown - of_rows.mean()) / of_rows.std()
    learnt = inputs[numbers, COLUMNS:]
    # None of these rows is far out: the host's columns are cut at the range of all of them.
    cut = np.clip(inputs[:, COLUMNS:], learnt.min(axis=0), learnt.max(axis=0))
    total += (cut - learnt.mean(axis=0)) / learnt.std(axis=0) @ host.weights
    outputs = {one["entity"]: one["output"] for one in predictions(loop)}
    assert len(outputs) > 800
    # Half a quantum of the host, and inputs that are rounded to 1/256.
    allowed = QUANTUM / 2 + (np.abs(guest.weights).sum() + np.abs(host.weights).sum()) / 256
    for entity, output in outputs.items():
        assert abs(output - total[int(entity.removeprefix("customer "))]) < allowed
