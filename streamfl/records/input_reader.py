"""Computes the learner's numbers from one field of a record."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from streamfl.contract.role import BadRecord
from streamfl.records.fields import LARGEST_FLOAT, number_in, number_of_text, shown
from streamfl.records.inputs import TIME_KINDS, InputSection
from streamfl.records.paths import ABSENT, Path, path_of
from streamfl.records.times import Timestamps, zone_named

__all__ = ["DAY", "InputReader", "Numbers"]

DAY = 86_400.0
TRUE, FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
Numbers = tuple[float, ...]


class InputReader:
    """Computes an input from a record.

    norm: numbers are divided by it.
    columns: the record's fields, if the settings list them.
    textual: every value is text.
    """

    def __init__(
        self, section: InputSection, norm: float, columns: list[str] | None = None, textual: bool = False
    ) -> None:
        self.path: Path = path_of(section.field, columns)
        self._reject = section.missing == "reject"
        self.names = section.names
        self._norm = norm if section.scaled else 1.0
        self._textual = textual
        # Empty text can only mean that a time or a truth value is missing. It may be a category.
        self._empty_is_missing = textual or section.kind in (*TIME_KINDS, "boolean")
        self._nothing = _missing_ones(section.missing_values) if section.missing_values else None
        self._indicated = section.indicator
        self._make = self._maker(section, columns)
        number = (
            section.missing / self._norm
            if isinstance(section.missing, float)
            else math.nan
            if section.fills_means
            else 0.0
        )
        count = len(self.names) - self._indicated
        self._missing: Numbers = (number,) * count + (1.0,) * self._indicated

    def numbers(self, content: dict[str, Any]) -> Numbers:
        """The input's numbers of one record, NaN for values that the role fills in.

        BadRecord with reason missing_field, not_numeric, not_finite, not_a_category or not_a_time.
        """
        value = self.path.find(content)
        if self._is_missing(value):
            if self._reject:
                raise self._lacking(content, value)
            return self._missing
        made = self._make(value, content)
        if made is None:
            if self._reject:
                raise self._lacking(content, math.nan)
            return self._missing
        return (*made, 0.0) if self._indicated else made

    def _is_missing(self, value: Any) -> bool:
        if value is ABSENT or value is None or value != value or (self._empty_is_missing and value == ""):
            return True
        return self._nothing is not None and self._nothing(value)

    def _lacking(self, content: dict[str, Any], value: Any) -> BadRecord:
        if value is ABSENT:
            return BadRecord("missing_field", self.path.lacking(content))
        if value != value:
            return BadRecord("not_finite", f"{self.path} is {shown(value)}, a finite number is expected")
        return BadRecord("not_numeric", f"{self.path} is {shown(value)}, a value is expected")

    def _maker(
        self, section: InputSection, columns: list[str] | None
    ) -> Callable[[Any, dict[str, Any]], Numbers | None]:
        kind, path, norm = section.kind, self.path, self._norm
        if kind in (None, "number"):
            as_text = kind == "number" or self._textual

            def number(value: Any, _content: dict[str, Any]) -> Numbers | None:
                found = number_in(value, path, as_text)
                # NaN can be written as text too.
                return None if found != found else (found / norm,)

            return number
        if kind == "boolean":
            return lambda value, _content: (_truth(value, path),)
        if kind == "category":
            return (
                _one_hot(section.values, path)
                if section.values is not None
                else _hashed(section.buckets or 0, path)
            )
        zone = zone_named(section.zone)
        times = Timestamps(section.unit, zone)
        if kind == "elapsed-seconds":
            if section.since_field is None:
                since = Timestamps(None, zone).read(section.since, "since")
                return lambda value, _content: ((times.read(value, path) - since) / norm,)
            other = path_of(section.since_field, columns)

            def elapsed(value: Any, content: dict[str, Any]) -> Numbers | None:
                begun = other.find(content)
                if self._is_missing(begun):
                    if self._reject:
                        lacking = (
                            other.lacking(content)
                            if begun is ABSENT
                            else f"{other} is {shown(begun)}, a time is expected"
                        )
                        raise BadRecord("missing_field", lacking)
                    return None
                return ((times.read(value, path) - times.read(begun, other)) / norm,)

            return elapsed
        local = zone is not UTC
        share = _share_of_day if kind == "hour-of-day" else _share_of_week

        def circular(value: Any, _content: dict[str, Any]) -> Numbers:
            seconds = times.read(value, path)
            if local:
                offset = datetime.fromtimestamp(seconds, zone).utcoffset()
                seconds += 0.0 if offset is None else offset.total_seconds()
            angle = 2 * math.pi * share(seconds)
            return (math.sin(angle), math.cos(angle))

        return circular


def _share_of_day(seconds: float) -> float:
    return seconds % DAY / DAY


def _share_of_week(seconds: float) -> float:
    # The first of January 1970 was a Thursday; weeks begin with Monday.
    return (math.floor(seconds / DAY) + 3) % 7 / 7


def _missing_ones(values: list[str | int | float]) -> Callable[[Any], bool]:
    """A function that says whether a value is one of these. Numbers are compared as numbers, also if they are
    written as text."""
    texts = {value.strip() for value in values if isinstance(value, str)}
    numbers = {value for value in values if not isinstance(value, str)}
    # The values of whole numbers in a field of floats. Between whole numbers all digits count.
    floats = {float(value) for value in numbers if abs(value) < LARGEST_FLOAT}

    def is_one(value: Any) -> bool:
        if isinstance(value, str):
            if value.strip() in texts:
                return True
            value = _exact_number(value) if numbers else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return value in numbers or (isinstance(value, float) and value in floats)

    return is_one


def _exact_number(text: str) -> int | float | None:
    number = number_of_text(text)
    digits = text.strip()
    return int(digits) if number is not None and digits.lstrip("+-").isdigit() else number


def _truth(value: Any, path: Path) -> float:
    text = value.strip().lower() if isinstance(value, str) else None
    if value is True or text in TRUE or (value == 1 and isinstance(value, (int, float))):
        return 1.0
    if value is False or text in FALSE or (value == 0 and isinstance(value, (int, float))):
        return 0.0
    raise BadRecord("not_numeric", f"{path} is {shown(value)}, true or false is expected")


def _category(value: Any, path: Path) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    # No schema has numbers beyond 64 bits, and long ones cost time.
    if isinstance(value, int) and abs(value) < 2**64:
        return str(value)
    raise BadRecord(
        "not_a_category", f"{path} is {shown(value)}, text, a whole number or a truth value is expected"
    )


def _one_hot(values: list[str], path: Path) -> Callable[[Any, dict[str, Any]], Numbers]:
    width = len(values)
    rows = {
        value: tuple(float(place == number) for place in range(width)) for number, value in enumerate(values)
    }
    other = (0.0,) * width
    return lambda value, _content: rows.get(_category(value, path), other)


def _hashed(buckets: int, path: Path) -> Callable[[Any, dict[str, Any]], Numbers]:
    rows = [tuple(float(place == number) for place in range(buckets)) for number in range(buckets)]

    def hashed(value: Any, _content: dict[str, Any]) -> Numbers:
        content = _category(value, path).encode(errors="surrogatepass")
        # The hash is the same in every process and release: the parameters were learnt with it.
        return rows[int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") % buckets]

    return hashed
