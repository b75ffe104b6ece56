"""Bytes from anybody: a valid message comes back unchanged, anything else is a BadRecord with a reason, never
a crash."""

from __future__ import annotations

import struct
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from streamfl.contract.role import BadRecord, Record
from streamfl.encoding.wire import (
    LONGEST_NAME,
    MAXIMUM_BYTES,
    VERSION,
    Codec,
    Count,
    Name,
    Version,
    decode_array,
    encode_array,
    encoded_size,
    record_size,
)


class Note(msgspec.Struct, array_like=True):
    """A message like streamfl's: the version first, then text, a number and raw bytes."""

    version: Version
    text: Name
    count: Count
    content: bytes


CODEC = Codec(Note)


def reason(value: bytes | None, codec: Codec[Note] = CODEC) -> str:
    """The reason for which a value is refused."""
    with pytest.raises(BadRecord) as caught:
        codec.decode(value)
    return caught.value.reason


@given(st.text(min_size=1, max_size=LONGEST_NAME), st.integers(0, 2**53), st.binary())
def test_a_message_comes_back_as_it_was(text: str, count: int, content: bytes) -> None:
    """Any content of a peer survives the wire unchanged."""
    note = Note(VERSION, text, count, content)
    assert CODEC.decode(CODEC.encode(note)) == note


def test_the_wire_is_a_plain_messagepack_array() -> None:
    """A peer in another language writes these bytes from the documentation."""
    assert CODEC.encode(Note(1, "ab", 7, b"\x00")) == b"\x94\x01\xa2ab\x07\xc4\x01\x00"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 1),
        ("x" * (LONGEST_NAME + 1), 1),
        ("x" * 990_000, 1),
        ("a", -1),
        ("a", 2**53 + 1),
        ("a", 2**64 - 1),
    ],
)
def test_a_name_or_a_number_beyond_its_bound_is_malformed(text: str, count: int) -> None:
    """Protects the receiver's state: an entry with this name or number would not fit into a record."""
    assert reason(msgspec.msgpack.encode([VERSION, text, count, b""])) == "malformed"


@pytest.mark.parametrize(
    "kind", [str, int, Any, dict[Name, Count], Annotated[int, msgspec.Meta(ge=0)], list[str], Name | int]
)
def test_a_message_type_with_an_unbounded_field_is_none(kind: Any) -> None:
    """Protects every system, also future ones: a field without a bound is found when its type is defined."""
    unbounded = msgspec.defstruct("Unbounded", [("version", Version), ("field", kind)], array_like=True)
    with pytest.raises(TypeError, match=r"Unbounded\.field"):
        Codec(unbounded)


@pytest.mark.parametrize(
    ("fields", "array", "text"),
    [
        ([("count", Count), ("version", Version)], True, "begins with count, not with version"),
        ([("version", Version), ("count", Count)], False, "array_like=True"),
        ([], True, "with fields"),
    ],
)
def test_a_message_type_that_does_not_begin_with_its_version_is_none(
    fields: list[tuple[str, Any]], array: bool, text: str
) -> None:
    """Protects authors of a system: receivers read the version first and would refuse every message."""
    with pytest.raises(TypeError, match=text):
        Codec(msgspec.defstruct("Unversioned", fields, array_like=array))


@pytest.mark.parametrize("version", [0, VERSION + 1, 127])
def test_another_version_is_told_as_such(version: int) -> None:
    """During an upgrade the operator must read "version", also if the newer message has other fields."""
    assert reason(msgspec.msgpack.encode([version, "a", 1, b""])) == "version"
    assert reason(msgspec.msgpack.encode([version, {"new": "layout"}])) == "version"
    assert reason(msgspec.msgpack.encode([version, *range(20)])) == "version"


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xdc\x00",
        msgspec.msgpack.encode({"version": 1}),
        msgspec.msgpack.encode([VERSION]),
        msgspec.msgpack.encode([VERSION, "a", 1.5, b""]),
        msgspec.msgpack.encode([VERSION, "a", 1, b""]) + b"\x00",
        b"\x94\x01\xa2\xff\xfe\x07\xc4\x01\x00",
        b"\x94\x01" + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff\x01",
    ],
    ids=lambda value: repr(value)[:30],
)
def test_broken_bytes_are_malformed(value: bytes | None) -> None:
    """Truncated, wrong types, bad UTF-8, trailing bytes, nesting beyond the stack, or a tombstone."""
    assert reason(value) == "malformed"


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=40).map(lambda tail: b"\x94\x01" + tail)))
def test_no_bytes_crash_the_decoder(value: bytes) -> None:
    """One hostile record must cost one dead letter, not the worker: decode may only raise BadRecord."""
    try:
        outcome: Note | str = CODEC.decode(value)
    except BadRecord as error:
        outcome = error.reason
    assert isinstance(outcome, Note) or outcome in {"malformed", "version"}


@given(st.data())
def test_a_truncated_message_is_refused(data: st.DataObject) -> None:
    """No prefix of a message may be read as another message."""
    value = CODEC.encode(Note(VERSION, "text", 1, b"content"))
    assert reason(value[: data.draw(st.integers(0, len(value) - 1))]) == "malformed"


def test_size_is_bounded_on_both_sides() -> None:
    """The sender learns at once that its message is too large; the receiver does not parse an oversized
    one."""
    small = Codec(Note, maximum_bytes=20)
    exactly = Note(VERSION, "x" * 14, 7, b"")
    assert len(small.encode(exactly)) == 20
    assert small.decode(small.encode(exactly)) == exactly
    with pytest.raises(ValueError, match="21 bytes is over the limit of 20"):
        small.encode(Note(VERSION, "x" * 15, 7, b""))
    assert reason(CODEC.encode(Note(VERSION, "x" * 15, 7, b"")), small) == "oversized"
    assert reason(b"\x94\x01" + bytes(MAXIMUM_BYTES)) == "oversized"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_travel_as_little_endian_in_c_order(dtype: type) -> None:
    """The bytes are the same from a big-endian machine, a transposed array or a slice."""
    array = np.array([[1.5, -2.0], [0.25, 3.0], [1e-30, 7.0]], dtype=dtype)
    letter = "f" if dtype is np.float32 else "d"
    expected = struct.pack(f"<6{letter}", *array.ravel().tolist())
    wide = np.zeros((3, 4), dtype=dtype)
    wide[:, ::2] = array
    for same in (
        array,
        array.astype(np.dtype(dtype).newbyteorder(">")),
        np.asfortranarray(array),
        wide[:, ::2],
    ):
        assert encode_array(same) == expected
    decoded = decode_array(expected, dtype, (3, 2), "parameters")
    assert decoded.dtype == dtype
    np.testing.assert_array_equal(decoded, array)


@pytest.mark.parametrize(
    ("length", "shape"), [(23, (3,)), (25, (3,)), (0, (3,)), (24, (4,)), (24, (3, 2)), (12, (3,))]
)
def test_an_array_of_another_shape_is_refused_by_name(length: int, shape: tuple[int, ...]) -> None:
    """The receiver states the shape: a short array, or float32 in place of float64, must not be broadcast or
    misread."""
    with pytest.raises(BadRecord, match="parameters") as caught:
        decode_array(bytes(length), np.float64, shape, "parameters")
    assert caught.value.reason == "shape"


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 4])
def test_a_single_poisoned_number_is_refused(poison: float, place: int) -> None:
    """One NaN in the model would spread to every client with the next version."""
    array = np.ones(5, dtype=np.float32)
    array[place] = poison
    with pytest.raises(BadRecord) as caught:
        decode_array(encode_array(array), np.float32, (5,), "delta")
    assert caught.value.reason == "not_finite"


@given(
    key=st.none() | st.binary(max_size=300),
    value=st.none() | st.binary(max_size=20_000),
    headers=st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=200)), max_size=4).map(tuple),
)
def test_the_counted_size_is_never_less_than_kafka_writes(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes], ...]
) -> None:
    """The bandwidth budget counts real bytes, compared with the batch that a Kafka client builds for one
    message."""
    builder = DefaultRecordBatchBuilder(2, 0, True, 1, 1, 0, 1 << 20)
    builder.append(0, 1_700_000_000_000, key, value, list(headers))
    written = len(builder.build())
    counted = encoded_size(key, value, headers)
    assert written <= counted <= written + 32 + 4 * len(headers)
    assert record_size(Record("topic", 0, 0, key, value, headers)) == counted
