"""A training computed again in plain NumPy, from its trace alone: Yang et al. 2019, equations (2) to (8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quasi_newton.simulated import NAMES, ROWS, TEST, THREE, TWO, Line

Floats = NDArray[np.float64]
RATE, LONGEST, FREEZE, TOLERANCE, MEMORY, EVERY, PENALTY = 0.4, 0.1, 1e-3, 1e-5, 3, 2, 0.01


class Again:
    """The algorithm over the joined columns, with H as a matrix."""

    def __init__(
        self, columns: Floats, intercept: int, labels: Floats, start: Floats, curvature: bool
    ) -> None:
        self.columns, self.labels, self.weights = columns, labels, start
        self.penalties = np.full(len(start), PENALTY)
        self.penalties[intercept] = 0.0
        self.curvature, self.frozen = curvature, False
        self.iterates: list[Floats] = []
        self.kept: list[tuple[Floats, Floats]] = []
        self.offered: list[tuple[int, bool, Floats, Floats]] = []
        self.losses: list[float] = []

    def inverse_hessian(self) -> Floats:
        """(8), from s's / s'v of the newest pair on."""
        size = len(self.weights)
        if not self.kept:
            return np.eye(size)
        s, v = self.kept[-1]
        matrix = (s @ s) / (s @ v) * np.eye(size)
        for s, v in self.kept:
            left = np.eye(size) - np.outer(s, v) / (s @ v)
            matrix = left @ matrix @ left.T + np.outer(s, s) / (s @ v)
        return np.asarray(matrix)

    def iterate(self, rows: NDArray[np.intp]) -> None:
        own, signs = self.columns[rows], self.labels[rows]
        outputs = own @ self.weights
        self.losses.append(float(np.mean(np.log(2) - signs * outputs / 2 + outputs**2 / 8)))
        gradient = (
            np.mean((outputs / 4 - signs / 2)[:, np.newaxis] * own, axis=0) + self.penalties * self.weights
        )
        step = RATE * self.inverse_hessian() @ gradient
        self.weights = self.weights - step * min(1.0, LONGEST / np.linalg.norm(step))
        self.iterates.append(self.weights)
        taken = len(self.iterates)
        if taken % EVERY or taken < 2 * EVERY or not self.curvature or self.frozen:
            return
        s = np.mean(self.iterates[-EVERY:], axis=0) - np.mean(self.iterates[-2 * EVERY : -EVERY], axis=0)
        v = np.mean((own @ s / 4)[:, np.newaxis] * own, axis=0) + self.penalties * s
        usable = bool(s @ v >= 1e-4 * (s @ s) and v @ v <= 1e6 * (s @ v))
        self.offered.append((taken, usable, s, v))
        if usable:
            self.kept = [*self.kept, (s, v)][-MEMORY:]


@pytest.mark.parametrize(("parties", "optimiser"), [(THREE, "quasi-newton"), (TWO, "sgd")])
def test_a_training_follows_from_its_trace(line: Line, parties: list[str], optimiser: str) -> None:
    """Protects whoever checks a run: columns, labels, batches and first weights are all that weights, pairs,
    losses, the model and predictions depend on, by the paper's equations, whoever has the columns. Hidden
    numbers come to the same (laws/test_closed_loop.py).
    """
    # One row stands out at the guest, another at a host: their columns are cut there, and none has to be left
    # out.
    line.frame.loc[3, "age"] += 9.0
    line.frame.loc[8, "visits"] += 36.0
    more = '[preprocessing]\nmethod = "standardise"\n'
    found, trace = line.traced(parties=parties, learning=f'optimiser = "{optimiser}"', more=more)
    parts, muted, raw = [], [], line.frame
    for number, party in enumerate(parties):
        own = trace[f"inputs/{party}"]
        parts += [np.hstack([own, np.ones((ROWS, 1))]) if number == 0 else own]
        muted += [np.where(trace[f"muted/{party}"][:, np.newaxis], 0.0, parts[-1])]
    assert [np.flatnonzero(trace[f"muted/{party}"]).tolist() for party in parties] == [[]] * len(parties)
    columns, learnt, near = np.hstack(parts), int(trace["entities"]), np.delete(np.arange(ROWS), [3, 8])
    names = [*NAMES[:4], "parcels", "returns"] if parties == THREE else NAMES
    for number, name in enumerate(names):
        # Each column is the file's, up to a mean, a deviation and rounding, and where a later row is cut.
        assert np.corrcoef(columns[near, number + (number >= 2)], raw[name][near])[0, 1] == pytest.approx(
            1.0, abs=1e-3
        )
    np.testing.assert_array_equal(trace["labels"], np.where(raw["y"] == 1, 1, -1))
    batches = trace["batches"]
    assert learnt == ROWS - TEST
    assert (batches.shape, len(set(batches.ravel().tolist()))) == ((5, 100), 500)
    assert batches.max() < learnt
    joined = {
        key: np.hstack([trace[f"{key}/{party}"] for party in parties])
        for key in ("weights", "steps", "curvatures")
    }
    again = Again(np.hstack(muted), 2, trace["labels"], joined["weights"][0], optimiser == "quasi-newton")
    epochs: list[float] = []
    for number in trace["visited"].tolist():
        again.iterate(batches[number])
        if len(again.iterates) % len(batches) == 0:
            epochs.append(float(np.mean(again.losses[-len(batches) :])))
            change = abs(epochs[-1] - epochs[-2]) if len(epochs) > 1 else np.inf
            again.frozen = bool(change < FREEZE)
            # It is over where the rule says, and nowhere else: 400 iterations of five batches are 80 epochs.
            assert (change < TOLERANCE or len(epochs) == 80) == (len(again.iterates) == len(trace["visited"]))
    close: dict[str, Any] = {"rtol": 0, "atol": 2e-5}
    np.testing.assert_allclose(joined["weights"][1:], again.iterates, **close)
    np.testing.assert_allclose(trace["batch_losses"], again.losses, **close)
    np.testing.assert_allclose(trace["losses"], epochs, **close)
    assert trace["pairs"].tolist() == [[taken, usable] for taken, usable, _, _ in again.offered]
    assert (len(again.offered) > 3) == (optimiser == "quasi-newton")
    for at, (_, _, s, v) in enumerate(again.offered):
        np.testing.assert_allclose(joined["steps"][at], s, **close)
        np.testing.assert_allclose(joined["curvatures"][at], v, **close)
    model = np.mean(again.iterates[-len(batches) :], axis=0)
    np.testing.assert_allclose(np.hstack([trace[f"model/{party}"] for party in parties]), model, **close)
    np.testing.assert_allclose(trace["predictions"], columns[learnt:] @ model, atol=2e-4)
    assert (found["epochs"], found["iterations"]) == (len(epochs), len(again.iterates))
