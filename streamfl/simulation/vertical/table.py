"""Reads a table, deals its columns to parties, divides it for learning and testing, and orders its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import ConfigurationError, DataError
from streamfl.contract.seeding import rng_for
from streamfl.records.fields import LARGEST_NUMBER
from streamfl.simulation.parties import TEST_FRACTION, has_ranges, split_columns
from streamfl.simulation.tables import DataSource, input_names, numbers, read_data, unread_columns
from streamfl.terminal.console import say

__all__ = [
    "FOR_EVER",
    "DealtTable",
    "VerticalTable",
    "checked_options",
    "deal_table",
    "epoch_orders",
    "labels_as_classes",
]

FEWEST_ROWS = 2
FOR_EVER = 1e12
"""Virtual seconds within which no record that is replayed expires, and nobody is given up."""


@dataclass(frozen=True)
class VerticalTable:
    """The parties' data. The last ``test`` entities are not learnt from.

    inputs: one array (entities, own features) for each of federation.parties, in their order.
    labels: (entities,), in the form that the loss needs.
    """

    inputs: Sequence[NDArray[np.float64]]
    labels: NDArray[np.float64]
    test: int

    @property
    def learnt(self) -> int:
        """Number of entities that are learnt from. They come first."""
        return len(self.labels) - self.test

    @property
    def learning(self) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        """Columns and labels of the entities that are learnt from."""
        return self.part(slice(self.learnt))

    @property
    def testing(self) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        """Columns and labels of the test entities."""
        return self.part(slice(self.learnt, None))

    def part(self, rows: slice) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        return [own[rows] for own in self.inputs], self.labels[rows]


@dataclass(frozen=True)
class DealtTable:
    """A file's rows that have a number in every column, none too large.

    table: the unchanged numbers; numeric labels are scaled to 0 .. 1 by ``label_range``.
    columns: by party, the names of its columns.
    label_range: the label values that became 0 and 1.
    dropped: number of rows that were left out.
    """

    table: VerticalTable
    columns: list[list[str]]
    label_range: tuple[float, float]
    dropped: int


def checked_options(
    parties: Sequence[str],
    split: str | None,
    epochs: int | None,
    online: bool,
    label_delay: int | None,
    test_fraction: float | None,
) -> tuple[str, float]:
    """Value of ``--split``, and the test fraction; ConfigurationError if these options cannot be combined."""
    if split is None:
        raise ConfigurationError(
            f"--split is missing: say which columns each of {', '.join(parties)} has, such as "
            f"{parties[0]}=0:5"
        )
    if online and epochs is not None:
        raise ConfigurationError(
            "--epochs has no meaning with --online, which is one pass in the order of the file"
        )
    if not online and label_delay is not None:
        raise ConfigurationError(
            "--label-delay has no meaning without --online: in epochs all labels are there from the beginning"
        )
    fraction = TEST_FRACTION if test_fraction is None else test_fraction
    if not 0 < fraction < 1:
        raise ConfigurationError(f"--test-fraction {fraction:g}: a number between 0 and 1 is expected")
    return split, fraction


def deal_table(
    location: DataSource, label: str, split: str, parties: Sequence[str], fraction: float, square: bool
) -> DealtTable:
    """The table, dealt to the parties; DataError if nothing can be learnt from it.

    fraction: share of the rows kept for testing, the last ones.
    square: whether labels are numbers. They are scaled by the range of the labels that are learnt from.
    """
    table = read_data(location)
    offered = input_names(table, None, (label,), location)
    own = split_columns(split, parties, offered, list(table.columns), label)
    if has_ranges(split, parties):
        unread_columns(table, offered, (label,))
    used = list(dict.fromkeys(name for names in own for name in names))
    if label not in table.columns:
        raise DataError(f"{location}: no column {label} (there are: {', '.join(table.columns)})")
    inputs, labels = numbers(table, used, location), numbers(table, [label], location)[:, 0]
    parts = [inputs[:, [used.index(name) for name in names]] for names in own]
    present = np.isfinite(labels)
    with np.errstate(over="ignore"):
        for part in parts:
            # As `streamfl run` takes a party's record: this is False for a NaN and for an infinity too.
            present &= np.abs(part).sum(axis=1) < LARGEST_NUMBER
    parts, labels = [part[present] for part in parts], labels[present]
    test = math.ceil(fraction * len(labels))
    learnt = len(labels) - test
    if learnt < FEWEST_ROWS:
        raise DataError(
            f"{location}: {len(labels)} usable rows leave {learnt} to learn from, {test} to measure on"
        )
    label_range = (0.0, 1.0)
    if square:
        label_range = float(labels[:learnt].min()), float(labels[:learnt].max())
        if label_range[0] == label_range[1]:
            raise DataError(
                f"{location}: the label {label} is {label_range[0]:g} in every row: there is nothing to learn"
            )
        labels = (labels - label_range[0]) / (label_range[1] - label_range[0])
    return DealtTable(VerticalTable(parts, labels, test), own, label_range, int((~present).sum()))


def labels_as_classes(dealt: DealtTable, location: DataSource, label: str, reason: str = "") -> DealtTable:
    """The table with labels 0 and 1; many tables use -1 and 1. DataError for any other label.

    reason: text that the error adds after the expected labels.
    """
    table = dealt.table
    values = np.unique(table.labels).tolist()
    if values == [-1.0, 1.0]:
        say("labels are -1 and 1 here; `streamfl run` takes 0 and 1")
        return replace(dealt, table=replace(table, labels=(table.labels + 1) / 2))
    wrong = [value for value in values if value not in (0.0, 1.0)]
    if wrong:
        raise DataError(
            f"{location}: the label {label} is {wrong[0]:g} somewhere, 0 or 1 is expected{reason}"
        )
    return dealt


def epoch_orders(seed: int, entities: int, epochs: int | None) -> NDArray[np.int64]:
    """The order of entities in each pass, (passes, entities). Each pass has its own order. None: one pass, in
    the table's order."""
    if epochs is None:
        return np.arange(entities)[np.newaxis]
    return np.array(
        [rng_for(seed, "simulate", "epoch", epoch).permutation(entities) for epoch in range(epochs)]
    )
