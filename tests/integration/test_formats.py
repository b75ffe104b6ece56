"""Companies' record formats on a real broker with a real schema registry: good records are predicted, bad
ones dead-lettered."""

from __future__ import annotations

import json
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from apicurio import apicurio, register
from broker import Broker
from scraped import scraped

from streamfl.configuration.settings import load_settings
from streamfl.pofmkl.config import PofmklSettings
from streamfl.records.formats import format_of
from streamfl.records.topic import RegistrySection, TopicSection
from streamfl.runtime.bus import Outgoing, connect
from streamfl.runtime.kinds import build_worker, find_kind

pytestmark = pytest.mark.broker

SITES = ("north", "south", "east", "west", "centre")
ROUNDS = 8
CONFIGURATION = """
[federation]
name = "{name}"
clients = 5
[bus]
url = "{url}"
commit_interval_ms = 0
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}-readings"
client = "site"
sample_id = "id"
features = ["temp", "load"]
label = "label"
{samples}
[learning]
# What is tried here needs no server, so that no backlog may wait for one.
catch_up_samples = 0
features_per_kernel = 4
staleness = "async"
{more}
"""
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "site", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "temp", "type": ["null", "double"], "default": None},
        {"name": "load", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "label", "type": ["null", "double"], "default": None},
    ],
}
MESSAGE = """syntax = "proto3";
package plant;
message Ignored {}
message Reading {
  string site = 1; string id = 2; optional double temp = 3; double load = 4; optional double label = 5;
}
"""


@pytest.fixture(name="registry", scope="module")
def _registry() -> Iterator[str]:
    with apicurio() as url:
        yield url


def reading(number: int) -> dict[str, Any]:
    return {
        "site": SITES[number % 5],
        "id": f"r{number}",
        "temp": number % 7 / 7,
        "load": 0.5,
        "label": number % 2 * 1.0,
    }


def zigzag(number: int) -> bytes:
    return bytes([number << 1])


def in_avro(number: int) -> Callable[[dict[str, Any]], bytes]:
    """Encoded by hand from Avro's specification."""

    def text(content: str) -> bytes:
        return zigzag(len(content)) + content.encode()

    def written(row: dict[str, Any]) -> bytes:
        double = [b"\x02" + struct.pack("<d", row[name]) for name in ("temp", "label")]
        load = zigzag(1) + int(row["load"] * 100).to_bytes(1, "big", signed=True)
        return (
            struct.pack(">bI", 0, number) + text(row["site"]) + text(row["id"]) + double[0] + load + double[1]
        )

    return written


def in_protobuf(number: int) -> Callable[[dict[str, Any]], bytes]:
    """Encoded by hand from Protobuf's encoding: the second message of the schema."""

    def written(row: dict[str, Any]) -> bytes:
        texts = b"".join(
            bytes([tag, len(row[name])]) + row[name].encode() for tag, name in ((0x0A, "site"), (0x12, "id"))
        )
        numbers = ((0x19, "temp"), (0x21, "load"), (0x29, "label"))
        doubles = b"".join(bytes([tag]) + struct.pack("<d", row[name]) for tag, name in numbers)
        return struct.pack(">bI", 0, number) + b"\x02\x02" + texts + doubles

    return written


@pytest.mark.parametrize("format", ["avro", "protobuf", "debezium", "csv"])
def test_topics_as_companies_have_them(format: str, registry: str, broker: Broker, tmp_path: Path) -> None:
    """Protects users with such a topic: each good record is predicted once, deletions are counted, and a
    broken record is dead-lettered with its reason.
    """
    name = f"plant-{uuid.uuid4().hex[:8]}"
    # The dead letter's reason, and the number of ignored records.
    letter, passed = "malformed", 0
    samples, more = f'format = "{format}"', f'[registry]\nurl = "{registry}"\n[predictions]\nformat = "avro"'
    broken: bytes | None = b"\0\0\0\0"
    if format == "avro":
        write = in_avro(
            register(registry, f"{name}-readings-value", {**SCHEMA, "name": name.replace("-", "_")})
        )
        broken, letter = struct.pack(">bI", 0, 2_000_000_000) + b"x", "unknown_schema"
    elif format == "protobuf":
        write = in_protobuf(register(registry, f"{name}-readings-value", MESSAGE, "PROTOBUF"))
    elif format == "debezium":
        more, passed = "", 2

        def write(row: dict[str, Any]) -> bytes:
            return json.dumps(
                {"schema": None, "payload": {"before": None, "after": row, "op": "r", "ts_ms": 1}}
            ).encode()
    else:
        samples, more, passed = samples + '\ncolumns = ["site", "id", "temp", "load", "label"]', "", 1

        def write(row: dict[str, Any]) -> bytes:
            return ",".join(str(value) for value in row.values()).encode()

    path = tmp_path / "client.toml"
    path.write_text(CONFIGURATION.format(name=name, url=broker.url, samples=samples, more=more))
    settings = load_settings(path, PofmklSettings)
    topic = f"{name}-readings"
    count = 5 * ROUNDS
    rows = [Outgoing(topic, SITES[number % 5].encode(), write(reading(number))) for number in range(count)]
    other = {
        "debezium": [b'{"op": "d", "before": {}, "after": null}', None],
        "csv": [b"site,id,temp,load,label"],
    }
    rows[7:7] = [Outgoing(topic, b"north", value) for value in (broken, *other.get(format, []))]
    with closing(connect(broker.url)) as bus:
        bus.create(
            [
                replace(spec, partitions=spec.partitions or 2)
                for spec in find_kind(settings.role.kind).topics(settings)
            ]
        )
        bus.write(rows)
        with closing(build_worker(settings, bus)) as worker:
            deadline = time.monotonic() + 60
            while scraped(worker.metrics.render().decode(), "records_total") != len(rows):
                assert time.monotonic() < deadline, worker.metrics.render().decode()
                worker.step(0.2)
            figures = worker.metrics.render().decode()
        told = TopicSection(
            topic="t", format=settings.predictions.format, registry=RegistrySection(url=registry)
        )
        decode: Any = format_of(told).decoder(Any)  # type: ignore[arg-type]
        predicted = [(record.key, decode(record.value or b"")) for record in bus.read(f"{name}.predictions")]
        letters = [dict(letter.headers)["error"].decode() for letter in bus.read(f"{name}.dead-letters")]
    assert sorted(one["sample"] for _, one in predicted) == sorted(f"r{number}" for number in range(count))
    assert all(one["client"].encode() == key and abs(one["prediction"]) < 10 for key, one in predicted)
    assert letters == [letter]
    assert scraped(figures, "records_passed_over_total") == passed
