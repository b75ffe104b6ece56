"""Records as companies write them: each format gives plain values within bounds, and describes the error in a
broken record."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import struct
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from google.protobuf import descriptor_pb2

from streamfl.contract.role import BadRecord, ConfigurationError, IgnoredRecord, Record
from streamfl.records.formats import Format, format_named, format_of, is_textual
from streamfl.records.samples import SampleReader, SamplesSection
from streamfl.records.topic import TopicSection

SENSOR = {
    "type": "record",
    "name": "Sensor",
    "fields": [
        {"name": "site", "type": "string"},
        {"name": "temp", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
PROTO = """syntax = "proto3";
package plant;
import "google/protobuf/timestamp.proto";
message Reading {
  message Place { string site = 1; }
  enum State { OFF = 0; ON = 1; }
  Place place = 1;
  optional double temp = 2;
  double load = 3;
  State state = 4;
  google.protobuf.Timestamp at = 5;
  map<string, double> more = 6;
  repeated int64 counts = 7;
}
"""


def made(tmp_path: Path, format: str, **keys: Any) -> Format:
    return format_of(TopicSection(topic="t", format=format, **keys))


def avro(tmp_path: Path, schema: Any) -> Format:
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(schema))
    return made(tmp_path, "avro", schema_file=str(path))


def protobuf(tmp_path: Path, text: str = PROTO, **keys: Any) -> Format:
    path = tmp_path / "plant.proto"
    path.write_text(text)
    return made(tmp_path, "protobuf", schema_file=str(path), **keys)


def anything(format: Format) -> Any:
    return format.decoder(Any)  # type: ignore[arg-type]


def test_avro_gives_plain_content(tmp_path: Path) -> None:
    """Protects Avro's values: times stay whole numbers, decimals are numbers, and no value is a library's
    object."""
    content = {
        "site": "north",
        "temp": 21.5,
        "at": 1_700_000_000_000,
        "price": b"\xfb\x2e",
        "tags": ["a", "b"],
    }
    # The expected values come from fastavro without logical types.
    plain = json.loads(json.dumps(SENSOR).replace('"logicalType"', '"was"'))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), content)
    found = anything(avro(tmp_path, SENSOR))(stream.getvalue())
    assert found == {**content, "price": -12.34}


def test_avro_is_read_into_what_a_role_asks_for(tmp_path: Path) -> None:
    """Protects samples in Avro: named fields become inputs, and missing or wrong fields are named."""
    format = avro(tmp_path, SENSOR)
    reader = SampleReader(
        SamplesSection(topic="t", features=["temp", "at"], client="site", input_norm=1e13), format
    )
    value = format.encode({"site": "north", "temp": 1e13, "at": 0, "price": None})
    assert reader.decode(Record("t", 0, 0, None, value)).features == (1.0, 0.0)
    with pytest.raises(BadRecord, match="temp is null"):
        reader.decode(
            Record("t", 0, 0, None, format.encode({"site": "north", "temp": None, "at": 0, "price": None}))
        )


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]},
        {
            "type": "record",
            "name": "Tree",
            "fields": [{"name": "children", "type": {"type": "array", "items": "Tree"}}],
        },
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}},
        {
            "type": "map",
            "values": {"type": "array", "items": {"type": "fixed", "name": "Nothing", "size": 0}},
        },
    ],
)
def test_an_avro_schema_without_a_bound_is_refused(tmp_path: Path, schema: Any) -> None:
    """Protects a worker's life: fastavro follows such a record without end, and a record of 100 kB ends the
    process."""
    with pytest.raises(ConfigurationError, match="no limit"):
        avro(tmp_path, schema)


def test_broken_avro_is_one_kind_of_error(tmp_path: Path) -> None:
    """Protects the stream from any byte string: fastavro raises many types, but a reader only expects
    ValueError."""
    format = avro(tmp_path, SENSOR)
    decode = anything(format)
    good = format.encode({"site": "north", "temp": 1.5, "at": 3, "price": None, "tags": ["a"]})
    chance = random.Random(7)
    for _ in range(500):
        value = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            value[chance.randrange(len(value))] = chance.randrange(256)
        try:
            decode(bytes(value[: chance.randrange(len(value) + 1)]))
        except ValueError:
            continue
    with pytest.raises(ValueError, match="left over"):
        decode(good + b"x")
    with pytest.raises(ValueError, match="decimal of 100 bytes"):
        decode(b"\x02a\x00\x00\x02" + b"\xc8\x01" + b"x" * 100 + b"\x00")


def test_why_avro_is_broken_is_told_alike_each_time(tmp_path: Path) -> None:
    """Protects dead letters: repeated work gives the same text, and no text is empty or contains a memory
    address."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": ["null", "float"]}, {"name": "b", "type": "double"}],
    }
    format = avro(tmp_path, schema)
    decode, good = anything(format), format.encode({"a": 1.0, "b": 2.0})
    told = set()
    for value in [good[:length] for length in range(len(good))] + [b"\x08" + good[1:]]:
        with pytest.raises(ValueError, match=r"^it does not fit its Avro schema: [a-z]") as found:
            decode(value)
        assert "<" not in str(found.value)
        told.add(str(found.value).partition(": ")[2])
    assert told == {
        "it ends too soon",
        "it names a member of a union or an enum that the schema does not have",
    }


def test_protobuf_gives_plain_content(tmp_path: Path) -> None:
    """Protects Protobuf's values: nested messages, enums by name, times in seconds, defaults present, unset
    fields left out."""
    format = protobuf(tmp_path)
    content = {
        "place": {"site": "north"},
        "state": "ON",
        "at": "2026-01-01T00:00:00.5Z",
        "more": {"x": 1.5},
        "counts": ["9007199254740993"],
    }
    found = anything(format)(format.encode(content))
    assert found == {
        "place": {"site": "north"},
        "load": 0.0,
        "state": "ON",
        "at": 1767225600.5,
        "more": {"x": 1.5},
        "counts": [9007199254740993],
    }
    # By the wire format's rules: field 2, eight bytes.
    assert anything(format)(b"\x11" + struct.pack("<d", -4.0))["temp"] == -4.0


def test_protobuf_of_a_descriptor_set(tmp_path: Path) -> None:
    """Protects users who have protoc's output but no .proto: no compiler is needed."""
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    for name in ("A", "B"):
        kind = descriptor_pb2.FieldDescriptorProto
        file.message_type.add(name=name).field.add(
            name="x", number=1, type=kind.TYPE_DOUBLE, label=kind.LABEL_OPTIONAL
        )
    path = tmp_path / "set.pb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    with pytest.raises(ConfigurationError, match=r"several messages.*p\.A, p\.B"):
        made(tmp_path, "protobuf", schema_file=str(path))
    format = made(tmp_path, "protobuf", schema_file=str(path), message="p.B")
    assert anything(format)(format.encode({"x": 2})) == {"x": 2.0}


def test_broken_protobuf_is_one_kind_of_error(tmp_path: Path) -> None:
    """Protects the stream from any byte string, and from endless nesting."""
    text = 'syntax = "proto3"; message Node { Node next = 1; double x = 2; }'
    decode = anything(protobuf(tmp_path, text))
    deep = b""
    for _ in range(200):
        deep = b"\x0a" + bytes([len(deep)]) + deep if len(deep) < 128 else deep
    chance = random.Random(7)
    for _ in range(500):
        value = bytes(chance.randrange(256) for _ in range(chance.randrange(40)))
        try:
            decode(value)
        except ValueError:
            continue
    nested = b""
    for _ in range(5_000):
        length, head = len(nested), bytearray()
        while length > 0x7F:
            head.append(length & 0x7F | 0x80)
            length >>= 7
        nested = b"\x0a" + bytes([*head, length]) + nested
    with pytest.raises(ValueError, match="does not fit"):
        decode(nested)


def test_what_an_extension_type_holds_is_plain_bytes() -> None:
    """Protects dead letters from a memory address in their text: done again, a step would write another."""
    value = msgspec.msgpack.encode({"temp": msgspec.msgpack.Ext(5, b"xx")})
    assert format_named("msgpack").decoder(dict)(value) == {"temp": b"xx"}


def test_csv_is_a_line_by_named_columns() -> None:
    """Protects CSV: quotes, missing values, a byte-order mark, a header line, and lines of another length."""
    format = format_of(TopicSection(topic="t", format="csv", columns=["site", "temp", "note"]))
    assert is_textual(format)
    decode = anything(format)
    assert decode('\ufeff"north, old",21.5,\r\n'.encode()) == {
        "site": "north, old",
        "temp": "21.5",
        "note": None,
    }
    with pytest.raises(IgnoredRecord):
        decode(b"site,temp,note\n")
    for broken in (b"north,1", b"a,b,c\nd,e,f", b'"open,1,2', b"\xff,1,2", b"", b"a,b", b"a,b,c,d"):
        with pytest.raises(ValueError):
            decode(broken)
    reader = SampleReader(SamplesSection(topic="t", features=["temp"], client="site"), format)
    assert reader.decode(Record("t", 0, 0, None, b"north,21.5,")).features == (21.5,)
    assert decode(format.encode({"site": 'a "b"', "temp": 1, "more": 2})) == {
        "site": 'a "b"',
        "temp": "1",
        "note": None,
    }


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            b"north;21.5;x",
            "1 value, 3 are expected, .* they are separated by commas, and this line has semicolons",
        ),
        (b"north\t21.5\tx", "1 value, 3 .* this line has tabs"),
        (b"north,21.5", "2 values, 3 are expected, one for each of columns$"),
        (b" \r\n", "an empty line$"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: bytes, text: str) -> None:
    """Protects lines with another separator, as in half of Europe: the reason names it, and uses correct
    plurals."""
    with pytest.raises(ValueError, match=f"^{text}"):
        anything(format_of(TopicSection(topic="t", format="csv", columns=["site", "temp", "note"])))(line)


EVENT = {"before": None, "after": {"id": 1, "temp": 2.5}, "op": "c", "ts_ms": 5, "source": {"ts_ms": 4}}
ROW = {"id": 1, "temp": 2.5, "__op": "c", "__ts_ms": 5, "__source_ts_ms": 4}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (EVENT, ROW),
        ({"schema": {"type": "struct"}, "payload": EVENT}, ROW),
        ({**EVENT, "op": "d", "after": None}, "deletion"),
        ({"op": "t", "ts_ms": 5}, "no_row"),
        ({"ts_ms": 5}, "no_row"),
        ({"schema": None, "payload": None}, "tombstone"),
        ({"id": 1, "__deleted": "true"}, "deletion"),
        ({"id": 1, "__deleted": "false"}, {"id": 1, "__deleted": "false"}),
        ({"id": 1}, None),
        ([1], None),
        ({"op": "c", "after": 5}, None),
        ({"op": "x", "after": {}}, None),
        ({"op": {}, "after": {}}, None),
    ],
)
def test_debezium_gives_the_row_after_the_change(event: Any, expected: Any) -> None:
    """Protects change logs: rows are samples, deletions are not errors, everything else is reported."""
    decode = anything(format_named_of("debezium"))
    value = json.dumps(event).encode()
    if isinstance(expected, str):
        with pytest.raises(IgnoredRecord) as passed:
            decode(value)
        assert passed.value.reason == expected
    elif expected is None:
        with pytest.raises(ValueError):
            decode(value)
    else:
        assert decode(value) == expected
        # The format of Connect's JSON converter with schemas in a registry.
        assert decode(struct.pack(">bI", 0, 7) + value) == expected


def format_named_of(name: str) -> Format:
    return format_of(TopicSection(topic="t", format=name))


def test_a_tombstone_of_a_change_log_is_no_mistake() -> None:
    """Protects the dead letters from Debezium's tombstones, and plain JSON from losing a record without a
    value silently."""
    tombstone = Record("t", 0, 0, b"k", None)
    with pytest.raises(IgnoredRecord):
        SampleReader(SamplesSection(topic="t", format="debezium", features=["x"])).decode(tombstone)
    with pytest.raises(BadRecord, match="without a value"):
        SampleReader(SamplesSection(topic="t", features=["x"])).decode(tombstone)


def test_json_behind_a_number_is_told_of_and_read_as_json_schema() -> None:
    """Protects users who do not know that they have a registry: the text says what the record is and what to
    set."""
    value = struct.pack(">bI", 0, 300) + b'{"x": 1}'
    with pytest.raises(BadRecord, match=r"number 300.*\[registry\] url"):
        SampleReader(SamplesSection(topic="t", features=["x"])).decode(Record("t", 0, 0, b"k", value))
    for record in (value, b'{"x": 1}'):
        reader = SampleReader(SamplesSection(topic="t", format="json-schema", features=["x"]))
        assert reader.decode(Record("t", 0, 0, b"k", record)).features == (1.0,)


@pytest.mark.parametrize("value", [gzip.compress(b'{"x": 1}', mtime=0), b'{"x": "caf\xe9"}'])
def test_bytes_that_are_no_text_are_refused_as_such(value: bytes) -> None:
    """Protects the search for the writer: such a record was said to have a number of thousands of digits."""
    with pytest.raises(ValueError, match=r"no text in UTF-8 \(byte \d+\)"):
        format_named("json").decoder(Any)(value)


def test_a_number_of_thousands_of_digits_is_refused_in_words_about_the_record() -> None:
    """The text goes to the dead letters. Python's advises to raise a limit of its interpreter."""
    with pytest.raises(ValueError, match="a whole number has thousands"):
        format_named("json").decoder(Any)(b'{"a": ' + b"9" * 5_000 + b"}")


def test_plain_json_stays_as_it_was() -> None:
    """Protects JSON's special cases: NaN is read, so that it can be named, and whole numbers keep all
    digits."""
    decode = anything(format_named("json"))
    assert math.isnan(decode(b'{"x": NaN}')["x"])
    assert decode(b'{"x": 12345678901234567890123}')["x"] == 12345678901234567890123
    with pytest.raises(ValueError):
        decode(b"{")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"format": "avro"}, r"\[registry\] url.*samples.schema_file"),
        ({"format": "protobuf"}, r"\[registry\] url.*samples.schema_file"),
        ({"format": "csv"}, "samples.columns is missing"),
        ({"format": "json", "columns": ["a"]}, "samples.columns has no meaning"),
        ({"format": "avro", "schema_file": "/nowhere"}, "schema_file = '/nowhere'"),
        ({"format": "avro", "schema_file": __file__}, "the Avro schema cannot be read"),
        ({"format": "protobuf", "schema_file": __file__}, "not a descriptor set"),
        ({"format": "parquet"}, "no such format.*avro, csv, debezium, json, json-schema, msgpack, protobuf"),
    ],
)
def test_what_a_format_lacks_is_said_at_the_start(keys: dict[str, Any], text: str) -> None:
    """Protects the operator from a worker that starts and then refuses every record."""
    with pytest.raises(ConfigurationError, match=text):
        format_of(TopicSection(topic="t", **keys))


def test_structs_are_written_like_mappings(tmp_path: Path) -> None:
    """Protects records of a role's own types: the bytes equal those of a mapping with the same content."""

    class Row(msgspec.Struct):
        site: str
        temp: float
        at: int

    format = avro(tmp_path, SENSOR)
    assert format.encode(Row("north", 1.5, 3)) == format.encode({"site": "north", "temp": 1.5, "at": 3})
