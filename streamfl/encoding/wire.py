"""Messages to bytes and back: MessagePack arrays with a version in front, bounded in size, numbers checked.

A value on the wire is a MessagePack array whose first element is the protocol version. Arrays of numbers
travel as raw little-endian bytes. The receiver states the shape that it expects, and any other is a
:class:`~streamfl.contract.role.BadRecord`.

Roles remember and forward what peers send. So every name and number has a bound that is small enough for each
record that follows from it to be written. Message types take these bounds from here, and :class:`Codec`
refuses a type with an unbounded field."""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import msgspec.inspect
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, Record

__all__ = [
    "LARGEST_VALUE",
    "LONGEST_KEY",
    "LONGEST_NAME",
    "MAXIMUM_BYTES",
    "ROOM",
    "VERSION",
    "Codec",
    "Count",
    "Name",
    "Version",
    "decode_array",
    "encode_array",
    "encoded_size",
    "fingerprint",
]

VERSION = 1
# The largest record, with its key, headers and framing. Kafka's own default is 1 MiB.
MAXIMUM_BYTES = 1_000_000
# The largest message. The rest of a record is for the key under which it is sent or remembered: a name with a
# prefix.
LARGEST_VALUE = MAXIMUM_BYTES - 2_048
# The largest total of the arrays in a message. The rest is for names, in the key and in the value, and for
# counts.
ROOM = MAXIMUM_BYTES - 4_096
# The longest key of a sample, in bytes: it is remembered while the sample waits, and sent on with the
# prediction.
LONGEST_KEY = 65_536
# In characters, each of up to four bytes.
LONGEST_NAME = 256

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
"""The name of a client, a sample or an entity."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A whole number that any language can hold: a sequence, a number of steps, microseconds since 1970."""
Version = Annotated[int, msgspec.Meta(ge=0, le=127)]
"""The version of the protocol, in one byte."""

# A Kafka record batch has a header of 61 bytes, and each record up to 21 bytes of lengths and deltas. A
# message that travels alone costs both, so counting both for every message can only overstate what is sent.
RECORD_OVERHEAD = 61 + 21

Message = TypeVar("Message", bound=msgspec.Struct)
Number = TypeVar("Number", np.float32, np.float64)


class Codec(Generic[Message]):
    """Encode and decode one message type, whose first field is ``version``.

    TypeError if it has another first field, or if a text or a whole number in it has no bound; :data:`Name`
    and :data:`Count` have one.

    >>> class Ping(msgspec.Struct, array_like=True):
    ...     version: Version
    ...     text: Name
    >>> codec = Codec(Ping)
    >>> codec.decode(codec.encode(Ping(VERSION, "hello"))).text
    'hello'
    """

    def __init__(self, message_type: type[Message], maximum_bytes: int = LARGEST_VALUE) -> None:
        kind = msgspec.inspect.type_info(message_type)
        if not (isinstance(kind, msgspec.inspect.StructType) and kind.array_like and kind.fields[:1]):
            raise TypeError(f"{message_type.__name__} is no msgspec.Struct with fields and array_like=True")
        if kind.fields[0].name != "version":
            raise TypeError(f"{message_type.__name__} begins with {kind.fields[0].name}, not with version")
        _check_bounded(kind, message_type.__name__)
        self._name = message_type.__name__
        self._maximum_bytes = maximum_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(message_type)

    def encode(self, message: Message) -> bytes:
        """The bytes of a message; ValueError if it is too large for any receiver."""
        value = self._encoder.encode(message)
        if len(value) > self._maximum_bytes:
            raise ValueError(f"{self._name} of {len(value)} bytes is over the limit of {self._maximum_bytes}")
        return value

    def decode(self, value: bytes | None) -> Message:
        """The message in ``value``; BadRecord with reason oversized, version or malformed."""
        if value is None:
            raise BadRecord("malformed", f"{self._name} without a value")
        if len(value) > self._maximum_bytes:
            raise BadRecord(
                "oversized", f"{self._name} of {len(value)} bytes, at most {self._maximum_bytes} are accepted"
            )
        _check_version(value, self._name)
        try:
            return self._decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRecord("malformed", f"{self._name}: {error}") from None

    def read(self, record: Record) -> Message:
        """The message in a record, for a channel's ``decode``; errors as of :meth:`decode`."""
        return self.decode(record.value)


def fingerprint(*settings: object) -> int:
    """A hash of settings: two members get the same number only if their messages fit. 53 bits, so that any
    language can hold it.

    settings: numbers, texts and tuples of these: all that has to be equal at all members.
    """
    text = repr((VERSION, *settings))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 11


def encode_array(array: NDArray[Any]) -> bytes:
    """The array's bytes, little-endian, in C order."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()


def decode_array(content: bytes, dtype: type[Number], shape: tuple[int, ...], name: str) -> NDArray[Number]:
    """The array in ``content``; BadRecord with reason shape or not_finite.

    >>> decode_array(encode_array(np.ones(3)), np.float64, (3,), "weights")
    array([1., 1., 1.])
    """
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if len(content) != expected:
        raise BadRecord(
            "shape",
            f"{name} has {len(content)} bytes, expected {expected} for shape {shape} of {dtype.__name__}",
        )
    array = (
        np.frombuffer(content, dtype=np.dtype(dtype).newbyteorder("<"))
        .astype(dtype, copy=False)
        .reshape(shape)
    )
    if not np.isfinite(array).all():
        raise BadRecord("not_finite", f"{name} holds a NaN or an infinity")
    return array


def encoded_size(key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()) -> int:
    """The bytes that a message costs on the wire, with framing; never less than what Kafka writes."""
    named = sum([len(name.encode()) + len(content) + 4 for name, content in headers]) if headers else 0
    return len(key or b"") + len(value or b"") + named + RECORD_OVERHEAD


def record_size(record: Record) -> int:
    return encoded_size(record.key, record.value, record.headers)


def _check_bounded(kind: msgspec.inspect.Type, place: str) -> None:
    """TypeError names a field without a bound. Bytes and lists need none: the size of the whole value bounds
    them."""
    known = msgspec.inspect
    if isinstance(kind, known.StructType):
        for field in kind.fields:
            _check_bounded(field.type, f"{place}.{field.name}")
    elif isinstance(kind, known.UnionType):
        for member in kind.types:
            _check_bounded(member, place)
    elif isinstance(kind, (known.VarTupleType, known.ListType)):
        _check_bounded(kind.item_type, place)
    elif isinstance(kind, known.StrType):
        if kind.max_length is None:
            raise TypeError(f"{place} is a text of any length: bound it, as streamfl.encoding.wire.Name is")
    elif isinstance(kind, known.IntType):
        if kind.ge is None or kind.le is None:
            raise TypeError(
                f"{place} is a whole number of any size: bound it, as streamfl.encoding.wire.Count is"
            )
    elif not isinstance(kind, (known.BytesType, known.FloatType, known.BoolType, known.NoneType)):
        raise TypeError(f"{place} is a {type(kind).__name__}: nothing is known of how large it may be")


def _check_version(value: bytes, name: str) -> None:
    # The version is the first element of a MessagePack array: a fixarray, array16 or array32 header, then a
    # positive fixint.
    header = value[:1]
    start = (
        1 if b"\x90" <= header <= b"\x9f" else 3 if header == b"\xdc" else 5 if header == b"\xdd" else None
    )
    if start is None or len(value) <= start:
        raise BadRecord("malformed", f"{name} is not a MessagePack array")
    if value[start] != VERSION:
        raise BadRecord("version", f"{name} of version {value[start]}, this release speaks version {VERSION}")
