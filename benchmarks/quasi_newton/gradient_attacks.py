"""What parties find out about labels and outputs from gradients, by trying.

A party is told X'D of every batch, over its own columns X, exactly; encryption does not change that. It knows
its own outputs, so it has equations for what is left of D: the other parties' outputs, and the labels. With
the attacks here it solves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.commands import Floats
from benchmarks.quasi_newton.parties import muted
from streamfl.learning.accuracy import area_under_curve
from streamfl.quasi_newton.encryption.fixed_point import Kinds, kinds
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.rows.batches import FrozenBatches, check_support
from streamfl.quasi_newton.rows.preprocessing import Method, fit_preprocessing
from streamfl.quasi_newton.tools.direct import Party, Trace, partition, train

GUEST, HOST = 0, 1
# Ridge terms that an attacker tries; the best counts, though it could not know which that is.
RIDGES = (1e-6, 1e-3, 1e-1, 1.0, 10.0)
# The row that a column tells apart.
MEMBER = 17


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

    @property
    def majority(self) -> float:
        """Share of labels that a guess of the commoner one gets right."""
        return float(max(np.mean(self.labels > 0), np.mean(self.labels < 0)))


@dataclass(frozen=True)
class Equations:
    """What a party heard: by batch visited, its rows, and X'D without the part of its own outputs."""

    rows: list[NDArray[np.intp]]
    sums: list[Floats]

    def shortest(self, inputs: Floats) -> list[Floats]:
        """By batch, the shortest D that fits."""
        return [
            np.asarray(np.linalg.lstsq(inputs[rows].T, sums, rcond=None)[0], np.float64)
            for rows, sums in zip(self.rows, self.sums, strict=True)
        ]


def make(rows: int = 1_300, kept: int = 1_005, columns: int = 10, seed: int = 0) -> Federation:
    """Normal columns, labels by a logistic model of all of them."""
    random = np.random.default_rng(seed)
    whole = random.normal(size=(rows, 2 * columns))
    scores = whole @ random.normal(0, 0.45, 2 * columns) - 0.4
    labels = np.where(random.random(rows) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    return Federation(whole[:, :columns], whole[:, columns:], labels, kept)


def heard(
    traces: Sequence[Trace], federation: Federation, learning: DescentSettings, party: int = HOST
) -> Equations:
    """A party's equations of all runs. The intercept's, which the guest has as well, is left out, and so are
    the guest's own labels: X_B'u_A is left to it."""
    inputs, numbers = (federation.guest, federation.host)[party], _numbers(learning)
    rounded = numbers.inputs.decode(numbers.inputs.encode(numbers.inputs.clip(inputs)))
    columns, found = inputs.shape[1], Equations([], [])
    for trace in traces:
        told = zip(trace.visited, trace.weights[party], trace.gradients[party], strict=False)
        for batch, weights, gradient in told:
            rows = trace.batches[batch]
            own = rounded[rows] @ weights[:columns] + (weights[-1] if party == GUEST else 0.0)
            sums = numbers.gradients.decode(gradient)[:columns] - rounded[rows].T @ own
            if party == GUEST:
                sums = sums + 2 * inputs[rows].T @ federation.labels[rows]
            found.rows.append(rows)
            found.sums.append(sums)
    return found


def heard_once(federation: Federation, learning: DescentSettings, batches: NDArray[np.intp]) -> Equations:
    """The host's equations of one training on these batches."""
    return heard([_train(federation, learning, batches, None)], federation, learning)


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
        random, host = np.random.default_rng(5), federation.host.shape[1]
        start = [random.uniform(-0.05, 0.05, size) for size in (federation.guest.shape[1] + 1, host)]
    parties = [Party(federation.guest, start[GUEST]), Party(federation.host, start[HOST])]
    numbers = _numbers(learning)
    return train(parties, federation.labels, learning, rows, guest=GUEST, numbers=numbers)


def _numbers(learning: DescentSettings) -> Kinds:
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


def _best(
    equations: Equations, inputs: Floats, truth: Floats, judged: Callable[[Floats, Floats], float]
) -> float:
    """What the best of the ridge terms finds of the truth of each row."""
    found = (solve(equations, inputs, ridge) for ridge in RIDGES)
    return max(judged(one[np.isfinite(one)], truth[np.isfinite(one)]) for one in found)


def label_auc(equations: Equations, inputs: Floats, labels: Floats) -> float:
    """AUC of the labels: 0.5 is nothing found out, 1 everything."""
    ones = (labels > 0).astype(float)
    return _best(equations, inputs, ones, lambda found, own: area_under_curve(-found, own))


def explained(equations: Equations, inputs: Floats, outputs: Floats) -> float:
    """Share of the variance of the others' outputs that is found."""
    return _best(equations, inputs, outputs, lambda found, own: float(np.corrcoef(found, own)[0, 1]) ** 2)


def small_batches(federation: Federation, size: int) -> float:
    """Share of labels that a host finds by one visit to each batch of so many rows: the shortest D that fits,
    and its signs."""
    learning = DescentSettings(batch=size, epochs=1, optimiser="sgd", learning_rate=1e-9)
    equations = heard_once(federation, learning, partition(len(federation.labels), size, 0))
    right = [
        np.mean(np.sign(-found) == federation.labels[rows])
        for rows, found in zip(equations.rows, equations.shortest(federation.host), strict=True)
    ]
    return float(np.mean(right))


def remainder(federation: Federation, size: int) -> float:
    """Share of the labels found by the mutant's host, of the rows that fill no batch and are learnt from in
    one of their own."""
    batches = FrozenBatches(size, seed=1)
    filled = batches.add(str(row) for row in range(federation.kept))
    told = {int(name) for number in filled for name in batches.batches[number]}
    rest = np.array([row for row in range(federation.kept) if row not in told], dtype=np.intp)
    equations = heard_once(federation, DescentSettings(batch=len(rest), epochs=1), rest[np.newaxis])
    [found] = equations.shortest(federation.host)
    return float(np.mean(np.sign(-found) == federation.labels[rest]))


def columns_of_host(federation: Federation, columns: int) -> int:
    """How many columns the guest finds that the host has: X_B'X_A w_A of one batch, at all weights w_A that
    it had."""
    own = replace(federation, host=federation.host[:, :columns])
    learning = DescentSettings(batch=500, memory=24, epochs=20, tolerance=0.0)
    equations = heard(fixed(own, learning, retrainings=0), own, learning, GUEST)
    pairs = zip(equations.rows, equations.sums, strict=True)
    sums = [total for rows, total in pairs if np.array_equal(rows, equations.rows[0])]
    sizes = np.linalg.svd(np.array(sums), compute_uv=False)
    # Beyond them is what rounding leaves.
    return int(1 + np.argmax(sizes[:-1] / np.maximum(sizes[1:], 1e-12)))


def single_member(federation: Federation) -> bool:
    """Whether a host with a flag that one row has finds this row's label after one visit."""
    flagged = federation.host.copy()
    flagged[:, 0] = 0.0
    flagged[MEMBER, 0] = 1.0
    rows, learning = len(flagged), DescentSettings(batch=len(flagged), epochs=1)
    equations = heard_once(replace(federation, host=flagged), learning, partition(rows, rows, 0))
    return bool(np.sign(-equations.sums[0][0]) == federation.labels[MEMBER])


def single_difference(federation: Federation, least: int, batch: int, largest: float = 1.0) -> bool:
    """Whether a host with two columns that differ in one row finds this row's label after one visit to all
    batches.

    least: support that each column has to have in each batch, or it is left out.
    largest: leverage of a row.
    """
    doubled = federation.host.copy()
    doubled[:, 1] = doubled[:, 0]
    doubled[MEMBER, 1] += 1.0
    batches = partition(len(doubled), batch, 0)
    if any(check_support(doubled[one], least) for one in batches):
        return False
    doubled[muted(doubled, batches, largest)] = 0.0
    own = replace(federation, host=doubled)
    equations = heard_once(own, DescentSettings(batch=batch, epochs=1), batches)
    pairs = zip(equations.rows, equations.sums, strict=True)
    told = next(sums[1] - sums[0] for rows, sums in pairs if MEMBER in rows)
    return bool(np.sign(-told) == federation.labels[MEMBER])


@dataclass(frozen=True)
class Single:
    """What a host finds of single rows by one visit to each batch.

    leverages: how much of a gradient can be a row's alone, 0 to 1, (rows,).
    found, own: signs by the gradients, and by its own model, (rows,).
    """

    leverages: Floats
    found: Floats
    own: Floats


def single_rows(federation: Federation, method: Method, batch: int, largest: float = 1.0) -> Single:
    """The best weighted sum of columns for each row, on which the row stands out as far as it can.

    method: of preprocessing, at both.
    largest: leverage of a row. The attacker begins from its own model of labels, which it can fit if it knew
    them.
    """
    guest, raw = (
        fit_preprocessing(method, inputs).apply(inputs) for inputs in (federation.guest, federation.host)
    )
    batches, host = partition(len(raw), batch, 0), raw.copy()
    host[muted(raw, batches, largest)] = 0.0
    prepared = replace(federation, guest=guest, host=host)
    equations = heard_once(prepared, DescentSettings(batch=batch, epochs=1), batches)
    own = own_outputs(replace(federation, host=raw))
    leverages, found = np.zeros(len(host)), own.copy()
    for rows, sums in zip(equations.rows, equations.sums, strict=True):
        inverse = np.linalg.pinv(host[rows])
        leverages[rows] = np.einsum("rc,cr->r", host[rows], inverse)
        rest = inverse.T @ (sums + 2 * host[rows].T @ own[rows])
        found[rows] -= rest / np.maximum(leverages[rows], 1e-9) / 2
    return Single(leverages, np.sign(found), np.sign(own))


def own_outputs(federation: Federation) -> Floats:
    """Least squares of the labels on the host's columns, which it could fit if it knew them: (rows,)."""
    columns = np.hstack([federation.host, np.ones((len(federation.host), 1))])
    return np.asarray(columns @ np.linalg.lstsq(columns, federation.labels, rcond=None)[0])


def own_model(federation: Federation) -> float:
    """AUC of that."""
    return area_under_curve(own_outputs(federation), (federation.labels > 0).astype(float))
