"""Checks restored state as strictly as a stranger's message: a changelog may be damaged, whatever Kafka's
checksums say.

The checks accept everything that a role wrote. They refuse what it cannot have written: NaN, counts below 0,
impossible times, names that no sample can have.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import Name

__all__ = ["UNDECODABLE", "Amount", "Time", "check_name", "check_number", "check_within", "decode_restored"]

UNDECODABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding a damaged value may raise: it may be nested deeper than Python's stack."""

# Seconds since 1970 until some time in the 32nd millennium.
LATEST = 1e12
# Numbers that are compared one by one.
FEW = 32

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
Time = Annotated[float, msgspec.Meta(ge=-LATEST, le=LATEST)]
Content = TypeVar("Content")


def check_name(content: bytes) -> str:
    """The name of a client, a sample or an entity in a changelog key; BadRecord if it is no name."""
    try:
        return msgspec.convert(content.decode(), Name)
    except (UnicodeDecodeError, msgspec.ValidationError) as error:
        raise BadRecord("malformed", f"{content[:60]!r} is no name: {error}") from None


def check_number(content: bytes) -> int:
    """The number in a changelog key; BadRecord if it is no number, or has more than 15 digits."""
    if not (content.isdigit() and len(content) <= 15):
        raise BadRecord("malformed", f"{content[:60]!r} is no number")
    return int(content)


def decode_restored(content: bytes, kind: type[Content], what: str) -> Content:
    """Decode a changelog's value from MessagePack; BadRecord with reason malformed.

    what: names the value in the error's text.
    """
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except UNDECODABLE as error:
        raise BadRecord("malformed", f"{what}: {error}") from None


def check_within(numbers: Any, low: float, high: float, what: str) -> None:
    """BadRecord if a number is below ``low``, above ``high`` or NaN."""
    array = np.asarray(numbers)
    if array.size <= FEW:
        # A restore checks a few numbers for each record, and NumPy takes several times as long for these.
        within = not [number for number in array.ravel().tolist() if not low <= number <= high]
    else:
        # NumPy warns at every operation on a signalling NaN.
        with np.errstate(invalid="ignore"):
            array = np.asarray(array, np.float64)
            within = bool(((array >= low) & (array <= high)).all())
    if not within:
        raise BadRecord("not_finite", f"{what}: a number is not within {low:g} and {high:g}")
