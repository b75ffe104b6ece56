"""Records of which the entity can be read and the values cannot: they count as rows of zeros.

Whether a row's values can be read is the row's own matter. A record that went to the dead letters, or that made a window wait for
another, would tell of it. Where the name itself cannot be read nobody knows whose record it was, and it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from streamfl.records.fields import name_in, named_fields
from streamfl.records.formats import Format
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.role import Decode, PeerError, Record
from streamfl.wire import MAXIMUM_BYTES

__all__ = ["readable_label", "readable_sample"]


def readable_sample(decode: Decode, dimension: int, format: Format, entity: str | None) -> Callable[[Record], Sample]:
    """A sample with NaN in place of values that ``decode`` refuses.

    dimension: of a sample. format: of records. entity: the field with the name; None: the key.
    """
    name_of = _name_reader(format, entity)

    def decode_one(record: Record) -> Sample:
        try:
            return cast(Sample, decode(record))
        except PeerError as error:
            name = name_of(record, error)
            return Sample(name, name, (math.nan,) * dimension, None)

    return decode_one


def readable_label(decode: Decode, format: Format, entity: str | None) -> Callable[[Record], Label]:
    """A label that is NaN where ``decode`` refuses it, likewise."""
    name_of = _name_reader(format, entity)

    def decode_one(record: Record) -> Label:
        try:
            return cast(Label, decode(record))
        except PeerError as error:
            name = name_of(record, error)
            return Label(name, name, math.nan)

    return decode_one


def _name_reader(format: Format, entity: str | None) -> Callable[[Record, PeerError], str]:
    fields = format.decoder(cast(type[Any], Any))

    def name_of(record: Record, error: PeerError) -> str:
        """The entity's name; the error that was found before where there is none."""
        if entity is None:
            try:
                return name_in(record.key, "the record key")
            except PeerError:
                raise error from None
        if record.value is None or len(record.value) > MAXIMUM_BYTES:
            raise error
        content = named_fields(fields, record.value)
        name = None if isinstance(content, PeerError) else content.get(entity)
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise error
        return name_in(name, entity)

    return name_of
