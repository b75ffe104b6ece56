"""Attacks on labels and outputs by what parties are told exactly: gradients over their own columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.attacks import Attack
from benchmarks.commands import Floats
from benchmarks.quasi_newton.gradient_attacks import (
    GUEST,
    HOST,
    Federation,
    columns_of_host,
    explained,
    fixed,
    heard,
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

LEARNING = DescentSettings(batch=100, memory=24)
EPOCHS, FROZEN = 13, "batches are drawn once, for life"
FLAG_ROWS, LEAST_SUPPORT, HEAVY_COLUMNS, LARGEST = 1, 10, 10, 0.2


@cache
def federation() -> Federation:
    """1,005 rows at first, so that 5 fill no batch of 100, and 1,300 at the end; ten columns at each
    party."""
    return make()


def _label_auc(traces: Sequence[Trace]) -> float:
    own = federation()
    return label_auc(heard(traces, own, LEARNING), own.host, own.labels)


def many_gradients(folder: Path) -> Iterator[Attack]:
    """A host solves for the labels by least squares over every gradient that it was ever told."""
    own = federation()
    one_epoch = _label_auc(fixed(own, replace(LEARNING, epochs=1), retrainings=0))
    kept = _label_auc(fixed(own, LEARNING, retrainings=3))
    guess = own_model(own)
    for times, traces in (
        (f"{EPOCHS} epochs", reshuffled(own, LEARNING, EPOCHS)),
        ("3 retrainings", fixed(own, LEARNING, retrainings=3, repartition=True)),
    ):
        name, found = f"every gradient, batches drawn anew in {times}", _label_auc(traces)
        yield Attack(name, "a host", "AUC of labels", found, FROZEN, kept, one_epoch + 0.02, guess)


def outputs_from_gradients(folder: Path) -> Iterator[Attack]:
    """The mirror: the guest solves for the host's outputs."""
    own = federation()

    def found(traces: Sequence[Trace]) -> float:
        outputs = own.host @ traces[-1].weights[HOST][-1]
        return explained(heard(traces, own, LEARNING, GUEST), own.guest, outputs)

    anew, kept = found(reshuffled(own, LEARNING, EPOCHS)), found(fixed(own, LEARNING, retrainings=3))
    figure = "share of the host's outputs' variance"
    yield Attack("the host's outputs", "the guest", figure, anew, FROZEN, kept, chance=0.0)
    name, hidden = "how many columns the host has", 4
    found_columns = float(columns_of_host(own, hidden))
    yield Attack(name, "the guest", f"columns found, of {hidden}", found_columns, "none", None)


def few_rows(folder: Path) -> Iterator[Attack]:
    """Batches, remainders and columns that one visit is enough for."""
    own = federation()
    columns, figure = own.host.shape[1], "share of labels right"
    least = least_batch(columns, least=1)
    name = f"a batch of {columns} rows, {columns} columns"
    protected = small_batches(own, least)
    protection = f"20 rows a column: {least}"
    yield Attack(
        name, "a host", figure, small_batches(own, columns), protection, protected, chance=own.majority
    )
    left = own.kept % LEARNING.batch
    told = heard(fixed(own, LEARNING, retrainings=3), own, LEARNING)
    short = [rows for rows in told.rows if len(rows) < LEARNING.batch]
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
    name = "two columns that differ in one row"
    yield Attack(name, "a host", figure, plain, "largest_leverage", protected, chance=0.0)


def far_out(folder: Path) -> Iterator[Attack]:
    """Customers with numbers far from all others are nearly alone in a gradient."""
    random = np.random.default_rng(0)
    scores = random.normal(size=(20_000, 2 * HEAVY_COLUMNS))
    chances = 1 / (1 + np.exp(0.4 - scores @ random.normal(0, 0.45, 2 * HEAVY_COLUMNS)))
    inputs, labels = np.exp(1.5 * scores), np.where(random.random(len(scores)) < chances, 1.0, -1.0)
    own = Federation(inputs[:, :HEAVY_COLUMNS], inputs[:, HEAVY_COLUMNS:], labels, len(labels))
    plain = single_rows(own, "standardise", 1000)
    alone = plain.leverages > 0.3

    def right(signs: Floats) -> float:
        return float(np.mean(signs[alone] == labels[alone]))

    name, figure = "rows far out in a column", "share of their labels right"
    for protection, protected in (
        ("largest_leverage", single_rows(own, "standardise", 1000, LARGEST)),
        ("preprocessing.method = clip", single_rows(own, "clip", 1000)),
        ("preprocessing.method = rank", single_rows(own, "rank", 1000)),
    ):
        found, guess = right(protected.found), right(plain.own)
        yield Attack(name, "a host", figure, right(plain.found), protection, found, chance=guess)


def first_gradient(rows: int, columns: int, seed: int, start: bool) -> tuple[Floats, Floats, Federation]:
    """A host's inputs as whole numbers, its first X'D less its own part, and the federation.

    start: whether weights begin as the parties' secrets have it, or at 0.
    """
    own = make(rows, rows, columns, seed)
    numbers = kinds(2, rows, rows)
    inputs = numbers.inputs.encode(own.host)
    secrets = [seed.to_bytes(31, "big") + bytes([number]) for number in range(2)]
    first = [
        secret_start(secret, b"credit", columns + 1 - number) * start for number, secret in enumerate(secrets)
    ]
    parties = [Party(own.guest, first[0]), Party(own.host, first[1])]
    trace = train(parties, own.labels, DescentSettings(batch=rows, epochs=1), partition(rows, rows, seed))
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
    return own.majority if found is None else float(np.mean(found == own.labels))


def lattice(folder: Path) -> Iterator[Attack]:
    """From weights of 0 the residuals are -2 y, and a reduced lattice has the labels in it."""
    rows, columns, seeds = 60, 10, range(4)
    plain, protected = (
        float(np.mean([labels_from_first_gradient(rows, columns, seed, start) for seed in seeds]))
        for start in (False, True)
    )
    guess = float(np.mean([make(rows, rows, columns, seed).majority for seed in seeds]))
    name = f"the first gradient, {rows} rows, {columns} columns"
    figure, protection = "share of labels right", "first weights from a secret"
    yield Attack(name, "a host", figure, plain, protection, protected, chance=guess)
