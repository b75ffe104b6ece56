"""Checks the numbers that a report computes with, because anybody may have written the trace or the record
that it reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import DataError

__all__ = ["as_number", "checked_arrays"]

# The squares of numbers up to this can be added up by the billion without overflow.
LARGEST = 1e100


def as_number(value: Any) -> float | None:
    """The value as a number to compute with; None if it is not a number or is too large.

    >>> as_number(1), as_number(True), as_number("1"), as_number(10**400), as_number(-1e300)
    (1.0, None, None, None, None)
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and -LARGEST <= value <= LARGEST else None


def checked_arrays(
    arrays: Mapping[str, NDArray[Any]], shapes: Mapping[str, Sequence[str]], gaps: Collection[str] = ()
) -> dict[str, NDArray[np.float64]]:
    """The trace's arrays of these names in double precision; DataError names one that does not fit.

    shapes: by array name, the names of its dimensions. Dimensions of the same name have the same length, at
    least 1.
    gaps: names of arrays that may have values that are not finite, which become NaN.
    """
    lengths: dict[str, tuple[int, str]] = {}
    found = {}
    for name, shape in shapes.items():
        array = arrays[name]
        if array.dtype.kind not in "biuf":
            raise DataError(f"the trace's {name!r} holds no numbers")
        if array.ndim != len(shape):
            raise DataError(
                f"the trace's {name!r} has {array.ndim} dimensions, not {len(shape)}: {', '.join(shape)}"
            )
        for length, counted in zip(array.shape, shape, strict=True):
            if not length:
                raise DataError(f"the trace's {name!r} is empty")
            before, where = lengths.setdefault(counted, (length, name))
            if length != before:
                raise DataError(f"the trace's {name!r} has {length} {counted}, {where!r} has {before}")
        with np.errstate(over="ignore", invalid="ignore"):
            values = array.astype(np.float64)
            able = np.abs(values) <= LARGEST
        if not able.all():
            if name not in gaps:
                raise DataError(f"the trace's {name!r} has values that are not numbers, or are too large")
            values = np.where(able, values, np.nan)
        found[name] = values
    return found
