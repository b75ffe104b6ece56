"""Times in a user's records: ISO 8601, or a number counted since 1970 in a declared unit."""

from __future__ import annotations

import math
import re
import zoneinfo
from datetime import UTC, datetime, tzinfo
from typing import Any, Literal

from streamfl.contract.role import BadRecord
from streamfl.records.fields import number_of_text, shown

__all__ = ["TimeUnit", "Timestamps", "zone_named"]

TimeUnit = Literal["s", "ms", "us"]
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6}
# The range of Python's datetime, less a day for time zones.
_EARLIEST, _LATEST = -62_135_510_400.0, 253_402_214_400.0
LONGEST_TIME = 96
# Java's ZonedDateTime writes the zone's name after the offset. The offset is all that is needed.
_NAMED_ZONE = re.compile(r"(.*(?:Z|[+-][0-9]{2}:?[0-9]{2}))\[[A-Za-z0-9_+/-]+\]")


def zone_named(name: str) -> tzinfo:
    """The time zone of this name; ValueError if there is none."""
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"zone = {name!r}: a time zone such as UTC or Europe/Oslo is expected") from None


class Timestamps:
    """Reads times as seconds since 1970.

    unit: of times that are numbers, or digits in a text; None: only ISO 8601 is a time.
    zone: of text that names no zone.
    """

    def __init__(self, unit: TimeUnit | None, zone: tzinfo = UTC) -> None:
        self._per_second = None if unit is None else _PER_SECOND[unit]
        self._unit = unit
        self._zone = zone

    def read(self, value: Any, field: object) -> float:
        """The time in ``value``; BadRecord with reason not_a_time. field: for the text."""
        if isinstance(value, str):
            if self._per_second is not None and (number := number_of_text(value)) is not None:
                return self._bounded(number / self._per_second, value, field)
            return self._of_text(value, field)
        if isinstance(value, datetime):
            return self._of_datetime(value, value, field)
        if self._per_second is None or isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._error(value, field)
        try:
            return self._bounded(value / self._per_second, value, field)
        except OverflowError:
            raise self._outside(value, field) from None

    def _of_text(self, text: str, field: object) -> float:
        if len(text) > LONGEST_TIME:
            raise self._error(text, field)
        text = text.strip()
        named = _NAMED_ZONE.fullmatch(text)
        try:
            found = datetime.fromisoformat(text if named is None else named[1])
        except ValueError:
            raise self._error(text, field) from None
        return self._of_datetime(found, text, field)

    def _of_datetime(self, found: datetime, value: Any, field: object) -> float:
        try:
            zoned = found if found.tzinfo is not None else found.replace(tzinfo=self._zone)
            return self._bounded(zoned.timestamp(), value, field)
        except (ValueError, OverflowError):
            raise self._outside(value, field) from None

    def _bounded(self, seconds: float, value: Any, field: object) -> float:
        if not (math.isfinite(seconds) and _EARLIEST <= seconds <= _LATEST):
            raise self._outside(value, field)
        return seconds

    def _outside(self, value: Any, field: object) -> BadRecord:
        unit = "" if self._unit is None or isinstance(value, datetime) else f' with unit = "{self._unit}"'
        return BadRecord(
            "not_a_time", f"{field} is {shown(value)}{unit}, a time from 0001-01-02 to 9999-12-30 is expected"
        )

    def _error(self, value: Any, field: object) -> BadRecord:
        if self._unit is not None:
            expected = f'a number with unit = "{self._unit}", or ISO 8601,'
            return BadRecord("not_a_time", f"{field} is {shown(value)}, {expected} is expected")
        hint = '; a number is one with unit = "s", "ms" or "us"' if isinstance(value, (int, float)) else ""
        return BadRecord(
            "not_a_time",
            f"{field} is {shown(value)}, a time as 2026-01-31T13:30:00Z (ISO 8601) is expected{hint}",
        )
