"""What parties find out about labels and outputs from gradients, by trying.

A party is told X'D of every batch, over its own columns X, exactly; encryption does not change that. It knows
its own outputs, so it has equations for what is left of D: the other parties' outputs, and the labels. With
the attacks here it solves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamfl.learning.accuracy import area_under_curve
from streamfl.quasi_newton.encryption.fixed_point import Kinds, kinds
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.rows.batches import FrozenBatches, check_support, far_rows
from streamfl.quasi_newton.rows.preprocessing import Method, fit_preprocessing
from streamfl.quasi_newton.tools.direct import Party, Trace, partition, train

__all__ = [
    "GUEST",
    "HOST",
    "Equations",
    "Federation",
    "columns_of_host",
    "explained",
    "fixed",
    "heard",
    "heard_by_guest",
    "heard_of_all",
    "label_auc",
    "make",
    "numbers_of",
    "own_model",
    "remainder",
    "reshuffled",
    "single_difference",
    "single_member",
    "single_rows",
    "small_batches",
    "solve",
]

Floats = NDArray[np.float64]
GUEST, HOST = 0, 1
# Ridge terms that an attacker tries; the best counts, though it could not know which that is.
RIDGES = (1e-6, 1e-3, 1e-1, 1.0, 10.0)


@dataclass(frozen=True)
class Federation:
    """A guest and a host with as many columns each.

    labels: -1 and +1.
    kept: rows that are there at first; the others come later.
    """

    guest: Floats
    host: Floats
    labels: Floats
    kept: int


@dataclass(frozen=True)
class Equations:
    """What a party heard: by batch visited, its rows, and X'D without the part of its own outputs."""

    rows: list[NDArray[np.intp]]
    sums: list[Floats]

    def __add__(self, other: Equations) -> Equations:
        return Equations(self.rows + other.rows, self.sums + other.sums)


def make(rows: int = 1_300, kept: int = 1_005, columns: int = 10, seed: int = 0) -> Federation:
    """Normal columns, labels by a logistic model of all of them."""
    random = np.random.default_rng(seed)
    whole = random.normal(size=(rows, 2 * columns))
    scores = whole @ random.normal(0, 0.45, 2 * columns) - 0.4
    labels = np.where(random.random(rows) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    return Federation(whole[:, :columns], whole[:, columns:], labels, kept)


def heard(trace: Trace, inputs: Floats, party: int, numbers: Kinds) -> Equations:
    """The equations of a run. inputs: of this party, all rows. The intercept's, which the guest has as well,
    is left out."""
    rounded = numbers.inputs.decode(numbers.inputs.encode(numbers.inputs.clip(inputs)))
    rows = [trace.batches[batch] for batch in trace.visited]
    sums = []
    for iteration, batch in enumerate(rows):
        weights = trace.weights[party][iteration]
        own = rounded[batch] @ weights[: rounded.shape[1]] + (weights[-1] if party == GUEST else 0.0)
        total = numbers.gradients.decode(trace.gradients[party][iteration])[: rounded.shape[1]]
        sums.append(total - rounded[batch].T @ own)
    return Equations(rows, sums)


def fixed(
    federation: Federation, learning: DescentSettings, retrainings: int = 3, repartition: bool = False
) -> list[Trace]:
    """One partition for life: trained, and trained again when records have filled new batches, with a warm
    start.

    Rows that fill no batch wait. The oldest batch goes at each retraining.

    repartition: the mutant that draws all batches anew at each retraining.
    """
    batches = FrozenBatches(learning.batch, seed=1)
    ends = np.linspace(federation.kept, len(federation.labels), retrainings + 1).astype(int)
    traces: list[Trace] = []
    known = 0
    for number, end in enumerate(ends):
        batches.add(str(row) for row in range(known, end))
        known = int(end)
        if number and repartition:
            batches = FrozenBatches(learning.batch, seed=1 + number)
            batches.add(str(row) for row in range(known))
        elif number:
            batches.expire(1)
        rows = np.array([[int(name) for name in batch] for batch in batches.batches.values()], dtype=np.intp)
        traces.append(_train(federation, learning, rows, traces[-1].model if traces else None))
    return traces


def reshuffled(federation: Federation, learning: DescentSettings, epochs: int) -> list[Trace]:
    """The mutant: each epoch draws its batches anew, and the rate falls with the epoch."""
    traces: list[Trace] = []
    for epoch in range(epochs):
        now = replace(
            learning, epochs=1, optimiser="sgd", learning_rate=learning.learning_rate / (1 + 0.5 * epoch)
        )
        rows = partition(len(federation.labels), learning.batch, epoch)
        start = [own[-1] for own in traces[-1].weights] if traces else None
        traces.append(_train(federation, now, rows, start))
    return traces


def _train(
    federation: Federation, learning: DescentSettings, rows: NDArray[np.intp], start: Sequence[Floats] | None
) -> Trace:
    if start is None:
        random = np.random.default_rng(5)
        start = [
            random.uniform(-0.05, 0.05, (columns,))
            for columns in (federation.guest.shape[1] + 1, federation.host.shape[1])
        ]
    parties = [Party(federation.guest, start[GUEST]), Party(federation.host, start[HOST])]
    return train(parties, federation.labels, learning, rows, guest=GUEST, numbers=numbers_of(learning))


def numbers_of(learning: DescentSettings) -> Kinds:
    """With 16 bits of inputs: an attacker gets the most exact equations."""
    return kinds(2, learning.batch, learning.batch, input_fraction_bits=16)


def solve(equations: Equations, inputs: Floats, ridge: float) -> Floats:
    """What is left of D of each row, by least squares over all equations: (rows,), NaN for rows that were in
    no batch.

    It is taken as the same at all visits, which it is but for the other parties' steps.
    """
    rows = len(inputs)
    normal, right, seen = np.zeros((rows, rows)), np.zeros(rows), np.zeros(rows, dtype=bool)
    for batch, sums in zip(equations.rows, equations.sums, strict=True):
        own = inputs[batch]
        normal[np.ix_(batch, batch)] += own @ own.T
        right[batch] += own @ sums
        seen[batch] = True
    found = np.linalg.solve(normal + ridge * np.eye(rows), right)
    return np.where(seen, found, np.nan)


def label_auc(equations: Equations, inputs: Floats, labels: Floats) -> float:
    """AUC of the labels by the best of the ridge terms: 0.5 is nothing found out, 1 everything."""
    best = 0.0
    for ridge in RIDGES:
        found = solve(equations, inputs, ridge)
        seen = np.isfinite(found)
        best = max(best, area_under_curve(-found[seen], (labels[seen] > 0).astype(float)))
    return best


def explained(equations: Equations, inputs: Floats, outputs: Floats) -> float:
    """Share of the variance of the others' outputs that is found, by the best of the ridge terms."""
    best = 0.0
    for ridge in RIDGES:
        found = solve(equations, inputs, ridge)
        seen = np.isfinite(found)
        best = max(best, float(np.corrcoef(found[seen], outputs[seen])[0, 1]) ** 2)
    return best


def small_batches(federation: Federation, size: int) -> float:
    """Share of labels that a host finds by one visit to each batch of so many rows: the shortest D that fits,
    and its signs."""
    learning = DescentSettings(batch=size, epochs=1, optimiser="sgd", learning_rate=1e-9)
    trace = _train(federation, learning, partition(len(federation.labels), size, 0), None)
    equations = heard(trace, federation.host, HOST, numbers_of(learning))
    right = []
    for batch, sums in zip(equations.rows, equations.sums, strict=True):
        found = np.linalg.lstsq(federation.host[batch].T, sums, rcond=None)[0]
        right.append(np.mean(np.sign(-found) == federation.labels[batch]))
    return float(np.mean(right))


def remainder(federation: Federation, size: int) -> float:
    """Share of the labels found by the mutant's host, of the rows that fill no batch and are learnt from in
    one of their own."""
    batches = FrozenBatches(size, seed=1)
    filled = batches.add(str(row) for row in range(federation.kept))
    told = {int(name) for number in filled for name in batches.batches[number]}
    rest = np.array([row for row in range(federation.kept) if row not in told], dtype=np.intp)
    learning = DescentSettings(batch=len(rest), epochs=1)
    equations = heard(
        _train(federation, learning, rest[np.newaxis], None), federation.host, HOST, numbers_of(learning)
    )
    found = np.linalg.lstsq(federation.host[rest].T, equations.sums[0], rcond=None)[0]
    return float(np.mean(np.sign(-found) == federation.labels[rest]))


def columns_of_host(federation: Federation, columns: int) -> int:
    """How many columns the guest finds that the host has: X_B'X_A w_A of one batch, at all weights w_A that
    it had."""
    host = federation.host[:, :columns]
    own = replace(federation, host=host)
    learning = DescentSettings(batch=500, memory=24, epochs=20, tolerance=0.0)
    equations = heard_by_guest(fixed(own, learning, retrainings=0), own, learning)
    first = equations.rows[0]
    sums = [
        total
        for rows, total in zip(equations.rows, equations.sums, strict=True)
        if np.array_equal(rows, first)
    ]
    sizes = np.linalg.svd(np.array(sums), compute_uv=False)
    # Beyond them is what rounding leaves.
    return int(1 + np.argmax(sizes[:-1] / np.maximum(sizes[1:], 1e-12)))


def single_member(federation: Federation) -> bool:
    """Whether a host with a flag that one row has finds this row's label after one visit."""
    flagged = federation.host.copy()
    flagged[:, 0] = 0.0
    flagged[17, 0] = 1.0
    learning = DescentSettings(batch=len(flagged), epochs=1)
    trace = _train(
        replace(federation, host=flagged), learning, partition(len(flagged), len(flagged), 0), None
    )
    equations = heard(trace, flagged, HOST, numbers_of(learning))
    return bool(np.sign(-equations.sums[0][0]) == federation.labels[17])


def single_difference(federation: Federation, least: int, batch: int, largest: float = 1.0) -> bool:
    """Whether a host with two columns that differ in one row finds this row's label after one visit to all
    batches.

    least: support that each column has to have in each batch, or it is left out.
    largest: leverage of a row.
    """
    doubled = federation.host.copy()
    doubled[:, 1] = doubled[:, 0]
    doubled[17, 1] += 1.0
    rows = partition(len(doubled), batch, 0)
    if any(check_support(doubled[one], least) for one in rows):
        return False
    own, learning = muted(doubled, rows, largest), DescentSettings(batch=batch, epochs=1)
    equations = heard(
        _train(replace(federation, host=own), learning, rows, None), own, HOST, numbers_of(learning)
    )
    told = [
        sums[1] - sums[0]
        for batch_rows, sums in zip(equations.rows, equations.sums, strict=True)
        if 17 in batch_rows
    ]
    return bool(np.sign(-told[0]) == federation.labels[17])


@dataclass(frozen=True)
class Single:
    """What a host finds of single rows by one visit to each batch.

    leverages: how much of a gradient can be a row's alone, 0 to 1, (rows,).
    found, own: signs by the gradients, and by its own model, (rows,).
    """

    leverages: Floats
    found: Floats
    own: Floats


def muted(inputs: Floats, rows: NDArray[np.intp], largest: float) -> Floats:
    """A host's columns with zeros in rows whose leverage is larger. rows: of each batch."""
    own = inputs.copy()
    for batch in rows:
        own[batch[far_rows(own[batch], largest)]] = 0.0
    return own


def single_rows(federation: Federation, method: Method, batch: int, largest: float = 1.0) -> Single:
    """The best weighted sum of columns for each row, on which the row stands out as far as it can.

    method: of preprocessing, at both.
    largest: leverage of a row. The attacker begins from its own model of labels, which it can fit if it knew
    them.
    """
    guest, raw = (
        fit_preprocessing(method, inputs).apply(inputs) for inputs in (federation.guest, federation.host)
    )
    batches, learning = partition(len(raw), batch, 0), DescentSettings(batch=batch, epochs=1)
    host = muted(raw, batches, largest)
    prepared = Federation(guest, host, federation.labels, federation.kept)
    equations = heard(_train(prepared, learning, batches, None), host, HOST, numbers_of(learning))
    columns = np.hstack([raw, np.ones((len(raw), 1))])
    own = columns @ np.linalg.lstsq(columns, federation.labels, rcond=None)[0]
    leverages, found = np.zeros(len(host)), own.copy()
    for rows, sums in zip(equations.rows, equations.sums, strict=True):
        inverse = np.linalg.pinv(host[rows])
        leverages[rows] = np.einsum("rc,cr->r", host[rows], inverse)
        rest = inverse.T @ (sums + 2 * host[rows].T @ own[rows])
        found[rows] -= rest / np.maximum(leverages[rows], 1e-9) / 2
    return Single(leverages, np.sign(found), np.sign(own))


def heard_of_all(traces: Sequence[Trace], federation: Federation, learning: DescentSettings) -> Equations:
    """The host's equations of several runs."""
    numbers = numbers_of(learning)
    return sum((heard(trace, federation.host, HOST, numbers) for trace in traces), Equations([], []))


def heard_by_guest(traces: Sequence[Trace], federation: Federation, learning: DescentSettings) -> Equations:
    """What is left of the guest's gradients without its own outputs and labels: X_B'u_A of each batch
    visited."""
    equations = sum(
        (heard(trace, federation.guest, GUEST, numbers_of(learning)) for trace in traces), Equations([], [])
    )
    sums = [
        total + 2 * federation.guest[rows].T @ federation.labels[rows]
        for rows, total in zip(equations.rows, equations.sums, strict=True)
    ]
    return Equations(equations.rows, sums)


def own_model(federation: Federation) -> float:
    """AUC of least squares of the labels on the host's columns, which it could fit if it knew them."""
    columns = np.hstack([federation.host, np.ones((len(federation.host), 1))])
    weights = np.linalg.lstsq(columns, federation.labels, rcond=None)[0]
    return area_under_curve(columns @ weights, (federation.labels > 0).astype(float))
