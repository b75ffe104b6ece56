"""The layout of CSV lines: the delimiter, the decimal mark, and the columns' names."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["CsvLayout", "Decimal", "guess_layout", "split_line", "with_point"]

Decimal = Literal[".", ","]

SEPARATORS = (",", ";", "\t", "|")
# Share of the lines that have to have the same number of values.
SHARE = 0.8
_COMMA = re.compile(r"[+-]?(?:[0-9]{1,3}(?:\.[0-9]{3})+|[0-9]*),[0-9]+(?:[eE][+-]?[0-9]+)?")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+")


@dataclass(frozen=True)
class CsvLayout:
    """columns: names from a line, or made-up ones. named: the first line has the names. headless: it has
    values already."""

    delimiter: str
    decimal: Decimal
    columns: list[str]
    named: bool
    headless: bool


def split_line(text: str, delimiter: str) -> list[str]:
    """The values of one line; ValueError if the text is not one line of CSV."""
    if '"' not in text and "\n" not in text and "\r" not in text:
        # The same result as csv.reader's, in a fraction of its time.
        return text.split(delimiter)
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise ValueError(f"no line of CSV: {error}") from None
    if len(lines) != 1:
        raise ValueError(f"{len(lines)} lines, one is expected")
    return lines[0]


def with_point(text: str) -> str:
    """A number with a decimal comma, written with a point. Any other text stays what it is.

    >>> with_point("21,5"), with_point("1.234,5"), with_point("1.234"), with_point("3,4,5")
    ('21.5', '1234.5', '1.234', '3,4,5')
    """
    if "," not in text or _COMMA.fullmatch(text.strip()) is None:
        return text
    return text.replace(".", "").replace(",", ".")


def guess_layout(lines: Sequence[str]) -> CsvLayout:
    """The layout of one or more lines.

    >>> guess_layout(["site;temp", "north;21,5", "south;19,0"])
    CsvLayout(delimiter=';', decimal=',', columns=['site', 'temp'], named=True, headless=False)
    """
    delimiter = max(SEPARATORS, key=lambda mark: _fits(lines, mark))
    rows = [_values(line, delimiter) for line in lines]
    decimal = _decimal(rows, delimiter)
    names = [(place, row) for place, row in enumerate(rows) if _are_names(row)]
    # Within a topic, one line may have the names; several such lines are samples whose values are all text.
    if names and (names[0][0] == 0 or len(names) == 1):
        place, row = names[0]
        return CsvLayout(delimiter, decimal, _named(row), place == 0, place > 0)
    # At least two columns: a line without a delimiter may be any text.
    headless = any(_is_a_number(with_point(value)) for value in rows[0])
    return CsvLayout(delimiter, decimal, _named([""] * max(2, len(rows[0]))), False, headless)


def _fits(lines: Sequence[str], mark: str) -> tuple[bool, float, int]:
    """How well a delimiter fits: most lines have the same number of values, no value has another delimiter,
    values are many."""
    rows = [row for line in lines if (row := _values(line, mark))]
    width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
    if width == 1:
        return False, 0.0, 1
    values = [value for row in rows if len(row) == width for value in row]
    clean = sum(
        not any(other in value for other in SEPARATORS) or bool(_COMMA.fullmatch(value.strip()))
        for value in values
    )
    return count >= SHARE * len(lines), clean / len(values), width


def _values(line: str, delimiter: str) -> list[str]:
    try:
        return split_line(line, delimiter)
    except ValueError:
        return []


def _decimal(rows: Sequence[Sequence[str]], delimiter: str) -> Decimal:
    commas = points = 0
    for row in rows:
        for value in map(str.strip, row):
            # If commas are the delimiter, "1,234" in quotes is a number with a thousands separator.
            if (
                "," in value
                and _COMMA.fullmatch(value)
                and not (delimiter == "," and _GROUPED.fullmatch(value))
            ):
                commas += 1
            elif "." in value and _is_a_number(value):
                points += 1
    return "," if commas > points else "."


def _are_names(row: Sequence[str]) -> bool:
    names = [name.strip() for name in row]
    # Spreadsheets write delimiters after the last column.
    while names and not names[-1]:
        names.pop()
    return (
        len(names) > 1
        and len(set(names)) == len(names)
        and all(names)
        and not any(map(_is_a_number, map(with_point, names)))
    )


def _named(row: Sequence[str]) -> list[str]:
    return [name.strip() or f"column_{place}" for place, name in enumerate(row, 1)]


def _is_a_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
