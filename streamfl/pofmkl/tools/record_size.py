"""The size of a data set's rows as records, to compare the bytes that a federation sends with."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.simulation.tables import DataTable, column_of, placed

__all__ = ["record_bytes"]

# Rows that are enough for their mean size.
MEASURED = 1000


def record_bytes(table: DataTable, fields: Sequence[str], rows: NDArray[np.intp]) -> int:
    """The mean bytes of rows as JSON objects of these fields, without key and headers.

    rows: numbers of rows, in any shape; those below 0 are ignored.
    """
    encode = msgspec.json.Encoder(enc_hook=str).encode
    chosen = rows[rows >= 0][:MEASURED]
    columns = [table.columns[column_of(table, field)][chosen].tolist() for field in fields]
    return round(
        sum(len(encode(placed(fields, values))) for values in zip(*columns, strict=True)) / len(chosen)
    )
