"""What samples and labels have in common: names, numbers and ranges in the fields of a user's record.

A NaN passes here, because it may mean a missing value. ``SampleFields.check`` and ``label_in`` of
``sample_fields`` refuse it where nothing is to fill it in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import UNDECODABLE
from streamfl.encoding.wire import LONGEST_NAME

__all__ = [
    "LABEL_RANGE",
    "LARGEST_FLOAT",
    "LARGEST_LABEL",
    "LARGEST_NUMBER",
    "LabelRange",
    "TopicName",
    "name_in",
    "named_fields",
    "number_in",
    "number_of_text",
    "says_nothing",
    "scaled",
    "shown",
    "struct_of",
]

# Frequencies multiply the inputs in single precision and labels are squared: beyond this a product could be
# infinite.
LARGEST_NUMBER = 1e18
# Larger numbers make no sense in any unit.
LARGEST_FLOAT = 1e300
# In units of the labels' range. One label of a million would undo what a whole federation has learnt.
LARGEST_LABEL = 1000.0
LABEL_RANGE = "samples.label_range"
LONGEST_NUMBER = 100
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NO_NUMBER = {"", "nan", "null"}
_AS_IN_RECORDS = {"None": "null", "True": "true", "False": "false"}


def _is_a_topic(value: str) -> str:
    # What Kafka allows.
    if not re.fullmatch("[A-Za-z0-9._-]{1,249}", value) or value in (".", ".."):
        raise ValueError(
            "1 to 249 letters of A to Z and a to z, digits, '.', '_' and '-' are expected, not '.' or '..' "
            "alone"
        )
    return value


def _is_a_range(value: Any, validated: ValidatorFunctionWrapHandler) -> tuple[float, float]:
    try:
        low, high = validated(value)
    except ValidationError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError("two finite numbers are expected, the smaller one first")
    # Predictions are multiples of the difference, which has to be a number too.
    if max(-low, high) > LARGEST_FLOAT:
        raise ValueError(f"numbers of {-LARGEST_FLOAT:g} to {LARGEST_FLOAT:g} are expected")
    return low, high


TopicName = Annotated[str, AfterValidator(_is_a_topic)]
LabelRange = Annotated[tuple[float, float], WrapValidator(_is_a_range)]


def named_fields(decode: Callable[[bytes], Any], value: bytes) -> dict[str, Any] | BadRecord:
    """The fields of an object by name, or why there are none."""
    try:
        content = decode(value)
    except UNDECODABLE as broken:
        return BadRecord("malformed", str(broken))
    if not isinstance(content, dict):
        return BadRecord("malformed", f"an object with named fields is expected, not {shown(content)}")
    return content


def struct_of(decode: Callable[[bytes], Any] | None, value: bytes) -> Any:
    """The record as a struct; None if a struct is not enough, or does not take it.

    What only the slower reader of its fields takes is no mistake: a byte order mark, half a surrogate in a
    field that nobody reads. That reader names what is wrong with the rest.

    decode: makes the struct; None: a struct is not enough.
    """
    if decode is None:
        return None
    try:
        return decode(value)
    except UNDECODABLE:
        return None


def scaled(label: float, field: str | None, label_range: tuple[float, float], key: str) -> float:
    """The label in units of ``label_range``; BadRecord with reason label if it is far outside.

    field, key: the names of the label's field and of the range's setting, for the text.
    """
    low, high = label_range
    scaled = (label - low) / (high - low)
    if not abs(scaled) <= LARGEST_LABEL:
        raise BadRecord(
            "label",
            f"{field} is {label}, a number not {LARGEST_LABEL:g} times as large as {key} = "
            f"{list(label_range)} is expected",
        )
    return scaled


def number_in(value: Any, field: object, as_text: bool) -> float:
    """The number in a field's value, NaN if the value says that there is none; BadRecord with reason
    not_numeric or not_finite.

    as_text: text that is a number counts as one.
    """
    if isinstance(value, str) and as_text:
        if (found := number_of_text(value)) is not None:
            value = found
        elif says_nothing(value):
            return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadRecord(
            "not_numeric", f"{field} is {shown(value)}, a number is expected{_text_hint(value, as_text)}"
        )
    # A whole number may be too long to become a float.
    if not abs(value) < LARGEST_FLOAT and value == value:
        raise BadRecord(
            "not_finite",
            f"{field} is {shown(value)}, a number less than {LARGEST_FLOAT:g}, its sign apart, is expected",
        )
    return float(value)


def number_of_text(text: str) -> float | None:
    """The number in a text, an infinity if it is too large; None if the text is no number.

    >>> number_of_text(" 21.5 "), number_of_text("21,5")
    (21.5, None)
    """
    if len(text) > LONGEST_NUMBER:
        return None
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def says_nothing(value: Any) -> bool:
    """Whether a value is text that means a missing value."""
    return isinstance(value, str) and len(value) <= LONGEST_NUMBER and value.strip().lower() in _NO_NUMBER


def _text_hint(value: Any, as_text: bool) -> str:
    if (
        as_text
        and isinstance(value, str)
        and not any(character.isdigit() for character in value[:LONGEST_NUMBER])
    ):
        return "; missing_values in [[samples.inputs]] lists texts that mean a missing value"
    if as_text or not isinstance(value, str) or not _NUMBER.fullmatch(value[:LONGEST_NUMBER].strip()):
        return ""
    return '; as = "number" in [[samples.inputs]] accepts numbers as text'


def name_in(content: str | int | bytes | None, field: str) -> str:
    """A client's or a sample's name in a field or key; BadRecord with reason missing_field or malformed."""
    if content is None:
        raise BadRecord("missing_field", f"{field} is missing")
    try:
        name = content.decode() if isinstance(content, bytes) else str(content)
        if not name.isascii():
            name.encode()
    except UnicodeError:
        raise BadRecord("malformed", f"{field} is not text in UTF-8") from None
    if not 0 < len(name) <= LONGEST_NAME:
        raise BadRecord("malformed", f"{field} has {len(name)} characters, 1 to {LONGEST_NAME} are accepted")
    return name


def shown(content: Any) -> str:
    """The content for an error text, cut to 60 characters; null and truth values as records have them.

    >>> shown(None), shown(True), shown("None"), shown(datetime(9999, 12, 31))
    ('null', 'true', "'None'", '9999-12-31 00:00:00')
    """
    try:
        text = str(content) if isinstance(content, datetime) else repr(content)
    except RecursionError:
        # The decoder had just enough room on Python's stack for it.
        text = "a value that is nested too deeply to show"
    text = _AS_IN_RECORDS.get(text, text)
    return text if len(text) <= 60 else text[:57] + "..."
