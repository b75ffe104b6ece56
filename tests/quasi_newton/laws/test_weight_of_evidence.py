"""Weight of evidence as a guest's preprocessing, from the setting to scores, against NumPy written out from
the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.laws.test_closed_loop import trained
from quasi_newton.makers import problem

Floats = NDArray[np.float64]
EVIDENCE: dict[str, Any] = {"preprocessing": {"method": "weight-of-evidence"}}
ROWS, COLUMNS, LEAST = 900, 3, 50


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


def test_the_guest_learns_from_weights_of_its_bins() -> None:
    """Protects the setting: the guest's columns are weights by the formula of exactly the rows of batches;
    the host's are not."""
    loop = trained(1, rows=ROWS, **EVIDENCE)
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
