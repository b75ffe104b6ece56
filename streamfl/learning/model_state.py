"""The state of a user's own model as bytes: MessagePack of plain values and arrays, limited in size, never a
pickle."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_within
from streamfl.encoding.wire import Count

__all__ = ["LARGEST_STATE", "ModelSnapshot", "StateRefused", "decode_state", "encode_state"]

# Most bytes of state in a record. The rest of the record takes less than 100 bytes.
LARGEST_STATE = 900_000
ARRAY = 1
# Little-endian numbers and truth values: arrays of anything else could hold objects.
KINDS = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
# Types that are restored as they were. A subclass would be restored as its parent.
PLAIN = frozenset((type(None), bool, int, float, str, bytes))
# NumPy's numbers and texts, which are restored as Python's.
NUMPY = frozenset((np.str_, np.longlong, np.ulonglong, *(np.dtype(kind).type for kind in KINDS)))
# Limit of the labels in a restored state. Real labels and predictions are far smaller.
LARGEST_NUMBER = 1e12


class StateRefused(ValueError):
    """A state that cannot be stored or restored. reason: state, too_large or restore."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ModelSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """A model's state after sample ``number``.

    number: of samples that were kept when it was remembered.
    made: fingerprint of how the model is made.
    labels, low, high: how many labels it learnt, the smallest and the largest.
    state: what the model's ``state`` returned; empty: nothing is stored, and the model begins anew.
    """

    number: Count
    made: int = 0
    labels: Count = 0
    low: float = 0.0
    high: float = 0.0
    state: bytes = b""

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def checked(self) -> ModelSnapshot:
        """Returns itself; BadRecord if the labels or the size of the state cannot have been written."""
        check_within([self.low, self.high], -LARGEST_NUMBER, LARGEST_NUMBER, "labels of a model")
        if not self.low <= self.high or len(self.state) > LARGEST_STATE:
            raise BadRecord("malformed", "a model's state has labels in the wrong order, or is too large")
        return self


def encode_state(state: Any, most: int) -> bytes:
    """The bytes of a state; StateRefused if it holds anything but plain values and arrays, or is too large.

    >>> decode_state(encode_state({"weights": np.ones(2), "count": 3}, 1000), 1000)
    {'weights': array([1., 1.]), 'count': 3}
    """
    try:
        _check_types((state,))
        content = msgspec.msgpack.encode(state, enc_hook=_encode_array)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise StateRefused("state", f"the state cannot be written: {error}") from None
    if len(content) > most:
        raise StateRefused(
            "too_large", f"the state takes {len(content)} bytes, state_bytes = {most} are allowed"
        )
    return content


def decode_state(content: bytes, most: int) -> Any:
    """The state that :func:`encode_state` was given; StateRefused if the bytes are too many or cannot be
    read."""
    if len(content) > most:
        raise StateRefused(
            "too_large", f"{len(content)} bytes are remembered, state_bytes = {most} are allowed"
        )
    try:
        return msgspec.msgpack.decode(content, ext_hook=_decode_array)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise StateRefused("restore", f"the state cannot be read: {error}") from None


def _check_types(values: Iterable[Any]) -> None:
    """TypeError unless every value is restored as it was: the encoder would turn a set into a list and a date
    into text."""
    kinds = set(map(type, values))
    for kind in kinds - PLAIN - NUMPY - {list, tuple, dict, np.ndarray}:
        raise TypeError(
            f"a {kind.__name__} is not a plain value or an array: it could not be restored unchanged. Use "
            "None, booleans, numbers, texts, bytes, lists, dictionaries or NumPy arrays"
        )
    for value in values if kinds & {list, tuple, dict} else ():
        if type(value) is dict:
            _check_types(value.keys())
            _check_types(value.values())
        elif type(value) in (list, tuple):
            _check_types(value)


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    array = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(value.shape)
    if array.dtype.str not in KINDS:
        raise TypeError(f"an array of {value.dtype} is none of numbers")
    return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode((array.dtype.str, array.shape, array.tobytes())))


def _decode_array(code: int, content: memoryview) -> Any:
    if code != ARRAY:
        raise ValueError(f"extension {code} is no array")
    kind, shape, numbers = msgspec.msgpack.decode(content, type=tuple[str, tuple[Count, ...], bytes])
    if kind not in KINDS or math.prod(shape) * np.dtype(kind).itemsize != len(numbers) or len(shape) > 32:
        raise ValueError(f"{len(numbers)} bytes are no array of {kind[:8]}")
    return np.frombuffer(numbers, kind).reshape(shape).copy()
