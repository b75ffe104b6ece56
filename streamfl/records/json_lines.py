"""JSON Lines: a value a line."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from streamfl.contract.role import DataError

__all__ = ["json_line"]

T = TypeVar("T")


def json_line(line: bytes, number: int, kind: type[T]) -> T:
    """The value in a line, which is of this kind. DataError names the line, counted from 1, and its mistake.

    >>> json_line(b'{"t": 21.5}', 1, dict)
    {'t': 21.5}
    >>> json_line(b"[1]", 2, dict)
    Traceback (most recent call last):
        ...
    streamfl.contract.role.DataError: line 2: is not JSON as expected: Expected `object`, got `array`
    """
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"line {number}: is not JSON as expected: {error}") from None
