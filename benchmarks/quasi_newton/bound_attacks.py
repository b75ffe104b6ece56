"""Attacks by members that change the program: numbers beyond the public bounds, and others in the place of
sums."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.attacks import Attack
from benchmarks.quasi_newton.attacked import key_of
from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.learning.descent import Descent, DescentSettings
from streamfl.quasi_newton.learning.own_columns import PRODUCTS, check_sums
from streamfl.quasi_newton.learning.taylor import loss_from_products
from streamfl.quasi_newton.training.coordinator import UNTOLD

ROWS, COLUMNS, TRIES = 100, 10, 100
NUMBERS = kinds(2, ROWS, ROWS)
UNIT = 2.0**NUMBERS.inner_products.fraction_bits
# An output is read if it is found to within this.
CLOSE = 1e-3
OFFSET = 1 << 60


def numbers_beyond_the_bounds(folder: Path) -> Iterator[Attack]:
    """A host tells outputs that are many times the bound, with random signs: does the guest take the sums
    that come of them?"""
    key, random = key_of(512).public, np.random.default_rng(6)
    packing, kind = Packing(key, NUMBERS.gradients), NUMBERS.gradients
    for bits in (0, 4, 10, 20):
        taken, bounded = 0, 0
        for _ in range(TRIES):
            inputs = NUMBERS.inputs.encode(random.normal(size=(ROWS, COLUMNS)))
            labels = NUMBERS.labels.encode(random.choice([-1.0, 1.0], ROWS))
            own = NUMBERS.inner_products.encode(random.normal(0, 0.5, ROWS)) - 2 * labels
            told = random.choice([-1, 1], ROWS) * NUMBERS.inner_products.largest * 2**bits
            sums = [int(one) for one in inputs.T.astype(object) @ (own + told).astype(object)]
            # What is decrypted is this modulo n, whatever the slots can hold.
            packed = [
                sum(one << (place * packing.width) for place, one in enumerate(sums[at : at + packing.slots]))
                % int(key.n)
                for at in range(0, COLUMNS, packing.slots)
            ]
            try:
                found = packing.unpack(packed, COLUMNS)
                taken += 1
                check_sums(found, inputs, own, NUMBERS.inner_products.largest, kind)
                bounded += 1
            except BadRecord:
                continue
        name = f"outputs of 2^{bits} times the bound" if bits else "made-up outputs at the bound"
        figure = f"share of {TRIES} batches that the guest takes"
        yield Attack(
            name, "a host that cheats", figure, taken / TRIES, "sums bounded by own columns", bounded / TRIES
        )


def others_in_the_place_of_sums(folder: Path) -> Iterator[Attack]:
    """A guest has outputs of the host decrypted in the place of inner products, and reads them in the
    coordinator's decision."""
    one, two = (int(number) for number in NUMBERS.inner_products.encode(np.array([0.731, -1.417])))
    descent = Descent(DescentSettings(batch=ROWS))
    # In the place of the loss: the two beside one another, and a constant that keeps it within its bounds.
    products = PRODUCTS.decode(np.array([2**56, one + (two << 30) + OFFSET], dtype=object))
    descent.check_step(products, 2 * NUMBERS.inner_products.bound)
    read = []
    for told in (loss_from_products(float(products[-1])), UNTOLD):
        number = round((told - loss_from_products(0.0)) * 2 * 2.0**56) - OFFSET
        second = (number + (1 << 29)) >> 30
        found = (number - (second << 30)) / UNIT, second / UNIT
        read.append(
            float(
                np.mean(
                    [
                        abs(value - truth / UNIT) < CLOSE
                        for value, truth in zip(found, (one, two), strict=True)
                    ]
                )
            )
        )
    by = "a guest that cheats"
    figure = "share of 2 outputs read in a round"
    protection = "the loss is told to nobody"
    yield Attack("outputs in the place of the loss", by, figure, read[0], protection, read[1], chance=0.0)
    # In the place of |g|^2, a bit above 1: the step's coefficient is largest_step / |g|.
    products = PRODUCTS.decode(np.array([2**56 + one, 2**56], dtype=object))
    descent.check_step(products, 2 * NUMBERS.inner_products.bound)
    coefficient = float(descent.step(products[:1])[0])
    square = (DescentSettings().largest_step / coefficient) ** 2
    found_one = (square - 1) * 2.0**56 / UNIT
    share = float(abs(found_one - one / UNIT) < CLOSE)
    yield Attack(
        "an output in the place of the gradients' square",
        by,
        "share of 1 output read in a round",
        share,
        "none",
        None,
    )
