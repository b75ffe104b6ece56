"""Restored clients of the default learner replay their journals together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pofmkl.unit.test_windowed import learner, stream, take

from streamfl.pofmkl.learning import journal_steps
from streamfl.pofmkl.learning.journal_steps import JournalSteps

CLIENTS, AT_ONCE = 10, 5


def test_a_restart_replays_many_clients_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a worker with many clients: its first step after a restart replayed their entries one by one.
    With 20,000 clients the worker was out of its group when that was done, and began anew.

    The state is the same to the last bit, whatever each client's journal holds.
    """
    inputs, labels = stream(CLIENTS, 90)
    one = learner()
    rows = [one.borrow() for _ in range(CLIENTS)]
    remembered: dict[int, dict[bytes, bytes]] = {row: {} for row in rows}
    for number, row in enumerate(rows):
        # Journals of other lengths, some behind a snapshot; some samples have no label.
        stop = 30 + 4 * number
        take(one, [row], inputs[number : number + 1, :stop], labels[number : number + 1, :stop])
        remembered[row] |= one.parts(row)
    counts: Counter[int] = Counter()
    replay = JournalSteps._replay

    def counted(self: JournalSteps, kind: bytes, own: NDArray[np.intp], entry: NDArray[Any]) -> None:
        counts[len(own)] += 1
        replay(self, kind, own, entry)

    monkeypatch.setattr(JournalSteps, "_replay", counted)
    monkeypatch.setattr(journal_steps, "ROWS_AT_ONCE", AT_ONCE)
    together, apart = learner(), learner()
    for other, groups in ((together, [rows]), (apart, [[row] for row in rows])):
        assert [other.borrow() for _ in rows] == rows
        for row in rows:
            for key, value in remembered[row].items():
                other.restore_part(row, key, value)
        counts.clear()
        assert_same(one, other, groups)
        assert max(counts) == min(AT_ONCE, max(map(len, groups)))
        if other is together:
            steps = counts.total()
    assert 2 * steps < counts.total()


def assert_same(one: Any, other: Any, groups: Sequence[Sequence[int]]) -> None:
    for rows in groups:
        np.testing.assert_array_equal(one.sums(rows), other.sums(rows))
        np.testing.assert_array_equal(one.kernel_losses(rows), other.kernel_losses(rows))
        for row in rows:
            np.testing.assert_array_equal(one.weights(row), other.weights(row))
