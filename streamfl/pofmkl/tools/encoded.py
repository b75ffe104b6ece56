"""The inputs of ``[[samples.inputs]]`` from a table's rows: the numbers that a worker computes from the same
rows as records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, DataError, Record
from streamfl.pofmkl.tools.sites import Sites
from streamfl.records.imputation import RunningMeans
from streamfl.records.samples import SampleReader, SamplesSection
from streamfl.simulation.tables import DataSource, DataTable, input_fields, placed

__all__ = ["EncodedInputs", "encoded_inputs"]


@dataclass(frozen=True)
class EncodedInputs:
    """The encoded inputs of a table's rows.

    numbers: (rows, d), divided by samples.input_norm where records' are; NaN where the client's own mean or
    last value fills a gap.
    accepted: (rows,), whether a worker accepts the row.
    refused: how many rows it refuses, by reason.
    means, lasts: the columns of d with such gaps, and those of them filled with the last value.
    """

    numbers: NDArray[np.float64]
    accepted: NDArray[np.bool_]
    refused: Counter[str]
    means: tuple[int, ...]
    lasts: tuple[int, ...]

    def filled(self, rows: NDArray[np.intp], relative: bool) -> Sites:
        """The numbers of dealt rows (T, K), without gaps. relative: as in :class:`RunningMeans`."""
        if not self.means:
            return Sites(self.numbers, rows)
        found = self.numbers.copy()
        means = RunningMeans(self.means, self.lasts, relative=relative)
        for dealt in rows.tolist():
            for client, row in enumerate(dealt):
                if row >= 0:
                    found[row] = means.fill((0, str(client)), tuple(found[row].tolist()))
        return Sites(found, rows)


def encoded_inputs(section: SamplesSection, table: DataTable, location: DataSource) -> EncodedInputs:
    """Each row's inputs as a worker reads them; DataError if the table lacks a column, or a worker refuses
    every row."""
    assert section.inputs is not None
    names, rows = input_fields(section.inputs, table, location)
    # The table is already decoded, so the records' format is not needed.
    reader = SampleReader(
        SamplesSection(topic=section.topic, inputs=section.inputs, input_norm=section.input_norm),
        fills_means=True,
    )
    encode = msgspec.json.Encoder().encode
    numbers = np.zeros((table.rows, reader.dimension))
    accepted = np.zeros(table.rows, dtype=bool)
    refused: Counter[str] = Counter()
    example: BadRecord | None = None
    for number, values in enumerate(rows):
        try:
            numbers[number] = reader.decode(
                Record("table", 0, 0, b"row", encode(placed(names, values)))
            ).features
        except BadRecord as error:
            refused[error.reason] += 1
            example = example or error
            continue
        accepted[number] = True
    if not accepted.any():
        raise DataError(f"{location}: samples.inputs refuses every row; the first: {example}")
    return EncodedInputs(numbers, accepted, refused, reader.means, reader.lasts)
