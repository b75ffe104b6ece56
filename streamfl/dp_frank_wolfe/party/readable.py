"""Records with a readable entity and unreadable values: they count as rows of zeros.

Whether a row's values can be read is private. If such a record went to the dead letters, or made a window
wait for another, that would reveal it. If the name itself cannot be read, nobody knows whose record it was,
and it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from streamfl.contract.role import PeerError, Record
from streamfl.records.labels import Label, LabelReader
from streamfl.records.samples import Sample, SampleReader

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
    """A label that is NaN where ``reader`` refuses it."""

    def decode_one(record: Record) -> Label:
        try:
            return reader.decode(record)
        except PeerError as error:
            name = _name(reader, record, error)
            return Label(name, name, math.nan)

    return decode_one


def _name(reader: SampleReader | LabelReader, record: Record, error: PeerError) -> str:
    """The entity's name. Raises ``error`` if the record has none."""
    try:
        return reader.name(record)
    except PeerError:
        raise error from None
