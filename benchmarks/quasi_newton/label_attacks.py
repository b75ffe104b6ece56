"""Attacks on labels and outputs by what parties are told exactly: gradients over their own columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.attacks import Attack
from benchmarks.quasi_newton.gradient_attacks import (
    HOST,
    Federation,
    columns_of_host,
    explained,
    fixed,
    heard_by_guest,
    heard_of_all,
    label_auc,
    make,
    own_model,
    remainder,
    reshuffled,
    single_difference,
    single_member,
    single_rows,
    small_batches,
)
from benchmarks.quasi_newton.lattice import signs_of_sums
from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.rows.batches import check_support, least_batch, secret_start
from streamfl.quasi_newton.tools.direct import Party, Trace, partition, train

__all__ = [
    "far_out",
    "few_rows",
    "first_gradient",
    "labels_from_first_gradient",
    "lattice",
    "many_gradients",
    "outputs_from_gradients",
]

LEARNING = DescentSettings(batch=100, memory=24)
EPOCHS = 13
FLAG_ROWS, LEAST_SUPPORT, HEAVY_COLUMNS, LARGEST = 1, 10, 10, 0.2


@cache
def federation() -> Federation:
    """1,005 rows at first, so that 5 fill no batch of 100, and 1,300 at the end; ten columns at each
    party."""
    return make()


def _label_auc(traces: Sequence[Trace]) -> float:
    own = federation()
    return label_auc(heard_of_all(traces, own, LEARNING), own.host, own.labels)


def many_gradients(folder: Path) -> Iterator[Attack]:
    """A host solves for the labels by least squares over every gradient that it was ever told."""
    own = federation()
    one_epoch = _label_auc(fixed(own, replace(LEARNING, epochs=1), retrainings=0))
    kept = _label_auc(fixed(own, LEARNING, retrainings=3))
    guess = own_model(own)
    figure, bound = "AUC of labels", one_epoch + 0.02
    anew = _label_auc(reshuffled(own, LEARNING, EPOCHS))
    name = f"every gradient, batches drawn anew in {EPOCHS} epochs"
    yield Attack(name, "a host", figure, anew, "batches are drawn once, for life", kept, bound, guess)
    again = _label_auc(fixed(own, LEARNING, retrainings=3, repartition=True))
    name = "every gradient, batches drawn anew in 3 retrainings"
    yield Attack(name, "a host", figure, again, "batches are drawn once, for life", kept, bound, guess)


def outputs_from_gradients(folder: Path) -> Iterator[Attack]:
    """The mirror: the guest solves for the host's outputs."""
    own = federation()

    def found(traces: Sequence[Trace]) -> float:
        return explained(
            heard_by_guest(traces, own, LEARNING), own.guest, own.host @ traces[-1].weights[HOST][-1]
        )

    anew, kept = found(reshuffled(own, LEARNING, EPOCHS)), found(fixed(own, LEARNING, retrainings=3))
    figure = "share of the host's outputs' variance"
    yield Attack(
        "the host's outputs", "the guest", figure, anew, "batches are drawn once, for life", kept, chance=0.0
    )
    name, hidden = "how many columns the host has", 4
    yield Attack(
        name, "the guest", f"columns found, of {hidden}", float(columns_of_host(own, hidden)), "none", None
    )


def few_rows(folder: Path) -> Iterator[Attack]:
    """Batches, remainders and columns that one visit is enough for."""
    own = federation()
    columns, figure = own.host.shape[1], "share of labels right"
    majority = float(max(np.mean(own.labels > 0), np.mean(own.labels < 0)))
    least = least_batch(columns, least=1)
    name = f"a batch of {columns} rows, {columns} columns"
    protected = small_batches(own, least)
    protection = f"20 rows a column: {least}"
    yield Attack(name, "a host", figure, small_batches(own, columns), protection, protected, chance=majority)
    left = own.kept % LEARNING.batch
    heard = heard_of_all(fixed(own, LEARNING, retrainings=3), own, LEARNING)
    short = [len(rows) for rows in heard.rows if len(rows) < LEARNING.batch]
    name, figure = f"the {left} rows that are left over", "share of their labels found"
    plain, protected = remainder(own, LEARNING.batch), float(bool(short))
    yield Attack(name, "a host", figure, plain, "they wait for a full batch", protected, chance=0.0)
    flags = np.zeros((LEARNING.batch, 1))
    flags[:FLAG_ROWS] = 1.0
    refused = check_support(flags, LEAST_SUPPORT) == [0]
    name, figure, plain = "a flag that one row has", "whether its label is found", float(single_member(own))
    yield Attack(name, "a host", figure, plain, "min_support", float(not refused), chance=0.0)
    # Each of the two columns has support.
    plain, protected = (
        float(single_difference(own, LEAST_SUPPORT, LEARNING.batch, largest)) for largest in (1.0, LARGEST)
    )
    yield Attack(
        "two columns that differ in one row",
        "a host",
        figure,
        plain,
        "largest_leverage",
        protected,
        chance=0.0,
    )


def far_out(folder: Path) -> Iterator[Attack]:
    """Customers with numbers far from all others are nearly alone in a gradient."""
    random = np.random.default_rng(0)
    scores = random.normal(size=(20_000, 2 * HEAVY_COLUMNS))
    chances = 1 / (1 + np.exp(0.4 - scores @ random.normal(0, 0.45, 2 * HEAVY_COLUMNS)))
    inputs, labels = np.exp(1.5 * scores), np.where(random.random(len(scores)) < chances, 1.0, -1.0)
    own = Federation(inputs[:, :HEAVY_COLUMNS], inputs[:, HEAVY_COLUMNS:], labels, len(labels))
    plain = single_rows(own, "standardise", 1000)
    alone = plain.leverages > 0.3
    right, guess = (float(np.mean(signs[alone] == labels[alone])) for signs in (plain.found, plain.own))
    name, figure = "rows far out in a column", "share of their labels right"
    without = single_rows(own, "standardise", 1000, LARGEST)
    protected = float(np.mean(without.found[alone] == labels[alone]))
    yield Attack(name, "a host", figure, right, "largest_leverage", protected, chance=guess)
    for method in ("clip", "rank"):
        with_it = single_rows(own, method, 1000)
        protected = float(np.mean(with_it.found[alone] == labels[alone]))
        yield Attack(
            name, "a host", figure, right, f"preprocessing.method = {method}", protected, chance=guess
        )


def first_gradient(
    rows: int, columns: int, seed: int, start: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], Federation]:
    """A host's inputs as whole numbers, its first X'D less its own part, and the federation.

    start: whether weights begin as the parties' secrets have it, or at 0.
    """
    own = make(rows, rows, columns, seed)
    inputs = kinds(2, rows, rows).inputs.encode(own.host)
    secrets = [seed.to_bytes(31, "big") + bytes([number]) for number in range(2)]
    first = [secret_start(secrets[number], b"credit", columns + 1 - number) for number in range(2)]
    if not start:
        first = [np.zeros_like(weights) for weights in first]
    parties = [Party(own.guest, first[0]), Party(own.host, first[1])]
    trace = train(parties, own.labels, DescentSettings(batch=rows, epochs=1), partition(rows, rows, seed))
    numbers = kinds(2, rows, rows)
    told = numbers.gradients.decode(trace.gradients[HOST][0]) * 2.0**numbers.inputs.fraction_bits
    mine = numbers.inputs.decode(inputs) @ first[1]
    return inputs.astype(np.float64), told - inputs.T @ mine, own


def labels_from_first_gradient(rows: int, columns: int, seed: int, start: bool) -> float:
    """Share of labels that are right; a guess of the commoner label where nothing is found."""
    inputs, told, own = first_gradient(rows, columns, seed, start)
    # The attacker knows how large the guest's outputs are at first: 0.05 and the columns follow from the
    # code.
    error = 0.05 * np.sqrt((columns + 1) / 3 * rows) * 2.0**8 / 2 if start else 0.0
    found = signs_of_sums(inputs, -told / 2, error)
    guess = float(max(np.mean(own.labels > 0), np.mean(own.labels < 0)))
    return guess if found is None else float(np.mean(found == own.labels))


def lattice(folder: Path) -> Iterator[Attack]:
    """From weights of 0 the residuals are -2 y, and a reduced lattice has the labels in it."""
    rows, columns, seeds = 60, 10, range(4)
    plain, protected = (
        float(np.mean([labels_from_first_gradient(rows, columns, seed, start) for seed in seeds]))
        for start in (False, True)
    )
    guess = float(
        np.mean(
            [
                max(np.mean((y := make(rows, rows, columns, seed).labels) > 0), np.mean(y < 0))
                for seed in seeds
            ]
        )
    )
    name = f"the first gradient, {rows} rows, {columns} columns"
    yield Attack(
        name, "a host", "share of labels right", plain, "first weights from a secret", protected, chance=guess
    )
