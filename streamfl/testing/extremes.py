"""The largest names, numbers and keys that anybody may write, for the law that all that follows can be
written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["ORDINARY", "Extreme", "extremes"]


class Extreme(NamedTuple):
    """The contents of every field of these types.

    name: name of a client, a sample or an entity.
    whole: a counter.
    number: a feature, a label or a parameter.
    key: the record's key.
    """

    name: str = "somebody"
    whole: int = 1
    number: float = 0.5
    key: bytes = b"key"


ORDINARY = Extreme()

# A character of one byte in UTF-8, one of four, and one that JSON writes in six.
_CHARACTERS = ("x", "\N{GRINNING FACE}", "\0")
_LENGTHS = (1, 64, 255, 256, 257, 1_024, 65_536, 245_000, 990_000)
_WHOLES = (0, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**200, -1, -(2**63))
_NUMBERS = (
    0.0,
    5e-324,
    1e-300,
    1.0,
    3.0,
    999.0,
    1e9,
    4.9e17,
    1e18,
    1e19,
    3e38,
    1e39,
    1e154,
    1.7e308,
    math.inf,
    math.nan,
)
_KEY_LENGTHS = (0, 1_024, 65_535, 65_536, 65_537, 500_000, 990_000)


def extremes() -> Iterator[tuple[str, Any]]:
    """Yields a field of :class:`Extreme` and a value for it."""
    for character in _CHARACTERS:
        for length in _LENGTHS:
            if len(character.encode()) * length < 1_000_000:
                yield "name", character * length
    for whole in _WHOLES:
        yield "whole", whole
    for number in _NUMBERS:
        yield "number", number
        yield "number", -number
    for length in _KEY_LENGTHS:
        yield "key", b"k" * length
