"""Records with a readable entity and unreadable values: they count as rows of zeros.

Whether a row's values can be read is private. If such a record went to the dead letters, or made a window
wait for another, that would reveal it. If the name itself cannot be read, nobody knows whose record it was,
and it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from streamfl.contract.channels import Decode
from streamfl.contract.role import BadRecord, Record
from streamfl.dp_frank_wolfe.party.window import Bounds
from streamfl.records.fields import shown
from streamfl.records.labels import Label, LabelReader
from streamfl.records.samples import Sample, SampleReader

__all__ = ["label_within", "readable_label", "readable_sample", "samples_within"]


def readable_sample(reader: SampleReader) -> Callable[[Record], Sample]:
    """A sample with NaN in place of values that ``reader`` refuses."""

    def decode_one(record: Record) -> Sample:
        try:
            return reader.decode(record)
        except BadRecord as error:
            name = _name(reader, record, error)
            return Sample(name, name, (math.nan,) * reader.dimension, None)

    return decode_one


def readable_label(reader: LabelReader) -> Callable[[Record], Label]:
    """A label that is NaN where ``reader`` refuses it."""

    def decode_one(record: Record) -> Label:
        try:
            return reader.decode(record)
        except BadRecord as error:
            name = _name(reader, record, error)
            return Label(name, name, math.nan)

    return decode_one


def samples_within(reader: SampleReader, names: Sequence[str] | None, bounds: Bounds) -> list[Decode]:
    """A decoder for each column, which refuses a record with a value beyond the column's bound.

    names: of the columns. Values that cannot be read are not refused here.
    """
    # Every column's decoder gets the same record, one after the other.
    decode = lru_cache(1)(readable_sample(reader))

    def decode_one(column: int, record: Record) -> Sample:
        sample = decode(record)
        name = f"column {column}" if names is None else names[column]
        _check_within(name, sample.features[column], bounds, column, "")
        return sample

    return [partial(decode_one, column) for column in range(reader.dimension)]


def label_within(reader: LabelReader, name: str, bounds: Bounds) -> Decode:
    """A decoder that refuses a record with a label beyond its bound."""
    decode = readable_label(reader)

    def decode_one(record: Record) -> Label:
        label = decode(record)
        _check_within(name, label.label, bounds, 0, "label_")
        return label

    return decode_one


def _check_within(name: str, value: float, bounds: Bounds, column: int, prefix: str) -> None:
    centre, bound = float(bounds.centre[column]), float(bounds.bound[column])
    if abs(value - centre) > bound:
        raise BadRecord(
            "out_of_bounds",
            f"{shown(name)} = {value:g}: at most {bound:g} (bounds.{prefix}bound) away from {centre:g} "
            f"(bounds.{prefix}centre) is expected, and such values are clipped",
        )


def _name(reader: SampleReader | LabelReader, record: Record, error: BadRecord) -> str:
    """The entity's name. Raises ``error`` if the record has none."""
    try:
        return reader.name(record)
    except BadRecord:
        raise error from None
