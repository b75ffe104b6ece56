"""One row of a sample, as the topic of pieces has it, and the limits of its size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from streamfl.contract.role import BadRecord, Record
from streamfl.encoding.changelog_checks import Time
from streamfl.encoding.wire import LONGEST_NAME, ROOM, Codec, Name, Version

__all__ = [
    "ASSEMBLY_ROW",
    "LONGEST_TEXT",
    "AssemblyRow",
    "Named",
    "Scalar",
    "Values",
    "check_size",
    "decode_row",
    "scalar",
]

LONGEST_TEXT = 1_000
# Bytes of a number in JSON with what is around it; and how many times longer a character may be in JSON than
# in UTF-8.
NUMBER_BYTES, ESCAPED = 32, 6
# Larger whole numbers are not exact in JSON.
MOST = 2**53

Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]
Scalar = bool | float | Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)] | Text
Values = dict[str, Scalar]


class Named(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An input's name and its value."""

    name: Text
    value: Scalar


class AssemblyRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Some inputs of one sample.

    place: which of the client's samples: an id, or the number of a span of time.
    time: event time, in seconds.
    written: that time as the record has it, for the sample's time field.
    inputs: empty if the record has no input of a sample.
    """

    version: Version
    client: Name
    place: Name
    time: Time
    written: Scalar | None
    inputs: tuple[Named, ...]

    @property
    def values(self) -> Values:
        """The inputs by name."""
        return {one.name: one.value for one in self.inputs}


ASSEMBLY_ROW = Codec(AssemblyRow)


def decode_row(record: Record) -> AssemblyRow:
    """The row in a record; BadRecord with reason malformed, version, oversized or not_finite."""
    row = ASSEMBLY_ROW.read(record)
    if not all(_is_finite(one.value) for one in row.inputs):
        raise BadRecord("not_finite", "a piece has a value that is no number")
    check_size(row.values)
    return row


def scalar(content: Any, field: str) -> Scalar | None:
    """The content as an input of a row, None for null and NaN; BadRecord with reason malformed or
    not_finite."""
    if content is None or (isinstance(content, float) and math.isnan(content)):
        return None
    if isinstance(content, float) and math.isinf(content):
        raise BadRecord("not_finite", f"{field} is {content}, a finite number is expected")
    if isinstance(content, str) and len(content) <= LONGEST_TEXT:
        return content
    if isinstance(content, (bool, float)) or (isinstance(content, int) and -MOST <= content <= MOST):
        return content
    raise BadRecord(
        "malformed", f"{field} is no number, truth value or text of up to {LONGEST_TEXT} characters"
    )


def check_size(values: Mapping[str, Scalar]) -> None:
    """BadRecord with reason oversized if a record of these values might be too long, in any format."""
    size = sum(ESCAPED * len(name.encode()) + _size(value) for name, value in values.items())
    if size > ROOM - 2 * ESCAPED * 4 * LONGEST_NAME:
        raise BadRecord(
            "oversized", f"a sample of {len(values)} inputs with up to {size} bytes, {ROOM} are accepted"
        )


def _size(value: Scalar) -> int:
    return NUMBER_BYTES + (ESCAPED * len(value.encode()) if isinstance(value, str) else 0)


def _is_finite(value: Scalar) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
