"""The fixed transformation of a party's columns, and its encoding. The first training fixes it for life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import decode_restored
from streamfl.encoding.wire import decode_array, encode_array
from streamfl.quasi_newton.config import MOST_COLUMNS
from streamfl.quasi_newton.rows.preprocessing import EVIDENCE, MOST_KNOTS, Method, Preprocessing

__all__ = ["MOST_PREPARATION_BYTES", "Preparation"]

Floats = NDArray[np.float64]
MOST_BINS = 1_000
MOST_PREPARATION_BYTES = MOST_COLUMNS * (16 * MOST_KNOTS + 8 * MOST_BINS + 100)
Columns = Annotated[list[bytes], msgspec.Meta(max_length=MOST_COLUMNS)]
Place = Annotated[int, msgspec.Meta(ge=0, le=MOST_COLUMNS * MOST_BINS)]


class _Content(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Arrays are 64-bit floats. ends: low, then high; empty: none. values: missing in the state of earlier
    releases."""

    method: Method
    fill: bytes
    mean: bytes
    deviation: bytes
    ends: bytes
    knots: Columns
    edges: Columns
    bins: Annotated[list[list[Place]], msgspec.Meta(max_length=MOST_COLUMNS)]
    kept: list[Place]
    values: Columns = []


@dataclass(frozen=True)
class Preparation:
    """Turns raw columns into the columns to learn from.

    preprocessing: fitted to the rows of the first training.
    kept: numbers of its result's columns that are learnt from, ascending.
    """

    preprocessing: Preprocessing
    kept: list[int]

    @property
    def raw_columns(self) -> int:
        """Number of columns of a raw row."""
        return len(self.preprocessing.fill)

    @property
    def results(self) -> int:
        """Number of columns that preprocessing makes, including those that are left out."""
        return len(self.preprocessing.mean)

    def apply(self, raw: Floats) -> Floats:
        """Transform raw rows, (rows, raw columns), into (rows, columns to learn from)."""
        return self.preprocessing.apply(raw)[:, self.kept]

    def encode(self) -> bytes:
        """Encodes the preparation for :meth:`decode`."""
        own = self.preprocessing
        ends = b"" if own.low is None or own.high is None else encode_array(np.array([own.low, own.high]))
        knots, edges, values = (
            [encode_array(one) for one in arrays] for arrays in (own.knots, own.edges, own.values)
        )
        fill, mean, deviation = (encode_array(one) for one in (own.fill, own.mean, own.deviation))
        return msgspec.msgpack.encode(
            _Content(own.method, fill, mean, deviation, ends, knots, edges, own.kept, self.kept, values)
        )

    @classmethod
    def decode(cls, content: bytes) -> Preparation:
        """Decodes a preparation. BadRecord with reason malformed, oversized, shape, not_finite or
        out_of_bounds."""
        if len(content) > MOST_PREPARATION_BYTES:
            raise BadRecord(
                "oversized",
                f"{len(content)} bytes of preprocessing, at most {MOST_PREPARATION_BYTES} are accepted",
            )
        found = decode_restored(content, _Content, "preprocessing")
        columns = len(found.fill) // 8
        of_bins, weighs = found.method == "quantile-bins", found.method == EVIDENCE
        given = {
            "knots": found.method == "rank",
            "edges": of_bins or weighs,
            "bins": of_bins,
            "values": weighs,
        }
        if any(len(getattr(found, name)) != columns * there for name, there in given.items()):
            raise BadRecord("shape", f"preprocessing of {columns} columns has knots or bins of others")
        results = sum(map(len, found.bins)) if of_bins else columns
        if found.kept != sorted(set(found.kept)) or any(one >= results for one in found.kept):
            raise BadRecord("shape", f"columns {found.kept[:5]} … are not of a result of {results} columns")
        knots = [
            _numbers(one, 2 * MOST_KNOTS, "knots").reshape(-1, 2)
            for one in found.knots
            if len(one) % 16 == 0 and one
        ]
        if len(knots) != len(found.knots):
            raise BadRecord("shape", "a knot is a value and its place")
        edges = [_numbers(one, MOST_BINS, "edges") for one in found.edges]
        if of_bins and any(
            one > len(own) + 1 for own, kept in zip(edges, found.bins, strict=True) for one in kept
        ):
            raise BadRecord("shape", "a bin that no edge makes")
        values = [_numbers(one, MOST_BINS + 2, "values") for one in found.values]
        if weighs and any(len(own) != len(ends) + 2 for own, ends in zip(values, edges, strict=True)):
            raise BadRecord("shape", "a bin has one weight, and so have missing numbers")
        has_ends = found.ends or found.method == "clip"
        low, high = decode_array(found.ends, np.float64, (2, columns), "ends") if has_ends else (None, None)
        deviation = decode_array(found.deviation, np.float64, (results,), "deviation")
        if not (deviation > 0).all():
            raise BadRecord("out_of_bounds", "a deviation is above 0")
        preprocessing = Preprocessing(
            found.method,
            decode_array(found.fill, np.float64, (columns,), "fill"),
            decode_array(found.mean, np.float64, (results,), "mean"),
            deviation,
            low,
            high,
            knots,
            edges,
            found.bins,
            values,
        )
        return cls(preprocessing, found.kept)


def _numbers(content: bytes, most: int, name: str) -> Floats:
    if len(content) > 8 * most:
        raise BadRecord("shape", f"{name} has {len(content)} bytes, at most {8 * most} are accepted")
    return decode_array(content, np.float64, (len(content) // 8,), name)
