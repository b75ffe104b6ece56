"""What a record costs to read in each format: bytes to a sample, as a worker of clients does it, beside plain
JSON."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, best_seconds, size
from streamfl.contract.role import Record
from streamfl.records.formats import format_of
from streamfl.records.samples import SampleReader, SamplesSection

FEATURES = 8
RECORDS, ROUNDS = size(2_000, 10), size(7, 1)
NAMES = [f"t{index}" for index in range(FEATURES)]


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        formats = dict(_formats(Path(folder)))
        readers = {name: _reading(section, frame) for name, (section, frame) in formats.items()}
        seconds = dict(zip(readers, best_seconds([*readers.values()], ROUNDS), strict=True))
    for name, took in seconds.items():
        yield Figure(f"reading a sample of {FEATURES} inputs in {name}", took / RECORDS * 1e6, "µs a record")
        if name != "json":
            yield Figure(f"reading {name} against plain JSON", took / seconds["json"], "times its time")


def _formats(folder: Path) -> Iterator[tuple[str, tuple[SamplesSection, Callable[[bytes], bytes]]]]:
    """Of each format, a topic's section, and what stands around what it encodes."""

    def section(format: str, **keys: Any) -> SamplesSection:
        return SamplesSection(topic="t", format=format, client="site", features=NAMES, label="y", **keys)

    fields = [{"name": name, "type": "double"} for name in [*NAMES, "y"]]
    avro, proto = folder / "reading.avsc", folder / "reading.proto"
    avro.write_text(
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "site", "type": "string"}, *fields]})
    )
    lines = [f"double {name} = {number};" for number, name in enumerate([*NAMES, "y"], start=2)]
    proto.write_text('syntax = "proto3"; message R { string site = 1; ' + " ".join(lines) + " }")

    def as_it_is(value: bytes) -> bytes:
        return value

    def with_schema(value: bytes) -> bytes:
        described = json.dumps({"schema": {"type": "struct", "fields": fields}}).encode()
        return described[:-1] + b', "payload": ' + value + b"}"

    yield "json", (section("json"), as_it_is)
    yield "msgpack", (section("msgpack"), as_it_is)
    yield "json-schema", (section("json-schema"), lambda value: struct.pack(">bI", 0, 7) + value)
    yield "avro", (section("avro", schema_file=str(avro)), as_it_is)
    yield "protobuf", (section("protobuf", schema_file=str(proto)), as_it_is)
    yield "csv", (section("csv", columns=["site", *NAMES, "y"]), as_it_is)
    yield "debezium", (section("debezium"), as_it_is)
    yield "debezium with its schema around it", (section("debezium"), with_schema)


def _reading(section: SamplesSection, frame: Callable[[bytes], bytes]) -> Callable[[int], object]:
    encode, decode = format_of(section).encode, SampleReader(section).decode
    inputs = [{name: number / (index + 3) for index, name in enumerate(NAMES)} for number in range(RECORDS)]
    contents = ({"site": "north", "y": 0.5, **row} for row in inputs)
    records = [
        Record("t", 0, offset, b"north", frame(encode(content))) for offset, content in enumerate(contents)
    ]

    def read(_: int) -> None:
        for record in records:
            decode(record)

    return read
