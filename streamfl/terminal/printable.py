"""The one place that makes text printable: text from topics may hold characters that move a terminal's cursor
or forge a line."""

from __future__ import annotations

import re
from datetime import UTC, datetime

__all__ = ["LONGEST_TEXT", "printable", "printable_json", "printable_lines", "utc_time", "valid_date"]

LONGEST_TEXT = 1_000
"""Characters of a text on a record that are logged or kept: it may hold what the record's writer wrote."""

# The last second of the year 9999.
LATEST_TIME = 253_402_300_799.0

# The printable characters of ASCII: nearly all texts have no others.
PLAIN = re.compile(r"[ -~]*")


def printable(text: str) -> str:
    """The text on one line, with every character that is not printable escaped.

    >>> print(printable("press\\x1b[2J 7\\n\\u202e"))
    press\\x1b[2J 7\\n\\u202e
    """
    if PLAIN.fullmatch(text):
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def printable_lines(text: str) -> str:
    """The same, with line breaks kept."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """JSON of the same meaning. Characters that are not printable occur only within its strings, and are
    escaped there.

    >>> print(printable_json('{"client": "press\\x7f"}'))
    {"client": "press\\u007f"}
    """
    if PLAIN.fullmatch(text):
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else _as_json(sign) for sign in text)


def _as_json(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def valid_date(seconds: float) -> datetime:
    """The time of a record, limited to valid dates: its writer may give it any time.

    >>> valid_date(1e18).year, valid_date(-5.0).year
    (9999, 1970)
    """
    return datetime.fromtimestamp(min(max(0.0, seconds), LATEST_TIME), UTC)


def utc_time(seconds: float) -> str:
    """The same as text, to the second.

    >>> utc_time(100.0)
    '1970-01-01T00:01:40Z'
    """
    return f"{valid_date(seconds):%Y-%m-%dT%H:%M:%SZ}"
