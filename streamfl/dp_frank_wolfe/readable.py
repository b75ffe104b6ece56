"""Records of which the entity can be read and the values cannot: they count as rows of zeros.

Whether a row's values can be read is the row's own matter. A record that went to the dead letters, or that made a window wait for
another, would tell of it. Where the name itself cannot be read nobody knows whose record it was, and it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from streamfl.records.labels import Label, LabelReader
from streamfl.records.samples import Sample, SampleReader
from streamfl.role import PeerError, Record

__all__ = ["readable_label", "readable_sample"]


def readable_sample(reader: SampleReader) -> Callable[[Record], Sample]:
    """A sample with NaN in place of values that ``reader`` refuses."""

    def decode_one(record: Record) -> Sample:
        try:
            return reader.decode(record)
        except PeerError as error:
            name = _name(reader, record, error)
            return Sample(name, name, (math.nan,) * reader.dimension, None)

    return decode_one


def readable_label(reader: LabelReader) -> Callable[[Record], Label]:
    """A label that is NaN where ``reader`` refuses it, likewise."""

    def decode_one(record: Record) -> Label:
        try:
            return reader.decode(record)
        except PeerError as error:
            name = _name(reader, record, error)
            return Label(name, name, math.nan)

    return decode_one


def _name(reader: SampleReader | LabelReader, record: Record, error: PeerError) -> str:
    """The entity's name; the error that was found before where there is none."""
    try:
        return reader.name(record)
    except PeerError:
        raise error from None
