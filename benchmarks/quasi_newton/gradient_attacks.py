"""``python -m benchmarks.quasi_newton.gradient_attacks``: what parties find out about labels and outputs from gradients, by trying.

A party is told X'D of every batch, over its own columns X, exactly; encryption does not change that. It knows its own outputs, so
it has equations for what is left of D: the other parties' outputs, and the labels. With the attacks here it solves them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from streamfl.learning.accuracy import area_under_curve
from streamfl.quasi_newton.batches import FrozenBatches
from streamfl.quasi_newton.descent import Learning
from streamfl.quasi_newton.fixed_point import Kinds, kinds
from streamfl.quasi_newton.lab.direct import Party, Trace, partition, train

__all__ = ["Equations", "Federation", "fixed", "heard", "make", "reshuffled", "single_member", "solve", "tiny_batches"]

Floats = NDArray[np.float64]
GUEST, HOST = 0, 1
# Ridge terms that an attacker tries; the best counts, though it could not know which that is.
RIDGES = (1e-6, 1e-3, 1e-1, 1.0, 10.0)


@dataclass(frozen=True)
class Federation:
    """A guest and a host with as many columns each.

    labels: -1 and +1. kept: rows that are there at first; the others come later.
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
    """The equations of a run. inputs: of this party, all rows. The intercept's, which the guest has as well, is left out."""
    rounded = numbers.inputs.decode(numbers.inputs.encode(numbers.inputs.clip(inputs)))
    rows = [trace.batches[batch] for batch in trace.visited]
    sums = []
    for iteration, batch in enumerate(rows):
        weights = trace.weights[party][iteration]
        own = rounded[batch] @ weights[: rounded.shape[1]] + (weights[-1] if party == GUEST else 0.0)
        total = numbers.gradients.decode(trace.gradients[party][iteration])[: rounded.shape[1]]
        sums.append(total - rounded[batch].T @ own)
    return Equations(rows, sums)


def fixed(federation: Federation, learning: Learning, retrainings: int = 3, repartition: bool = False) -> list[Trace]:
    """One partition for life: trained, and trained again when records have filled new batches, with a warm start.

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


def reshuffled(federation: Federation, learning: Learning, epochs: int) -> list[Trace]:
    """The mutant: each epoch draws its batches anew, and the rate falls with the epoch."""
    traces: list[Trace] = []
    for epoch in range(epochs):
        now = replace(learning, epochs=1, optimiser="sgd", learning_rate=learning.learning_rate / (1 + 0.5 * epoch))
        rows = partition(len(federation.labels), learning.batch, epoch)
        start = [own[-1] for own in traces[-1].weights] if traces else None
        traces.append(_train(federation, now, rows, start))
    return traces


def _train(federation: Federation, learning: Learning, rows: NDArray[np.intp], start: Sequence[Floats] | None) -> Trace:
    if start is None:
        random = np.random.default_rng(5)
        start = [random.uniform(-0.05, 0.05, federation.guest.shape[1] + 1), random.uniform(-0.05, 0.05, federation.host.shape[1])]
    parties = [Party(federation.guest, start[GUEST]), Party(federation.host, start[HOST])]
    return train(parties, federation.labels, learning, rows, guest=GUEST, numbers=numbers_of(learning))


def numbers_of(learning: Learning) -> Kinds:
    """With 16 bits of inputs: an attacker gets the most exact equations."""
    return kinds(2, learning.batch, learning.batch, input_fraction_bits=16)


def solve(equations: Equations, inputs: Floats, ridge: float) -> Floats:
    """What is left of D of each row, by least squares over all equations: (rows,), NaN for rows that were in no batch.

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


def tiny_batches(federation: Federation) -> float:
    """Share of labels that a host finds with one equation for each row of a batch and one visit: rounds D to its label."""
    columns = federation.host.shape[1]
    learning = Learning(batch=columns, epochs=1, optimiser="sgd", learning_rate=1e-9)
    trace = _train(federation, learning, partition(len(federation.labels), columns, 0), None)
    equations = heard(trace, federation.host, HOST, numbers_of(learning))
    right = []
    for batch, sums in zip(equations.rows, equations.sums, strict=True):
        found = np.linalg.solve(federation.host[batch].T, sums)
        right.append(np.sign(-found) == federation.labels[batch])
    return float(np.mean(right))


def single_member(federation: Federation) -> bool:
    """Whether a host with a flag that one row has finds this row's label after one visit."""
    flagged = federation.host.copy()
    flagged[:, 0] = 0.0
    flagged[17, 0] = 1.0
    learning = Learning(batch=len(flagged), epochs=1)
    trace = _train(replace(federation, host=flagged), learning, partition(len(flagged), len(flagged), 0), None)
    equations = heard(trace, flagged, HOST, numbers_of(learning))
    return bool(np.sign(-equations.sums[0][0]) == federation.labels[17])


@dataclass(frozen=True)
class Finding:
    attack: str
    value: float
    says: str


def findings(batch: int = 100) -> Iterator[Finding]:
    """Each attack once, with a batch that is smaller than what is allowed, so that there is something to find."""
    federation, learning = make(), Learning(batch=batch, memory=24)
    numbers = numbers_of(learning)
    traces = fixed(federation, learning)

    def of_host(runs: Sequence[Trace]) -> Equations:
        return sum((heard(trace, federation.host, HOST, numbers) for trace in runs), Equations([], []))

    one = fixed(federation, replace(learning, epochs=1), retrainings=0)
    yield Finding("labels, host's own model", own_model(federation), "AUC of the best linear model of its columns")
    yield Finding("labels, one epoch", label_auc(of_host(one), federation.host, federation.labels), "AUC, frozen batches")
    yield Finding("labels, first training", label_auc(of_host(traces[:1]), federation.host, federation.labels), "AUC, frozen")
    yield Finding("labels, three retrainings", label_auc(of_host(traces), federation.host, federation.labels), "AUC, frozen")
    anew = of_host(fixed(federation, learning, repartition=True))
    yield Finding("labels, three retrainings with new batches", label_auc(anew, federation.host, federation.labels), "AUC")
    for epochs in (6, 13, 20):
        equations = of_host(reshuffled(federation, learning, epochs))
        yield Finding(f"labels, {epochs} reshuffled epochs", label_auc(equations, federation.host, federation.labels), "AUC")
    outputs = federation.host @ traces[0].model[HOST]
    own = heard(traces[0], federation.guest, GUEST, numbers)
    # The guest knows the labels as well.
    for batch_rows, sums in zip(own.rows, own.sums, strict=True):
        sums += 2 * federation.guest[batch_rows].T @ federation.labels[batch_rows]
    share = explained(own, federation.guest, outputs)
    yield Finding("host's outputs, frozen batches", share, "share of variance found by the guest")
    yield Finding("labels, batches of as many rows as columns", tiny_batches(federation), "share found")
    yield Finding("label of a flag's only member", float(single_member(federation)), "found (1) or not (0)")


def own_model(federation: Federation) -> float:
    """AUC of least squares of the labels on the host's columns, which it could fit if it knew them."""
    columns = np.hstack([federation.host, np.ones((len(federation.host), 1))])
    weights = np.linalg.lstsq(columns, federation.labels, rcond=None)[0]
    return area_under_curve(columns @ weights, (federation.labels > 0).astype(float))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quasi_newton.gradient_attacks", description=__doc__)
    parser.add_argument("--batch", type=int, default=100, help="rows of a batch")
    table = Table("attack", "value", "which is")
    for found in findings(parser.parse_args().batch):
        table.add_row(found.attack, f"{found.value:.3f}", found.says)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
